"""The admin application.

Routes: GET /status · GET /devices · POST /models/{name}/load|unload|restart (load takes `?force=1`) ·
GET /models/{name}/estimate · GET /models/{name}/logs · GET /events (these two take `?follow=1`) ·
POST /changes; those of jobs are in `jobs`. Everything that lasts is NDJSON, one write per line.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from modeld import errors
from modeld.admin import jobs as job_routes
from modeld.admin.ports import Control, Jobs, Supervisor
from modeld.admin.schemas import (
    LARGEST_CHANGE,
    Change,
    ChangeEnd,
    ChangePlan,
    DaemonInfo,
    ErrorBody,
    ErrorReply,
    MoveEnd,
    StatusReply,
)
from modeld.admin.stream import Stream, add_streams, tell
from modeld.errors import BadRequest, ModeldError, NotFound, TooLarge

log = logging.getLogger(__name__)

STATUS: tuple[tuple[type[ModeldError], int], ...] = (
    (errors.BadRequest, 400),
    (errors.UsageError, 400),
    (errors.NotFound, 404),
    (errors.MethodNotAllowed, 405),
    (errors.TooLarge, 413),
    (errors.Overloaded, 429),
    (errors.ModelFailed, 503),
    (errors.ModelUnavailable, 503),
    (errors.LoadFailed, 503),
    (errors.StoreFailed, 503),
    (errors.DeadlineExceeded, 504),
)
"""HTTP status of an error; anything else is 500."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


def build_admin_app(
    supervisor: Supervisor, control: Control, info: Callable[[], DaemonInfo], jobs: Jobs | None = None
) -> web.Application:
    """Return the application; `info` is asked at every GET /status. Without `jobs` it knows of none."""
    handlers = _Handlers(supervisor, control, info)
    app = web.Application(middlewares=[_errors_as_json], client_max_size=LARGEST_CHANGE)
    add_streams(app)
    # A name is whatever stands between two slashes, braces included; a slash of its own comes as %2F.
    model = "/models/{name:[^/]+}"
    app.router.add_get("/status", handlers.status)
    app.router.add_get("/devices", handlers.devices)
    app.router.add_post(model + "/{verb:load|unload|restart}", handlers.move)
    app.router.add_get(model + "/estimate", handlers.estimate)
    app.router.add_get(model + "/logs", handlers.logs)
    app.router.add_get("/events", handlers.events)
    app.router.add_post("/changes", handlers.change)
    if jobs is not None:
        job_routes.add_routes(app, jobs)
    return app


# --- handlers -----------------------------------------------------------------------------------------------


class _Handlers:
    def __init__(self, supervisor: Supervisor, control: Control, info: Callable[[], DaemonInfo]) -> None:
        self._supervisor = supervisor
        self._control = control
        self._info = info

    async def status(self, request: web.Request) -> web.StreamResponse:
        info = msgspec.structs.asdict(self._info())
        return _json(StatusReply(**info, models=self._supervisor.statuses()))

    async def devices(self, request: web.Request) -> web.StreamResponse:
        return _json(await self._control.devices())

    async def estimate(self, request: web.Request) -> web.StreamResponse:
        return _json(await self._control.estimate(self._known(request)))

    async def move(self, request: web.Request) -> web.StreamResponse:
        name, verb, force = self._known(request), request.match_info["verb"], _flag(request, "force")
        if force and verb != "load":
            raise BadRequest(f"force goes with load, not with {verb}", param="force")

        async def work() -> MoveEnd:
            moves = {"unload": self._supervisor.unload, "restart": self._supervisor.restart}
            move = self._supervisor.load(name, force=force) if verb == "load" else moves[verb](name)
            done, error = await _outcome(move)
            return MoveEnd(done, error)

        return await tell(request, self._supervisor.feed, frozenset({name}), work)

    async def change(self, request: web.Request) -> web.StreamResponse:
        change = await _change(request)
        # Planned first also when it is to be carried out: what cannot be is refused with a true status.
        plan = await self._control.plan(change)
        if change.dry_run:
            return _json(plan)

        async def work() -> ChangeEnd:
            done, error = await _outcome(self._control.apply(change))
            return ChangeEnd(done, error)

        return await tell(request, self._supervisor.feed, _concerned(change, plan), work)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        name, follow = self._known(request), _flag(request, "follow")
        with self._supervisor.follow_log(name) as lines:  # first, so that no line falls between the two
            async with Stream(request) as stream:
                for line in self._supervisor.log_lines(name):
                    await stream.write(line)
                if follow:
                    async for line in lines:
                        await stream.write(line)
            return stream.response

    async def events(self, request: web.Request) -> web.StreamResponse:
        follow = _flag(request, "follow")
        with self._supervisor.feed.subscribe(replay=True) as feed:
            async with Stream(request) as stream:
                if follow:
                    async for event in feed:
                        await stream.write(event)
                else:
                    for event in self._supervisor.feed.recent():
                        await stream.write(event)
            return stream.response

    def _known(self, request: web.Request) -> str:
        """Return the name in the path. Raises NotFound, with the names there are, before any header."""
        name = request.match_info["name"]
        try:
            self._supervisor.status(name)
        except NotFound as error:
            names = ", ".join(status.name for status in self._supervisor.statuses()) or "none"
            raise NotFound(
                f"no model is named {name!r}; there are: {names}", code="model_not_found"
            ) from error
        return name


async def _outcome(work: Awaitable[T]) -> tuple[T | None, ErrorBody | None]:
    try:
        return await work, None
    except Exception as error:
        return None, _body(error)


def _concerned(change: Change, plan: ChangePlan) -> frozenset[str]:
    # Without a document, models that do not differ but are down are brought up as well.
    woken = plan.unchanged if change.kind == "reconcile" and change.document is None else ()
    changed = (item.name for item in (*plan.replaces, *plan.updates))
    return frozenset({*plan.adds, *plan.removes, *changed, *woken})


# --- reading requests ---------------------------------------------------------------------------------------


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "0")
    if value not in ("0", "1"):
        raise BadRequest(f"{name} must be 0 or 1, not {value!r}", param=name)
    return value == "1"


async def _change(request: web.Request) -> Change:
    try:
        change = msgspec.json.decode(await request.read(), type=Change)
    except web.HTTPRequestEntityTooLarge:
        raise TooLarge(
            f"the change is over {LARGEST_CHANGE // 1024**2} MiB of JSON; add models in several steps"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not a change: {error}") from None
    if change.kind == "add" and change.document is None:
        raise BadRequest("a change of kind add needs a document - at `$.document`", param="document")
    if change.kind == "remove" and not change.names:
        raise BadRequest("a change of kind remove needs names - at `$.names`", param="names")
    return change


# --- errors -------------------------------------------------------------------------------------------------


def _json(body: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _body(error: Exception) -> ErrorBody:
    if isinstance(error, ModeldError):
        return ErrorBody(error.message, error.code, error.kind)
    log.error("a defect of modeld on the admin socket", exc_info=error)
    return ErrorBody(f"a defect of modeld: {type(error).__name__}: {error}", ModeldError.default_code)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        allowed = f"; allowed: {error.headers['Allow']}" if "Allow" in error.headers else ""
        message = f"{request.method} {request.path}: {error.reason}{allowed}"
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status, "invalid_request")
        return _json(ErrorReply(ErrorBody(message, code, code)), error.status)
    except ModeldError as error:
        status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
        return _json(ErrorReply(_body(error)), status)
    except Exception as error:
        return _json(ErrorReply(_body(error)), 500)

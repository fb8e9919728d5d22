"""The admin application, and the Unix socket it listens on.

Routes: GET /status · POST /models/{name}/load|unload|restart · GET /models/{name}/logs · GET /events. The
last two take `?follow=1`. Everything that lasts is NDJSON, one write per line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from modeld import errors
from modeld.admin.ports import Supervisor
from modeld.admin.schemas import DaemonInfo, ErrorBody, ErrorReply, MoveEnd, StatusReply
from modeld.errors import ModeldError, NotFound, StartupError
from modeld.supervisor.events import FeedEvent

log = logging.getLogger(__name__)

SHUTDOWN_S = 1.0
"""How long a handler may take to end when the socket closes; streams are told to end first."""

STATUS: tuple[tuple[type[ModeldError], int], ...] = (
    (errors.BadRequest, 400),
    (errors.NotFound, 404),
    (errors.MethodNotAllowed, 405),
    (errors.Overloaded, 429),
    (errors.ModelFailed, 503),
    (errors.ModelUnavailable, 503),
    (errors.LoadFailed, 503),
    (errors.DeadlineExceeded, 504),
)
"""HTTP status of an error; anything else is 500."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Streams:
    """The handlers that would otherwise go on for ever."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()


_STREAMS = web.AppKey("streams", _Streams)


def build_admin_app(supervisor: Supervisor, info: Callable[[], DaemonInfo]) -> web.Application:
    """Return the application; `info` is asked at every GET /status."""
    handlers = _Handlers(supervisor, info)
    app = web.Application(middlewares=[_errors_as_json])
    app[_STREAMS] = _Streams()
    app.on_shutdown.append(_end_streams)
    app.router.add_get("/status", handlers.status)
    app.router.add_post("/models/{name}/{verb:load|unload|restart}", handlers.move)
    app.router.add_get("/models/{name}/logs", handlers.logs)
    app.router.add_get("/events", handlers.events)
    return app


@asynccontextmanager
async def serve_admin(app: web.Application, socket_path: Path) -> AsyncIterator[None]:
    """Serve `app` on `socket_path` (mode 0600) until the block ends; the socket is gone afterwards.

    The caller holds the instance lock of the state directory: only that makes a socket found there stale, so
    that it may be removed. Raises StartupError when the path cannot be bound.
    """
    listener = bind_private(socket_path)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S, access_log=None)
    inode = socket_path.stat().st_ino
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()
        listener.close()
        with suppress(FileNotFoundError):  # somebody may have tidied up
            if socket_path.stat().st_ino == inode:
                socket_path.unlink()


def bind_private(path: Path) -> socket.socket:
    """Return a listening-ready Unix socket bound to `path`, never reachable by anybody but its owner."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode comes from the umask at bind(); a chmod afterwards would leave a moment of wider access.
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        size = len(os.fsencode(path))
        raise StartupError(
            f"cannot listen on the admin socket {path} ({size} bytes): {error.strerror or error}; "
            "a shorter --state-dir helps when the path is over 100 bytes"
        ) from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing there; any other trouble shows at bind()
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"{path} is in the way of the admin socket and is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise StartupError(f"something answers on the admin socket {path}: is another modeld running?")


async def _end_streams(app: web.Application) -> None:
    for task in tuple(app[_STREAMS].tasks):
        task.cancel()


# --- handlers -----------------------------------------------------------------------------------------------


class _Handlers:
    def __init__(self, supervisor: Supervisor, info: Callable[[], DaemonInfo]) -> None:
        self._supervisor = supervisor
        self._info = info

    async def status(self, request: web.Request) -> web.StreamResponse:
        info = msgspec.structs.asdict(self._info())
        return _json(StatusReply(**info, models=self._supervisor.statuses()))

    async def move(self, request: web.Request) -> web.StreamResponse:
        name = self._known(request)
        move = getattr(self._supervisor, request.match_info["verb"])
        with self._supervisor.feed.subscribe() as feed:
            async with _Stream(request) as stream, asyncio.TaskGroup() as group:
                shown = group.create_task(_show(feed, name, stream))
                try:
                    end = MoveEnd(done=await move(name))
                except Exception as error:
                    end = MoveEnd(error=_body(error))
                # The feed's last events are in the queue by now; let them out before the end.
                await asyncio.sleep(0)
                shown.cancel()
            await stream.write(end)
            return stream.response

    async def logs(self, request: web.Request) -> web.StreamResponse:
        name = self._known(request)
        with self._supervisor.follow_log(name) as lines:  # first, so that no line falls between the two
            async with _Stream(request) as stream:
                for line in self._supervisor.log_lines(name):
                    await stream.write(line)
                if _follows(request):
                    async for line in lines:
                        await stream.write(line)
            return stream.response

    async def events(self, request: web.Request) -> web.StreamResponse:
        follow = _follows(request)
        with self._supervisor.feed.subscribe(replay=True) as feed:
            async with _Stream(request) as stream:
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


class _Stream:
    """One NDJSON answer; ends quietly when the reader leaves or the socket closes."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})

    async def __aenter__(self) -> _Stream:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._request.app[_STREAMS].tasks.add(task)
        await self.response.prepare(self._request)
        return self

    async def write(self, line: msgspec.Struct) -> None:
        await self.response.write(msgspec.json.encode(line) + b"\n")

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        self._request.app[_STREAMS].tasks.discard(self._task)
        return kind is not None and issubclass(kind, ConnectionError)


async def _show(feed: AsyncIterator[FeedEvent], name: str, stream: _Stream) -> None:
    with suppress(ConnectionError):  # nobody reads any more; the move goes on
        async for event in feed:
            if event.kind == "lost" or (event.model == name and event.kind in ("state", "progress")):
                await stream.write(event)


def _follows(request: web.Request) -> bool:
    value = request.query.get("follow", "0")
    if value not in ("0", "1"):
        raise errors.BadRequest(f"follow must be 0 or 1, not {value!r}", param="follow")
    return value == "1"


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

"""`GET /v1/models/{id}/pull`, at every gateway: how far the pull of a model is, as an event stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from aiohttp import web

from modeld.errors import NotFound
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.encoding import dumps
from modeld.gateway.envelope import CLIENT_CLOSED
from modeld.gateway.families import models
from modeld.gateway.sse import DONE, KEEPALIVE, EventWriter, event
from modeld.library.pull.client import Progress
from modeld.library.pull.watch import OVER, Watch
from modeld.supervisor.states import Status

ENDING = "/pull"

WatchPull: TypeAlias = Callable[[Status], AbstractContextManager[Watch | None]]
WATCH: web.AppKey[WatchPull] = web.AppKey("watch_pull")
"""Where whoever pulls lets a pull be watched; it gives None for a model that is not being pulled."""


async def pull(request: web.Request) -> web.StreamResponse:
    """Stream the progress until the pull is over: the newest, at once, and whenever there is news.

    Each event is a `model.pull`; the last one has the stage "done", "failed" or "stopped", and [DONE] follows
    it. A model whose files are here is done. Leaving stops nothing. Raises NotFound for a model that is not
    being pulled and whose files are not here.
    """
    gateway = request.app[routing.KEY]
    at, name = routing.gateway_name(request, gateway.pool), request.match_info["id"]
    if gateway.pool.find(at, name + ENDING) is not None:  # names may end so, too
        return await models.one(request, name + ENDING)
    status = routing.find(gateway.pool, at, name)
    request[exchanges.KEY].model = status.name
    watching = request.app.get(WATCH)
    if watching is not None:
        with watching(status) as watch:
            if watch is not None:
                return await _streamed(request, name, watch)
    entry = (await models.files_of(request, (status,))).get(status.name)
    if entry is None:
        raise NotFound(
            f"the model {name[:200]!r} is not being pulled, and no files of it are here: it is {status.state}"
            + (f" ({status.message})" if status.message else ""),
            code="not_being_pulled",
        )
    return await _streamed(request, name, Watch.of(Progress("done", entry.size, entry.size)))


async def _streamed(request: web.Request, name: str, watch: Watch) -> web.StreamResponse:
    settings = request.app[routing.KEY].settings
    writer = EventWriter(request, settings.client_stall_timeout)
    over = False
    try:
        while not over:
            now = await watch.next(settings.keepalive_interval)
            await writer.send([KEEPALIVE if now is None else event(dumps(told(name, now)))])
            over = now is not None and now.stage in OVER
        await writer.finish(DONE)
    except ConnectionError:
        request[exchanges.KEY].outcome = CLIENT_CLOSED
    return writer.response


def told(name: str, now: Progress) -> dict[str, Any]:
    """Return an event's JSON.

    `stage` is waiting, listing, downloading, checking, retrying, done, failed or stopped; `completed` and
    `total` are bytes, `progress` is 0 to 1; `message` says why it tries again or has failed. What is unknown
    is null.
    """
    return {
        "object": "model.pull",
        "model": name,
        "stage": now.stage,
        "completed": now.done,
        "total": now.total,
        "progress": round(min(now.done / now.total, 1.0), 4) if now.total else None,
        "file": now.file,
        "message": now.why,
    }


def add_routes(app: web.Application) -> None:
    """Register the route; it comes before that of one model, whose names may hold slashes."""
    path = "/v1/models/{id:.+}" + ENDING
    for each in (path, routing.SEGMENT + path):
        app.router.add_get(each, pull, allow_head=False)  # a stream has no end to tell the length of

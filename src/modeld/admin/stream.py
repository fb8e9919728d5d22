"""Answers that last: NDJSON, one write per line, ended when the reader leaves or the socket closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from modeld.supervisor.events import EventFeed, FeedEvent


class _Streams:
    """The handlers that would otherwise go on for ever."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()


_STREAMS = web.AppKey("streams", _Streams)


def add_streams(app: web.Application) -> None:
    """Let `app` answer with `Stream`s; they end when it shuts down."""
    app[_STREAMS] = _Streams()
    app.on_shutdown.append(_end_streams)


async def _end_streams(app: web.Application) -> None:
    for task in tuple(app[_STREAMS].tasks):
        task.cancel()


class Stream:
    """One NDJSON answer; entering sends the header, a reader who leaves ends it quietly."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})

    async def __aenter__(self) -> Stream:
        """Send the header."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._request.app[_STREAMS].tasks.add(task)
        await self.response.prepare(self._request)
        return self

    async def write(self, line: msgspec.Struct) -> None:
        """Send one line. Raises ConnectionError when nobody reads."""
        await self.response.write(msgspec.json.encode(line) + b"\n")

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        """Forget the stream; a ConnectionError ends here."""
        self._request.app[_STREAMS].tasks.discard(self._task)
        return kind is not None and issubclass(kind, ConnectionError)


async def tell(
    request: web.Request,
    feed: EventFeed,
    names: frozenset[str],
    work: Callable[[], Awaitable[msgspec.Struct]],
) -> web.StreamResponse:
    """Answer with what happens to the models `names` while `work` goes on, and then its result.

    Cancelling this (the client leaves, the socket closes) cancels the waiting for `work` alone, as the ports
    promise.
    """
    with feed.subscribe() as events:
        async with Stream(request) as stream, asyncio.TaskGroup() as group:
            shown = group.create_task(_show(events, names, stream))
            end = await work()
            # The feed's last events are in the queue by now; let them out before the end.
            await asyncio.sleep(0)
            shown.cancel()
        await stream.write(end)
        return stream.response


async def _show(events: AsyncIterator[FeedEvent], names: frozenset[str], stream: Stream) -> None:
    with suppress(ConnectionError):  # nobody reads any more; the work goes on
        async for event in events:
            if event.kind == "lost" or (event.model in names and event.kind in ("state", "progress")):
                await stream.write(event)

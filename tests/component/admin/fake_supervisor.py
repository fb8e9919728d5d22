"""A supervisor whose moves end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

from modeld.clock import SystemClock
from modeld.errors import ModeldError, NotFound
from modeld.supervisor.events import EventFeed
from modeld.supervisor.log_ring import LogLine, LogRing
from modeld.supervisor.states import State, Status


class FakeSupervisor:
    def __init__(self, *statuses: Status) -> None:
        self.feed = EventFeed(SystemClock())
        self.rings = {status.name: LogRing(SystemClock()) for status in statuses}
        self.go = asyncio.Event()
        self.go.set()
        self.fails: Exception | None = None
        self.moves: list[tuple[str, str]] = []
        self.open_moves = 0
        self._statuses = {status.name: status for status in statuses}

    def statuses(self) -> tuple[Status, ...]:
        return tuple(self._statuses.values())

    def status(self, name: str) -> Status:
        if name not in self._statuses:
            raise NotFound(name)
        return self._statuses[name]

    async def load(self, name: str) -> Status:
        return await self._move("load", name, State.LOADING, State.READY)

    async def unload(self, name: str) -> Status:
        return await self._move("unload", name, State.DRAINING, State.STOPPED)

    async def restart(self, name: str) -> Status:
        return await self._move("restart", name, State.STOPPING, State.READY)

    def log_lines(self, name: str) -> list[LogLine]:
        return self.rings[name].lines()

    def follow_log(self, name: str) -> AbstractContextManager[AsyncIterator[LogLine]]:
        return self.rings[name].follow()

    async def _move(self, verb: str, name: str, through: State, to: State) -> Status:
        self.moves.append((verb, name))
        self.open_moves += 1
        try:
            self.feed.publish("state", name, state=through, cause=verb, message="on its way")
            self.feed.publish("progress", name, message="reading weights", progress=0.5)
            self.feed.publish("state", "another", state="ready")
            await self.go.wait()
            if self.fails is not None:
                raise self.fails
            self.feed.publish("state", name, state=to, cause=verb)
            old = self._statuses[name]
            new = Status(name, old.usecase, old.loader, to, verb, "", old.since, bytes_used=512 * 2**20)
            self._statuses[name] = new
            return new
        finally:
            self.open_moves -= 1


def model(name: str, state: State = State.STOPPED, **facts: object) -> Status:
    """Return a status with plain values where the test gives none."""
    values: dict[str, object] = {"cause": "start", "message": "", "since": 0.0, **facts}
    return Status(name, "chat", "fake", state, **values)  # type: ignore[arg-type]


def failure(message: str = "no such file: /m.gguf") -> ModeldError:
    """Return what a failed load raises."""
    from modeld.errors import ModelFailed

    return ModelFailed(message)

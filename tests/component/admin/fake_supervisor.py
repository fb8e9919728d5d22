"""A supervisor and a control whose moves and changes end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

from modeld.admin.schemas import Change, ChangePlan, ChangeResult, DevicesReply, EstimateReply, Outcome
from modeld.clock import SystemClock
from modeld.errors import ModeldError, NotFound, UsageError
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

    def add(self, status: Status) -> None:
        self._statuses[status.name] = status
        self.rings[status.name] = LogRing(SystemClock())

    def statuses(self) -> tuple[Status, ...]:
        return tuple(self._statuses.values())

    def status(self, name: str) -> Status:
        if name not in self._statuses:
            raise NotFound(name)
        return self._statuses[name]

    async def load(self, name: str, *, force: bool = False) -> Status:
        return await self._move("load by force" if force else "load", name, State.LOADING, State.READY)

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


class FakeControl:
    """A control whose changes end when the test says so; cancelling who waits does not stop them."""

    def __init__(self, supervisor: FakeSupervisor) -> None:
        self.supervisor = supervisor
        self.planned = ChangePlan(adds=("new",), unchanged=("qwen", "whisper"))
        self.refuses: Exception | None = None
        self.fails: Exception | None = None
        self.outcomes: tuple[Outcome, ...] = (Outcome("new", True, "ready after 0.1 s."),)
        self.go = asyncio.Event()
        self.go.set()
        self.asked: list[Change] = []
        self.done: list[Change] = []
        self.work: set[asyncio.Task[ChangeResult]] = set()
        self.machine = DevicesReply(())
        self.estimates: dict[str, EstimateReply] = {}

    async def plan(self, change: Change) -> ChangePlan:
        self.asked.append(change)
        if self.refuses is not None:
            raise self.refuses
        there = [status.name for status in self.supervisor.statuses()]
        if unknown := [name for name in change.names if name not in there]:
            raise UsageError(f"no model is named {unknown[0]!r}; there are: {', '.join(there)}")
        return self.planned

    async def apply(self, change: Change) -> ChangeResult:
        work = asyncio.create_task(self._apply(change))
        self.work.add(work)
        return await asyncio.shield(work)

    async def _apply(self, change: Change) -> ChangeResult:
        feed = self.supervisor.feed
        feed.publish("state", "new", state="loading", cause="add", message="on its way")
        feed.publish("progress", "new", message="reading weights", progress=0.5)
        feed.publish("state", "qwen", state="ready")
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        self.done.append(change)
        feed.publish("state", "new", state="ready", cause="add")
        return ChangeResult(self.planned, self.outcomes)

    async def devices(self) -> DevicesReply:
        return self.machine

    async def estimate(self, name: str) -> EstimateReply:
        return self.estimates[name]

"""A pool whose models say what a test scripted, and which remembers how its calls ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from modeld.errors import ModeldError
from modeld.gateway.ports import Stream
from modeld.ids import Identity
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import ChatTask, CompletionTask, Event, Finish, Task, Text, Usage
from modeld.supervisor.admission import Priority
from modeld.supervisor.states import State, Status

Answer = list[Event] | ModeldError | None
"""What one `take` gives: events, an error to raise, or None for the end."""


def model(
    name: str,
    *,
    usecase: str = "generate",
    state: State = State.READY,
    message: str = "",
    facts: Facts | None = None,
    gateway: str = "",
    aliases: tuple[str, ...] = (),
    on_demand: bool = False,
) -> Status:
    """Return the snapshot of a model; `name` is what callers of its gateway use."""
    if facts is None and state is State.READY:
        facts = Facts(loader="fake", device="cpu", context_length=2048, capabilities=("chat", "completion"))
    return Status(
        name=f"{gateway}/{name}" if gateway else name,
        usecase=usecase,
        loader="fake",
        state=state,
        cause="test",
        message=message,
        since=0.0,
        facts=facts,
        served_name=name,
        gateway=gateway,
        aliases=aliases,
        on_demand=on_demand,
    )


def said(text: str = "Hello.", *, n: int = 1) -> list[Answer]:
    """Return the script of a short complete answer of `n` choices."""
    words = text.split(" ")
    pieces = [word if at == 0 else " " + word for at, word in enumerate(words)]
    script: list[Answer] = [[Text(piece, index) for index in range(n)] for piece in pieces]
    script.append([Finish("stop", index) for index in range(n)])
    script.append([Usage(prompt_tokens=5, completion_tokens=len(pieces) * n)])
    script.append(None)
    return script


def choices_of(task: Task) -> int:
    """Return how many answers a chat or completion asks for, 1 for anything else."""
    return task.n if isinstance(task, ChatTask | CompletionTask) else 1


class FakeStream:
    """One call. `feed` adds to its script while it runs; `taken` is set whenever `take` waits for more."""

    def __init__(self, script: list[Answer]) -> None:
        self._script = deque(script)
        self._more = asyncio.Event()
        self.waiting = asyncio.Event()
        self.over = False
        self.cancelled = False
        self.closed = asyncio.Event()
        self.takes = 0

    def feed(self, *answers: Answer) -> None:
        """Give the reader more."""
        self._script.extend(answers)
        self._more.set()

    async def take(self, timeout: float) -> list[Event] | None:
        """Give the next part of the script, or [] when there is none within `timeout`."""
        self.takes += 1
        if not self._script:
            self._more.clear()
            self.waiting.set()
            try:
                async with asyncio.timeout(timeout):
                    await self._more.wait()
            except TimeoutError:
                return []
        answer = self._script.popleft()
        if isinstance(answer, ModeldError):
            self.over = True
            raise answer
        if answer is None:
            self.over = True
        return answer


class FakeCall(NamedTuple):
    """What a call was opened with; `model` is the pool's key."""

    model: str
    task: Task
    identity: Identity
    priority: Priority
    keep_alive: float | None


@dataclass
class FakePool:
    """Models by the pool's key, and a script for each call. Gateways are those the models name.

    `answer` is called for every call; its result is the script, or an error to raise on entering. `scans`
    counts how often all snapshots were asked for.
    """

    models: dict[str, Status] = field(default_factory=lambda: {"tiny": model("tiny")})
    answer: Callable[[str, Task], list[Answer] | ModeldError] | None = None
    calls: list[FakeCall] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    scans: int = 0

    @classmethod
    def of(cls, *models: Status) -> FakePool:
        """Return a pool of these models."""
        return cls(models={status.name: status for status in models})

    def statuses(self) -> tuple[Status, ...]:
        """Return all snapshots."""
        self.scans += 1
        return tuple(self.models.values())

    def gateways(self) -> tuple[str, ...]:
        """Return the gateways that models name."""
        return tuple(sorted({status.gateway for status in self.models.values()} - {""}))

    def find(self, gateway: str, name: str) -> Status | None:
        """Return the model of that served name or alias."""
        for status in self.models.values():
            if status.gateway == gateway and name in (status.served_name, *status.aliases):
                return status
        return None

    @asynccontextmanager
    async def open(
        self,
        model: str,
        task: Task,
        identity: Identity,
        *,
        priority: Priority = Priority.INTERACTIVE,
        keep_alive: float | None = None,
    ) -> AsyncIterator[Stream]:
        """Play the script; leaving before its end is remembered as `cancelled`."""
        assert model in self.models
        self.calls.append(FakeCall(model, task, identity, priority, keep_alive))
        script = said(n=choices_of(task)) if self.answer is None else self.answer(model, task)
        if isinstance(script, ModeldError):
            raise script
        stream = FakeStream(script)
        self.streams.append(stream)
        self.opened.set()
        try:
            yield stream
        finally:
            stream.cancelled = not stream.over
            stream.closed.set()


def last_chat(pool: FakePool) -> ChatTask:
    """Return the task of the last call."""
    task = pool.calls[-1].task
    assert isinstance(task, ChatTask)
    return task

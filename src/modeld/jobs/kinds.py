"""Kinds of jobs whose items are one task each, stored as the task itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from modeld.jobs.ports import Work
from modeld.protocol.tasks import Event, Task
from modeld.store.job_records import TakenItem

WAIT_S = 60.0
"""Seconds of one wait for events; nobody needs a sign of life meanwhile."""

_ENCODE = msgspec.json.Encoder().encode
_TASK: msgspec.json.Decoder[Task] = msgspec.json.Decoder(Task)


class Collector(Protocol):
    """Gathers the events of one call into a result."""

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        ...

    def body(self) -> bytes:
        """Return the result as JSON. Raises EngineError when the answer is not whole."""
        ...


def request_of(task: Task) -> bytes:
    """Return a task as an item's request."""
    return _ENCODE(task)


class TaskKind:
    """Items that are one task: `collector` gives what gathers an item's answer."""

    def __init__(self, collector: Callable[[TakenItem], Collector]) -> None:
        self._collector = collector

    async def run(self, item: TakenItem, work: Work) -> bytes:
        """Do the item's task. Raises ModeldError."""
        collector = self._collector(item)
        async with work.open(_TASK.decode(item.request)) as stream:
            while (events := await stream.take(WAIT_S)) is not None:
                if events:
                    collector.add(events)
        return collector.body()

"""What the room needs from below, as protocols, so that it can be tested without a worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from modeld.ids import Identity
from modeld.protocol.tasks import Event, Task
from modeld.store.job_records import TakenItem
from modeld.supervisor.admission import Priority


class Stream(Protocol):
    """The answer to one call, as it comes."""

    async def admitted(self) -> None:
        """Wait until the call has a slot of an engine. Raises ModeldError."""
        ...

    async def take(self, timeout: float) -> list[Event] | None:
        """Wait at most `timeout` seconds for events; see `gateway.ports.Stream`."""
        ...


class Pool(Protocol):
    """All models, and the way to call one."""

    def open(
        self,
        model: str,
        task: Task,
        identity: Identity,
        *,
        priority: Priority,
        yields: bool,
    ) -> AbstractAsyncContextManager[Stream]:
        """Call a model by its key. `yields`: the call gives its slot to an interactive request that needs
        it, and ends with GaveWay. Else as `gateway.ports.Pool.open`; NotFound comes at once.
        """
        ...


Open: TypeAlias = Callable[[Task], AbstractAsyncContextManager[Stream]]
"""Calls the model of an item; the context is entered when the call has a slot."""


class Work(Protocol):
    """What there is for an item to be done with."""

    def open(self, task: Task) -> AbstractAsyncContextManager[Stream]:
        """Call the model of the item; see `Open`."""
        ...

    async def commit(self) -> None:
        """Begin with what must not be done twice: from now on the item is not begun anew, whatever comes.

        That is stored when this returns. Its calls keep their slots, and wait for a model that cannot take
        them; what ends it otherwise, the daemon's end among that, is its failure. Raises StoreFailed.
        """
        ...


class Kind(Protocol):
    """What the items of one kind of job are."""

    async def run(self, item: TakenItem, work: Work) -> bytes:
        """Do one item and return its result as JSON. Raises ModeldError.

        It may be cut off at any point and begun anew, so it does nothing but ask, until it calls `commit`.
        """
        ...

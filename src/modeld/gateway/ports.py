"""What the gateway needs from below, as protocols, so that it can be tested without a worker."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from modeld.ids import Identity
from modeld.protocol.tasks import Event, Task
from modeld.supervisor.states import Status


class Stream(Protocol):
    """The answer to one call, as it comes."""

    async def take(self, timeout: float) -> list[Event] | None:
        """Wait at most `timeout` seconds for events.

        Returns the events that are there (one or more), [] when none came in time (still queued, loading, or
        a long prefill), None when the call is over and complete. Raises ModeldError.
        """
        ...


class Pool(Protocol):
    """All models, and the way to call one."""

    def statuses(self) -> tuple[Status, ...]:
        """Return a snapshot of every configured model."""
        ...

    def status(self, name: str) -> Status:
        """Return the snapshot of one model. Raises NotFound."""
        ...

    def open(self, model: str, task: Task, identity: Identity) -> AbstractAsyncContextManager[Stream]:
        """Call a model. Entering returns at once or raises ModeldError; leaving cancels what is not over."""
        ...

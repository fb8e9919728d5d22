"""What the gateway needs from below, as protocols, so that it can be tested without a worker."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from modeld.ids import Identity
from modeld.protocol.tasks import Event, Task
from modeld.supervisor.admission import Priority
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

    def gateways(self) -> tuple[str, ...]:
        """Return the names of the named gateways at this moment; the default one is always there besides."""
        ...

    def find(self, gateway: str, name: str) -> Status | None:
        """Return the snapshot of the model that callers of a gateway ("" is the default one) know under this
        served name or alias, exactly as written. Asked for every request: a look-up, not a search.
        """
        ...

    def open(
        self,
        model: str,
        task: Task,
        identity: Identity,
        *,
        priority: Priority = Priority.INTERACTIVE,
        keep_alive: float | None = None,
    ) -> AbstractAsyncContextManager[Stream]:
        """Call a model by its key in the pool (`Status.name`, not what callers call it).

        Entering returns at once or raises ModeldError; leaving cancels what is not over.

        `keep_alive`: seconds that the model stays loaded after this request, 0 to go at once, `math.inf` for
        ever; None when the request does not say. A pin goes before the request's word, that before the
        model's own `keep_alive`, and that before the configuration's: a request never unloads a pinned model,
        and one that says nothing changes nothing.
        """
        ...

"""The one writer of the memory ledger, and the place to wait for memory."""

from __future__ import annotations

import asyncio

from modeld.supervisor.ledger import Ledger, Refusal


class Memory:
    """Reservations of the pool's models, in bytes."""

    def __init__(self, capacity: int) -> None:
        self.ledger = Ledger(capacity)
        self._freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reserve(self, name: str, need: int) -> Refusal | None:
        """Promise `need` bytes to `name`, or return why not."""
        refusal = self.ledger.refusal(name, need)
        if refusal is None:
            self.ledger = self.ledger.with_(name, need)
        return refusal

    def release(self, name: str) -> None:
        """Take back what `name` has; those who wait look again."""
        self.ledger = self.ledger.without(name)
        freed, self._freed = self._freed, asyncio.get_running_loop().create_future()
        freed.set_result(None)

    def freed(self) -> asyncio.Future[None]:
        """Return what is done when somebody gives memory back after this call.

        Not a coroutine: one would look only at its first step, and miss a release before that.
        """
        return asyncio.shield(self._freed)

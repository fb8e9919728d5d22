"""A model's queue: requests that wait, and requests that hold a slot. Its actor is the only one to change
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from modeld.errors import ModeldError
from modeld.supervisor import admission
from modeld.supervisor.admission import Priority


class Ticket:
    """A request's place: waiting, then holding a slot, then neither. `close` gives back what it has."""

    def __init__(self, leave: Callable[[Ticket], None], priority: Priority) -> None:
        self._leave = leave
        self.priority = priority
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Leave the queue or give the slot back; safe to call twice."""
        self._leave(self)


class Tickets:
    """Who waits and who is served."""

    def __init__(self) -> None:
        self._waiting: list[Ticket] = []
        self._holding: set[Ticket] = set()

    @property
    def in_flight(self) -> int:
        """Requests that hold a slot."""
        return len(self._holding)

    @property
    def queued(self) -> int:
        """Requests that wait for a slot or for the model."""
        return len(self._waiting)

    def wait(self, ticket: Ticket) -> None:
        """Put a ticket at the end of the queue."""
        self._waiting.append(ticket)

    def grant(self, ticket: Ticket) -> None:
        """Give a ticket a slot."""
        self._holding.add(ticket)
        if not ticket.granted.done():
            ticket.granted.set_result(None)

    def admit(self, slots: int) -> None:
        """Grant slots to those who wait, next in line first, until `slots` are held."""
        while self._waiting and len(self._holding) < slots:
            at = admission.next_in_line(tuple(ticket.priority for ticket in self._waiting))
            assert at is not None
            self.grant(self._waiting.pop(at))

    def leave(self, ticket: Ticket) -> bool:
        """Take back a ticket's slot or place; tell whether a slot came free."""
        if ticket in self._holding:
            self._holding.discard(ticket)
            return True
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            ticket.granted.cancel()
        return False

    def refuse_waiting(self, error: ModeldError) -> None:
        """Fail everybody in the queue; those who hold a slot learn it from their call."""
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not ticket.granted.done():
                ticket.granted.set_exception(error)
                ticket.granted.exception()  # the request may have left already: nobody need look

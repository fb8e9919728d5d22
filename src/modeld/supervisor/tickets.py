"""A model's queue: requests that wait, and requests that hold a slot of one of its replicas.

The deployment is the only one to change it. Requests carry a pool-wide sequence number, and wait in its
order: a request that is put back (its worker died before it got anything) keeps its place.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from modeld.errors import ModeldError
from modeld.supervisor import admission
from modeld.supervisor.admission import Priority

if TYPE_CHECKING:
    from modeld.supervisor.replica import Replica


class Home(Protocol):
    """Whose queue it is."""

    def leave(self, ticket: Ticket) -> None:
        """Take back what the ticket has."""
        ...


class Ticket:
    """A request's place: waiting, then holding a slot, then neither. `close` gives back what it has.

    `affinity` is a hash of what the request has in common with the turns before it. `replica` is whose slot
    it holds. `waited_since` is in monotonic seconds. A queue that is taken over by another deployment takes
    its tickets along: `home` changes. `give_way` cuts its call off so that its slot comes free; None for
    whoever keeps a slot once it has one. `leaving`: that was done.
    """

    __slots__ = (
        "affinity",
        "give_way",
        "granted",
        "home",
        "leaving",
        "priority",
        "replica",
        "seq",
        "waited_since",
    )

    def __init__(
        self,
        home: Home,
        priority: Priority,
        seq: int,
        *,
        affinity: int | None = None,
        now: float = 0.0,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        self.give_way = give_way
        self.leaving = False
        self.home = home
        self.priority = priority
        self.seq = seq
        self.affinity = affinity
        self.waited_since = now
        self.replica: Replica | None = None
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Leave the queue or give the slot back; safe to call twice."""
        self.home.leave(self)


class Tickets:
    """Who waits and who is served."""

    def __init__(self) -> None:
        self._waiting: list[Ticket] = []
        self._holding: set[Ticket] = set()
        self._passed = 0

    @property
    def in_flight(self) -> int:
        """Requests that hold a slot."""
        return len(self._holding)

    @property
    def queued(self) -> int:
        """Requests that wait for a slot or for the model."""
        return len(self._waiting)

    @property
    def yielding(self) -> int:
        """Requests, waiting or served, that make way for an interactive one and have not yet."""
        tickets = (*self._waiting, *self._holding)
        return sum(ticket.give_way is not None and not ticket.leaving for ticket in tickets)

    @property
    def only_yielding(self) -> bool:
        """Whether some wait, and all of them make way for others."""
        return bool(self._waiting) and all(ticket.give_way is not None for ticket in self._waiting)

    @property
    def oldest(self) -> int | None:
        """The sequence number of the oldest request that waits."""
        return self._waiting[0].seq if self._waiting else None

    def wait(self, ticket: Ticket) -> None:
        """Put a ticket into the queue, in the order of sequence numbers."""
        insort(self._waiting, ticket, key=lambda waiting: waiting.seq)

    def hold(self, ticket: Ticket, replica: Replica) -> None:
        """Give a ticket a slot of `replica`."""
        self._holding.add(ticket)
        ticket.replica = replica
        if not ticket.granted.done():
            ticket.granted.set_result(None)

    def admit(self, choose: Callable[[Ticket], Replica | None]) -> list[Ticket]:
        """Grant slots to those who wait, next in line first, until `choose` has none; return the granted."""
        granted = []
        while self._waiting:
            at = admission.next_in_line(tuple(ticket.priority for ticket in self._waiting), self._passed)
            assert at is not None
            ticket = self._waiting[at]
            replica = choose(ticket)
            if replica is None and at:
                # The next in line may be too late a request for a replica that others wait for; the oldest
                # one in the queue may not.
                at, ticket = 0, self._waiting[0]
                replica = choose(ticket)
            if replica is None and ticket.priority is not Priority.INTERACTIVE:
                # The slot may be one that is kept for people.
                people = (
                    place
                    for place, waiting in enumerate(self._waiting)
                    if waiting.priority is Priority.INTERACTIVE
                )
                if (first := next(people, None)) is not None:
                    at, ticket = first, self._waiting[first]
                    replica = choose(ticket)
            if replica is None:
                break
            del self._waiting[at]
            if any(waiting.priority < ticket.priority for waiting in self._waiting):
                ticket.give_way = None  # its turn has come, though others wait that usually go first
            background = any(waiting.priority is Priority.BACKGROUND for waiting in self._waiting)
            self._passed = self._passed + 1 if background and ticket.priority is Priority.INTERACTIVE else 0
            self.hold(ticket, replica)
            granted.append(ticket)
        return granted

    def make_way(self) -> None:
        """Cut a call off that yields its slot, if an interactive request waits that no slot is promised."""
        yielding = {
            ticket.seq: ticket
            for ticket in self._holding
            if ticket.give_way is not None and not ticket.leaving
        }
        if not yielding:
            return
        waiting = sum(ticket.priority is Priority.INTERACTIVE for ticket in self._waiting)
        leaving = sum(ticket.leaving for ticket in self._holding)
        chosen = admission.gives_way(waiting, leaving, tuple(yielding))
        if chosen is not None:
            self._cut(yielding[chosen])

    def jobs_on(self, replica: Replica) -> int:
        """Return how many calls on a replica yield their slots."""
        return sum(ticket.replica is replica and ticket.give_way is not None for ticket in self._holding)

    def clear(self, replica: Replica) -> None:
        """Cut off the calls on a replica that yield their slots."""
        for ticket in tuple(self._holding):
            if ticket.replica is replica and ticket.give_way is not None and not ticket.leaving:
                self._cut(ticket)

    @staticmethod
    def _cut(ticket: Ticket) -> None:
        ticket.leaving = True
        assert ticket.give_way is not None
        ticket.give_way()

    def leave(self, ticket: Ticket) -> bool:
        """Take back a ticket's slot or place; tell whether a slot came free."""
        if ticket in self._holding:
            self._holding.discard(ticket)
            return True
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            ticket.granted.cancel()
        return False

    def hand_over(self, to: Tickets, home: Home) -> None:
        """Move those who wait to another queue, whose owner is `home`."""
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.home = home
            to.wait(ticket)

    def refuse_waiting(self, error: ModeldError) -> None:
        """Fail everybody in the queue; those who hold a slot learn it from their call."""
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not ticket.granted.done():
                ticket.granted.set_exception(error)
                ticket.granted.exception()  # the request may have left already: nobody need look

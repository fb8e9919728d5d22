"""Which responses of a connection may run, and which wait. No I/O.

Those of a lane follow one another in the order in which they were asked for; lanes do not wait for each
other, up to a bound on all that run. What may run next is taken from the lanes in turn.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from modeld.errors import BadRequest, Overloaded

MOST_RUNNING = 16
"""Responses of one connection that are in flight; more of them wait."""

MOST_NAMED = 32
"""Different names of lanes on one connection, over its whole life; the one without a name is not counted."""

MOST_WAITING = 1024
"""Requests of one connection that wait."""

Work = TypeVar("Work")


class _Waiting(NamedTuple, Generic[Work]):
    work: Work
    size: int


class Lanes(Generic[Work]):
    """The lanes of one connection. A lane's name is a text, or None for the one without."""

    def __init__(
        self,
        most_bytes: int,
        *,
        most_running: int = MOST_RUNNING,
        most_named: int = MOST_NAMED,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """`most_bytes`: of all that waits together; a single request may be as large as it likes."""
        self.running: set[str | None] = set()
        self.waiting = 0
        self._most_bytes, self._most_running = most_bytes, most_running
        self._most_named, self._most_waiting = most_named, most_waiting
        self._bytes = 0
        self._named: set[str] = set()
        self._queues: dict[str | None, deque[_Waiting[Work]]] = {}
        self._turns: deque[str | None] = deque()  # lanes whose next request may run

    def add(self, lane: str | None, work: Work, size: int) -> None:
        """Take in a request of `size` bytes, behind the others of its lane.

        Raises BadRequest for one name too many, Overloaded when too much waits; then nothing has changed.
        """
        if lane is not None and lane not in self._named and len(self._named) >= self._most_named:
            raise BadRequest(
                "This connection has reached the maximum number of distinct stream IDs "
                f"({self._most_named}); use one of them again, or open another connection.",
                code="websocket_stream_limit_reached",
                param="stream_id",
            )
        if self.waiting >= self._most_waiting or (self.waiting and self._bytes + size > self._most_bytes):
            raise Overloaded(
                f"{self.waiting} requests with {self._bytes} bytes wait on this connection, the limits are "
                f"{self._most_waiting} and {self._most_bytes}; wait for answers before you ask for more",
                code="websocket_queue_full",
            )
        if lane is not None:
            self._named.add(lane)
        queue = self._queues.get(lane)
        if queue is None:
            queue = self._queues[lane] = deque()
            if lane not in self.running:
                self._turns.append(lane)
        queue.append(_Waiting(work, size))
        self.waiting += 1
        self._bytes += size

    def start(self) -> list[tuple[str | None, Work]]:
        """Return the requests that are to run from now on, with their lanes; each needs an `end`."""
        begun: list[tuple[str | None, Work]] = []
        while self._turns and len(self.running) < self._most_running:
            lane = self._turns.popleft()
            queue = self._queues[lane]
            work, size = queue.popleft()
            if not queue:
                del self._queues[lane]
            self.running.add(lane)
            self.waiting -= 1
            self._bytes -= size
            begun.append((lane, work))
        return begun

    def end(self, lane: str | None) -> None:
        """Note that the running request of a lane is over; the lane's next one lines up behind the others."""
        self.running.remove(lane)
        if lane in self._queues:
            self._turns.append(lane)

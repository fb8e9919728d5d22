"""What a connection remembers: the newest response of each lane, so that what is not stored can go on.

No I/O. It is gone with the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modeld.gateway.encoding import dumps
from modeld.responses.history import Items


@dataclass(frozen=True, slots=True)
class _Entry:
    id: str
    items: Items | None
    """None: they are in the store, which is asked."""

    size: int


def measure(items: Items) -> int:
    """Return the bytes of items as JSON text."""
    return len(dumps(items)) if items else 0


class ConnectionMemory:
    """The newest response of each lane, within `most_bytes` of items in all."""

    def __init__(self, most_bytes: int, measure: Callable[[Items], int] = measure) -> None:
        self.bytes = 0
        self._most_bytes = most_bytes
        self._measure = measure
        self._lanes: dict[str | None, _Entry] = {}  # the newest last

    def recall(self, id: str) -> Items | None:
        """Return all items up to a response's last; None when they are not here."""
        for entry in self._lanes.values():
            if entry.id == id:
                return entry.items
        return None

    def remember(self, lane: str | None, id: str, before: Items, more: Items, *, stored: bool) -> None:
        """Put a response in the place of its lane's last one. `before` are the items that it goes on from.

        Of one that is `stored` the id is enough: who deletes it there must not find it here. Where there is
        no room, lanes that have been silent for long are forgotten; what is larger than all room is not kept.
        """
        size = 0 if stored else self._size(before) + self._measure(more)
        self._forget(lane)
        if size > self._most_bytes:
            return
        while self.bytes + size > self._most_bytes:
            self._forget(next(silent for silent, entry in self._lanes.items() if entry.size))
        self._lanes[lane] = _Entry(id, None if stored else (*before, *more), size)
        self.bytes += size

    def failed(self, lane: str | None, previous: str | None) -> None:
        """Note that a response which went on from `previous` has failed, or was refused.

        The lane's own last response is forgotten by that; another lane's is not.
        """
        entry = self._lanes.get(lane)
        if entry is not None and entry.id == previous:
            self._forget(lane)

    def _size(self, items: Items) -> int:
        """Return the bytes of items; of those that are remembered they are known."""
        for entry in self._lanes.values():
            if entry.items is items:
                return entry.size
        return self._measure(items)

    def _forget(self, lane: str | None) -> None:
        entry = self._lanes.pop(lane, None)
        if entry is not None:
            self.bytes -= entry.size

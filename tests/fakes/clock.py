"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """`modeld.clock.Clock` by hand. `monotonic` and `time` move together, from different origins."""

    def __init__(self, now: float = 1000.0, epoch: float = 1_700_000_000.0) -> None:
        self._now = now
        self._offset = epoch - now

    def monotonic(self) -> float:
        """Return the seconds set so far."""
        return self._now

    def time(self) -> float:
        """Return the seconds since the epoch set so far."""
        return self._now + self._offset

    def advance(self, seconds: float) -> None:
        """Move on; a clock never goes back."""
        assert seconds >= 0
        self._now += seconds

"""Time as a constructor argument, so that tests decide what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the pure rooms never see and the acting rooms are given."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps; only differences mean anything."""
        ...

    def time(self) -> float:
        """Return seconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

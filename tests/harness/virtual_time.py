"""An event loop whose time is counted, not measured: a test on it goes the same way on any machine.

For tests that draw what happens from a seed and have no process, socket or thread of their own. Time moves by
`TICK_S` with each turn of the loop, and jumps to the next timer when nothing else is to be done; so a
time-out is a number of turns, whatever the machine does meanwhile.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

START_S = 1000.0

TICK_S = 0.000_1
"""What a turn of the loop takes; about what one takes in the daemon."""

STUCK_S = 60.0
"""Real seconds after which a loop that nothing can wake is given up."""

MOST_S = 3600.0
"""Virtual seconds after which one is given up: something looks now and then for what never comes."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's loop in virtual time; it is also the `modeld.clock.Clock` of what runs on it.

    Work for a thread is done at once, in the loop: a thread's end would be an event in real time.
    """

    def __init__(self) -> None:
        self._selector_of_turns = _Selector()
        super().__init__(self._selector_of_turns)

    def time(self) -> float:
        """Return the seconds counted so far."""
        return self._selector_of_turns.now

    monotonic = time

    def run_in_executor(  # type: ignore[override]  # the future is there at once
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `func` now and return its result as a future."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class _Selector(selectors.DefaultSelector):
    """Counts the turns of a loop, and does not sleep until a timer: it goes there."""

    now = START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(STUCK_S if timeout is None else 0)
        if timeout is None and not ready:
            raise RuntimeError("nothing is left that could wake this loop")
        self.now += max(timeout or 0.0, TICK_S) if not ready else TICK_S
        if self.now > START_S + MOST_S:
            raise RuntimeError(f"this loop has gone on for {MOST_S:g} virtual seconds")
        return ready

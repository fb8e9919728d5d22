"""Signals as events: the first asks for a stop, the second for a stop at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class StopSignals:
    """What signals have asked for so far.

    `stop` is set by the first SIGTERM or SIGINT (or `request`), `force` by the second of either; `cause`
    names the first, e.g. "SIGTERM".
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self.cause: str | None = None

    def request(self, cause: str) -> None:
        """Ask for a stop, or, when one is under way, for a stop at once."""
        if self.stop.is_set():
            self.force.set()
            return
        self.cause = cause
        self.stop.set()


@contextmanager
def stop_signals(on_hangup: Callable[[], None] | None = None) -> Iterator[StopSignals]:
    """Turn SIGTERM and SIGINT into events of the running loop until the block ends; the main thread only.

    SIGHUP calls `on_hangup`. Without one it is the terminal going away and asks for a stop like SIGTERM,
    unless the process was started to ignore it (nohup). The handlers found on entry are put back.
    """
    loop = asyncio.get_running_loop()
    state = StopSignals()
    before: dict[signal.Signals, _Handler] = {}

    def take(number: signal.Signals, handler: Callable[[], None]) -> None:
        before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, handler)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            take(number, lambda name=number.name: state.request(name))  # type: ignore[misc]
        if on_hangup is not None:
            take(signal.SIGHUP, on_hangup)
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            take(signal.SIGHUP, lambda: state.request("SIGHUP"))
        yield state
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: set from outside Python, so it cannot be put back
                signal.signal(number, handler)

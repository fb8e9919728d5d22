"""What is wanted of a replica, and the interrupting of whatever it awaits when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class ChangedMind(Exception):
    """Nobody wants any more what was awaited."""


class Intent:
    """Whether a replica is wanted up, and whether it shall go down and up `again` first.

    `why` is the cause (a word) and the reason (words for people) of the last wish to go down, `drain_s` the
    seconds that open requests get then.
    """

    def __init__(self, drain_s: float) -> None:
        self.wanted = False
        self.again = False
        self.why = ("asked", "unloaded")
        self.drain_s = drain_s
        self._nudge = asyncio.Event()

    @property
    def changed(self) -> bool:
        """Whether the present life is not wanted any more."""
        return not self.wanted or self.again

    def nudge(self) -> None:
        """Let whoever awaits something look at the intent again."""
        self._nudge.set()

    async def until_wanted(self) -> None:
        """Wait until it is wanted up."""
        while not self.wanted:
            self._nudge.clear()
            await self._nudge.wait()

    async def unless_changed(self, doing: Awaitable[T]) -> T:
        """Await `doing`; when somebody changes his mind first, cancel it and raise ChangedMind.

        It has always begun by then, so that what it took (a claim, say) is given back by its own hand.
        """
        task: asyncio.Future[T] = asyncio.ensure_future(doing)
        try:
            while not task.done():
                if self.changed:
                    # Cancelled before its first step it would not clean up after itself.
                    await asyncio.sleep(0)
                    if task.done():
                        break  # what it has got is the caller's to give back
                    raise ChangedMind
                self._nudge.clear()
                nudged = asyncio.ensure_future(self._nudge.wait())
                try:
                    either: set[asyncio.Future[Any]] = {task, nudged}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    nudged.cancel()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():
                    task.exception()  # how it failed on its way out is no news to anybody

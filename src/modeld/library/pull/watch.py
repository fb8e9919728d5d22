"""Who is interested in a pull may watch it: the pulls that are under way, by what they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from modeld.errors import LoadFailed
from modeld.library.pull.client import Hear, Progress

OVER = frozenset({"done", "failed", "stopped"})
"""Stages that nothing comes after, beside those of `Progress`; of a failed pull `why` says why it failed."""

BEGUN = Progress("waiting", 0, None)


@dataclass(eq=False)
class _Pull:
    holders: int = 0
    now: Progress = BEGUN
    watchers: set[asyncio.Event] = field(default_factory=set)

    def tell(self, now: Progress) -> None:
        self.now = now
        for watcher in self.watchers:
            watcher.set()


class Watch:
    """One watcher of one pull. It sees the newest progress, and what it was too slow for it does not see."""

    def __init__(self, pull: _Pull) -> None:
        self._pull = pull
        self._wake = asyncio.Event()
        self._wake.set()
        pull.watchers.add(self._wake)

    @classmethod
    def of(cls, now: Progress) -> Watch:
        """Return a watch of what does not change any more."""
        return cls(_Pull(now=now))

    def leave(self) -> None:
        """Take no more news."""
        self._pull.watchers.discard(self._wake)

    async def next(self, timeout: float) -> Progress | None:
        """Wait at most `timeout` seconds for news; None when there are none. The first news are there."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        if not self._wake.is_set():
            return None
        self._wake.clear()
        return self._pull.now


class Pulls:
    """The pulls of one daemon. Several of the same reference count as one."""

    def __init__(self) -> None:
        self._pulls: dict[str, _Pull] = {}

    @contextmanager
    def doing(self, reference: str) -> Iterator[Hear]:
        """Enter a pull for as long as the block lasts; give what hears its progress."""
        pull = self._pulls.setdefault(reference, _Pull())
        pull.holders += 1
        stage, why = "stopped", ""
        try:
            yield pull.tell
            stage = "done"
        except LoadFailed as error:
            stage, why = "failed", str(error)
            raise
        finally:
            pull.holders -= 1
            if not pull.holders:  # one of several that gives up is not the end
                del self._pulls[reference]
                pull.tell(_ended(pull.now, stage, why or None))

    @contextmanager
    def watch(self, reference: str) -> Iterator[Watch | None]:
        """Watch a pull that is under way, until it is over; None when there is none."""
        pull = self._pulls.get(reference)
        if pull is None:
            yield None
            return
        watch = Watch(pull)
        try:
            yield watch
        finally:
            watch.leave()


def _ended(now: Progress, stage: str, why: str | None) -> Progress:
    """Return the last progress: of a pull that is done all bytes are here, of another those that came."""
    done = now.total or now.done if stage == "done" else now.done
    return replace(now, stage=stage, done=done, file=None, why=why)

"""What a daemon's workers take and how many they are, looked at from outside while something runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import psutil

MIB = 1024**2
WORKER = 28 * MIB
"""A worker's own memory, beside its model's."""

LOOK_S = 0.02
"""Seconds between two looks."""


def workers_of(daemon: int) -> list[psutil.Process]:
    """Return the workers that are a daemon's children; one that has not yet become a worker is none."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(daemon).children():
            with contextlib.suppress(psutil.Error):
                if "modeld.worker" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
    return found


@dataclass
class Seen:
    """What was seen: the most bytes that all workers' trees held at once, every worker's pid, looks taken."""

    peak: int = 0
    most: int = 0
    pids: set[int] = field(default_factory=set)
    looks: int = 0

    def look(self, daemon: int) -> None:
        """Look once."""
        workers = workers_of(daemon)
        total = 0
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                for process in (worker, *worker.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        total += process.memory_info().rss
        self.peak = max(self.peak, total)
        self.most = max(self.most, len(workers))
        self.pids.update(worker.pid for worker in workers)
        self.looks += 1


@contextlib.asynccontextmanager
async def watched(daemon: int) -> AsyncIterator[Seen]:
    """Look at a daemon's workers for as long as the context lasts."""
    seen = Seen()

    async def looking() -> None:
        while True:
            await asyncio.to_thread(seen.look, daemon)
            await asyncio.sleep(LOOK_S)

    task = asyncio.ensure_future(looking())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


@contextlib.contextmanager
def held(pid: int | None) -> Iterator[None]:
    """Stop a process (SIGSTOP) for as long as the context lasts: what it does is not over before its end,
    however slow the machine that runs the test. The daemon takes a stopped worker for dead after a minute.
    """
    assert pid is not None
    process = psutil.Process(pid)
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

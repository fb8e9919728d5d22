"""What is done about jobs every few seconds, whatever the models do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from modeld.errors import StoreFailed
from modeld.jobs.queue import Queue
from modeld.store.job_records import Depth

_log = logging.getLogger("modeld.jobs")

BEAT_S = 5.0
"""Seconds between two rounds."""

SWEEP_S = 60.0
"""Seconds between two rounds of clearing away."""


async def upkeep(queue: Queue, kinds: Iterable[str], busy: Callable[[], bool]) -> None:
    """Write the heartbeat, end what is overdue, clear away what has expired, count what waits; for ever.

    `busy`: whether anything is being worked on.
    """
    clock, store, swept = queue.clock, queue.store, -SWEEP_S
    kinds = tuple(kinds)
    while True:
        try:
            if busy():
                await store.beat()
            for job in await store.overdue(clock.time(), queue.limits.keep_s):
                queue.ended(job)
                queue.cut(job.key)
            if clock.monotonic() - swept >= SWEEP_S:
                swept = clock.monotonic()
                await store.sweep(clock.time())
            depths, now = await store.depth(), clock.time()
            for kind in kinds:
                depth = depths.get(kind, Depth())
                age = 0.0 if depth.oldest is None else now - depth.oldest
                queue.metrics.jobs_seen(kind, depth.pending, depth.processing, depth.waiting, age)
        except StoreFailed as failure:
            _log.warning("upkeep of the jobs: %s", failure)
        await asyncio.sleep(BEAT_S)

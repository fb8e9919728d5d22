"""The room put together: the queue, the runner, and the routes in the gateway's application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from modeld.clock import Clock
from modeld.gateway import routing
from modeld.jobs.limits import JobLimits
from modeld.jobs.mass import results
from modeld.jobs.mass import routes as mass
from modeld.jobs.ports import Kind, Pool
from modeld.jobs.queue import Queue
from modeld.jobs.runner import Runner
from modeld.store.jobs import Jobs


@dataclass(frozen=True)
class Room:
    """What others need: who submits, the queue; who stops the daemon, the runner."""

    queue: Queue
    runner: Runner


@asynccontextmanager
async def serving_jobs(
    app: web.Application,
    store: Jobs,
    pool: Pool,
    limits: JobLimits,
    clock: Clock,
    more: Mapping[str, Kind] | None = None,
) -> AsyncIterator[Room]:
    """Take jobs in and do them for as long as the block lasts; `more` are kinds beside MASS's."""
    kinds = results.kinds(clock.monotonic) | dict(more or {})
    async with (
        Queue(store, limits, clock, app[routing.KEY].metrics) as queue,
        Runner(queue, pool, kinds) as runner,
    ):
        mass.add_routes(app, queue)
        yield Room(queue, runner)

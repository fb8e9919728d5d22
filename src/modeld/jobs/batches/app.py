"""Files and batches put together with the rest of the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from modeld.clock import Clock
from modeld.errors import StartupError
from modeld.gateway import routing
from modeld.jobs import app as jobs
from modeld.jobs.batches import routes
from modeld.jobs.batches.keeper import Keeper
from modeld.jobs.batches.lines import Lines
from modeld.jobs.batches.records import KIND
from modeld.jobs.files import routes as files
from modeld.jobs.files.limits import FileLimits
from modeld.jobs.files.shelf import Shelf
from modeld.jobs.limits import JobLimits
from modeld.jobs.ports import Pool
from modeld.store.batches import Batches
from modeld.store.db import Database
from modeld.store.files import Files
from modeld.store.jobs import Jobs


@asynccontextmanager
async def serving_jobs_and_batches(
    app: web.Application,
    database: Database,
    owner: str,
    pool: Pool,
    limits: JobLimits,
    file_limits: FileLimits,
    folder: Path,
    clock: Clock,
) -> AsyncIterator[jobs.Room]:
    """Serve jobs, files and batches for as long as the block lasts; files lie in `folder`.

    The application has the Responses API when the first batch for it runs. Raises StartupError, StoreFailed.
    """
    try:
        shelf = Shelf(folder)
    except OSError as error:
        raise StartupError(f"cannot use {folder} for files: {error.strerror or error}; fix that") from error
    room = files.Room(Files(database), shelf, file_limits, clock, app[routing.KEY].metrics)
    kinds = {KIND: Lines(app, shelf)}
    async with (
        jobs.serving_jobs(app, Jobs(database, owner), pool, limits, clock, kinds) as served,
        Keeper(served.queue, Batches(database), room, app[routing.KEY]) as keeper,
    ):
        files.add_routes(app, room)
        routes.add_routes(app, keeper)
        yield served

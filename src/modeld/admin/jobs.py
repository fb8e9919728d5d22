"""Jobs on the admin socket.

Routes: GET /jobs (`?limit=N`, `?unfinished=1`) · GET /jobs/{id} · POST /jobs/{id}/cancel ·
GET /jobs/{id}/follow (NDJSON: the job as it is, and again as its items end).
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from modeld.admin.ports import Jobs
from modeld.admin.schemas import JobReport, JobsReply
from modeld.admin.stream import Stream
from modeld.errors import BadRequest, NotFound
from modeld.store.job_records import ItemFailure, Job

MOST_FAILURES = 20
"""Failed items that a job is shown with."""

MOST_JOBS = 10_000

_JOBS: web.AppKey[Jobs] = web.AppKey("jobs")


def add_routes(app: web.Application, jobs: Jobs) -> None:
    """Register the routes."""
    app[_JOBS] = jobs
    app.router.add_get("/jobs", _list)
    app.router.add_get("/jobs/{id}", _show)
    app.router.add_post("/jobs/{id}/cancel", _cancel)
    app.router.add_get("/jobs/{id}/follow", _follow)


def report(job: Job, failures: list[ItemFailure] | None = None) -> JobReport:
    """Return a job as the socket tells of it."""
    return JobReport(
        id=job.id,
        caller=job.identity,
        kind=job.kind,
        model=job.model,
        status=job.status,
        items=job.items,
        waiting=job.waiting,
        done=job.done,
        failed=job.failed,
        created=job.created,
        begun=job.begun,
        ended=job.ended,
        deadline=job.deadline,
        expires=job.expires,
        code=job.code,
        error=job.error,
        failures=tuple(failures or ()),
    )


async def _list(request: web.Request) -> web.StreamResponse:
    limit, unfinished = request.query.get("limit", "50"), request.query.get("unfinished", "0")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MOST_JOBS):
        raise BadRequest(f"limit is a number from 1 to {MOST_JOBS}, not {limit[:20]!r}", param="limit")
    if unfinished not in ("0", "1"):
        raise BadRequest(f"unfinished must be 0 or 1, not {unfinished[:20]!r}", param="unfinished")
    found = await request.app[_JOBS].newest(int(limit), unfinished=unfinished == "1")
    return _json(JobsReply(tuple(report(job) for job in found)))


async def _show(request: web.Request) -> web.StreamResponse:
    return _json(await _found(request))


async def _cancel(request: web.Request) -> web.StreamResponse:
    jobs, id = request.app[_JOBS], request.match_info["id"]
    if not await jobs.cancel(None, id):
        job = await jobs.get(None, id)
        if job is None:
            raise _unknown(id)
        raise BadRequest(f"the job {id} cannot be cancelled: it is over ({job.status})", code="job_is_over")
    return _json(await _found(request))


async def _follow(request: web.Request) -> web.StreamResponse:
    await _found(request)
    async with Stream(request) as stream:
        last = None
        async for job in request.app[_JOBS].follow(None, request.match_info["id"]):
            last = report(job, await request.app[_JOBS].failures(job, MOST_FAILURES) if job.over else None)
            await stream.write(last)
    return stream.response


async def _found(request: web.Request) -> JobReport:
    jobs, id = request.app[_JOBS], request.match_info["id"]
    job = await jobs.get(None, id)
    if job is None:
        raise _unknown(id)
    return report(job, await jobs.failures(job, MOST_FAILURES))


def _unknown(id: str) -> NotFound:
    return NotFound(
        f"there is no job {id[:100]!r}, or it has expired; `modeld ctl jobs list` shows those there are",
        code="job_not_found",
    )


def _json(body: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")

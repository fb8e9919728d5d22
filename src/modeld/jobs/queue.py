"""Jobs come in here, and here one asks how they stand."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from types import TracebackType

import msgspec

from modeld.clock import Clock
from modeld.errors import Overloaded, StoreFailed
from modeld.jobs import idempotency
from modeld.jobs.limits import JobLimits
from modeld.store.job_records import Added, ItemFailure, Job, JobDraft
from modeld.store.jobs import Jobs
from modeld.telemetry.metrics import Metrics

_log = logging.getLogger("modeld.jobs")

AT_ONCE = 500
"""Submissions that go into one transaction; the others wait for the next."""

GATHER_S = 0.003
"""Seconds for more submissions to come, where they come side by side."""


class _Submission:
    __slots__ = ("draft", "stored")

    def __init__(self, draft: JobDraft) -> None:
        self.draft = draft
        self.stored: asyncio.Future[Added] = asyncio.get_running_loop().create_future()


class _Watch:
    """Somebody who waits for news of a job."""

    __slots__ = ("news", "steps")

    def __init__(self, steps: bool) -> None:
        self.steps = steps
        self.news = asyncio.Event()


class Queue:
    """All jobs; a context manager that owns the task which stores them.

    Callers see their own jobs only: `identity` None is the owner of the daemon, who sees all. What is waiting
    is on the disk; in memory there is only who waits for news.
    """

    def __init__(self, store: Jobs, limits: JobLimits, clock: Clock, metrics: Metrics) -> None:
        self.store = store
        self.limits = limits
        self.clock = clock
        self.metrics = metrics
        self.fresh: set[str] = set()
        """Models for which something has come since the runner last looked."""

        self.work = asyncio.Event()
        """Set with `fresh`."""

        self.cut: Callable[[int], None] = lambda job: None
        """Told the key of a job whose items at work are to be cut off."""

        self.unfinished = 0
        self._submissions: list[_Submission] = []
        self._asked = asyncio.Event()
        self._watches: defaultdict[str, set[_Watch]] = defaultdict(set)
        self._writer: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Queue:
        """Count what is there. Raises StoreFailed."""
        depths = (await self.store.depth()).values()
        self.unfinished = sum(depth.pending + depth.processing for depth in depths)
        if self.unfinished:
            _log.info("%d jobs of an earlier life are unfinished and go on", self.unfinished)
        await self._group.__aenter__()
        self._writer = self._group.create_task(self._write())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take nothing more in."""
        if self._writer is not None:
            self._writer.cancel()
        for submission in self._submissions:
            submission.stored.cancel()
        await self._group.__aexit__(None, None, None)

    # --- in -------------------------------------------------------------------------------------------------

    async def submit(self, draft: JobDraft) -> Added:
        """Store a job; it is safe when this returns. A draft without a deadline gets the configured one.

        Cancelled before that, it leaves nothing behind. Several that come together share one transaction. One
        with a token that its caller has used for the same is the job of then. Raises Overloaded, StoreFailed,
        and Conflict when the token was used for something else.
        """
        assert draft.requests, "a job has items"
        if self.unfinished >= self.limits.most:
            raise Overloaded(
                f"{self.unfinished} jobs are unfinished, the limit is {self.limits.most} "
                "(jobs.unfinished in the configuration)",
                code="too_many_jobs",
                retry_after=10.0,
            )
        if draft.deadline is None and self.limits.patience_s is not None:
            draft = msgspec.structs.replace(draft, deadline=draft.created + self.limits.patience_s)
        submission = _Submission(draft)
        self._submissions.append(submission)
        self._asked.set()
        added = await submission.stored
        if added.conflict:
            raise idempotency.used_before(draft.token)
        return added

    async def _write(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._submissions:
                batch = [one for one in self._submissions[:AT_ONCE] if not one.stored.done()]
                del self._submissions[:AT_ONCE]
                if batch:
                    await self._store(batch)
                if len(batch) > 1:  # who comes alone need not wait for others
                    await asyncio.sleep(GATHER_S)

    async def _store(self, batch: list[_Submission]) -> None:
        try:
            added = await self.store.add([one.draft for one in batch])
        except StoreFailed as failure:
            for one in batch:
                if not one.stored.done():
                    one.stored.set_exception(StoreFailed(failure.message))
            return
        except asyncio.CancelledError:
            for one in batch:
                one.stored.cancel()
            raise
        wanted = {entry.id for one, entry in zip(batch, added, strict=True) if not one.stored.done()}
        for one, entry in zip(batch, added, strict=True):
            if entry.new and entry.id not in wanted:  # who asked has left, and nobody else knows of it
                await self._withdraw(entry)
                continue
            if entry.new:
                self.unfinished += 1
                self.fresh.add(one.draft.model)
            if not one.stored.done():
                one.stored.set_result(entry)
        if self.fresh:
            self.work.set()

    async def _withdraw(self, entry: Added) -> None:
        try:
            await self.store.withdraw(entry.key)
        except StoreFailed as failure:
            _log.warning("a job that nobody waits for could not be withdrawn: %s", failure)
            self.unfinished += 1

    # --- how they stand -------------------------------------------------------------------------------------

    async def get(self, identity: str | None, id: str) -> Job | None:
        """Return a job, None when there is none of that id for this caller."""
        return await self.store.get(identity, id)

    async def newest(self, limit: int, *, unfinished: bool) -> list[Job]:
        """Return at most `limit` jobs of all callers, the newest first; with `unfinished` no others."""
        return await self.store.newest(limit, unfinished=unfinished)

    async def failures(self, job: Job, limit: int) -> list[ItemFailure]:
        """Return how items of a job failed, in order, at most `limit` of them."""
        return await self.store.failures(job.key, limit)

    async def wait(self, identity: str | None, id: str, timeout: float) -> Job | None:
        """Return a job when it is over, or as it is after `timeout` seconds; None as for `get`.

        Cancelling this cancels nothing else.
        """
        with _Watching(self._watches, id, steps=False) as watch:
            job = await self.store.get(identity, id)
            if job is None or job.over:
                return job
            try:
                async with asyncio.timeout(timeout):
                    await watch.news.wait()
            except TimeoutError:
                pass
            return await self.store.get(identity, id)

    async def follow(self, identity: str | None, id: str) -> AsyncIterator[Job]:
        """Give a job as it is, and again whenever items have ended, until it is over or gone."""
        with _Watching(self._watches, id, steps=True) as watch:
            while True:
                watch.news.clear()
                job = await self.store.get(identity, id)
                if job is None:
                    return
                yield job
                if job.over:
                    return
                await watch.news.wait()

    async def cancel(self, identity: str | None, id: str) -> bool:
        """End a job that is not over, queued or at work; False when there is no such job.

        What has ended of it stays. It is stored when this returns.
        """
        job = await self.store.cancel(identity, id, self.limits.keep_s)
        if job is None:
            return False
        self.ended(job)
        self.cut(job.key)
        return True

    async def release(self, id: str) -> None:
        """Let a job that is over and was held be kept as any other; its results are gone."""
        await self.store.release(id, self.limits.keep_s)

    # --- told by the runner ---------------------------------------------------------------------------------

    def moved(self, job: Job) -> None:
        """An item of a job has ended, perhaps its last."""
        if job.over:
            self.ended(job)
            return
        for watch in self._watches.get(job.id, ()):
            if watch.steps:
                watch.news.set()

    def ended(self, job: Job) -> None:
        """A job is over."""
        self.unfinished = max(self.unfinished - 1, 0)
        self.metrics.job_ended(job.kind, job.status)
        _tell(job)
        for watch in self._watches.get(job.id, ()):
            watch.news.set()


def _tell(job: Job) -> None:
    """Say in the log how a job ended."""
    spent = (job.ended or 0.0) - job.created
    text = "the job %s (%s, model %s) is %s after %.1f s: %d of %d items done, %d failed"
    facts = (job.id, job.kind, job.model, job.status, spent, job.done, job.items, job.failed)
    if job.error:
        _log.warning(f"{text}: %s", *facts, job.error)
    else:
        _log.info(text, *facts)


class _Watching:
    """A watch on a job's id for the length of a block."""

    def __init__(self, watches: defaultdict[str, set[_Watch]], id: str, *, steps: bool) -> None:
        self._watches = watches
        self._id = id
        self._watch = _Watch(steps)

    def __enter__(self) -> _Watch:
        self._watches[self._id].add(self._watch)
        return self._watch

    def __exit__(self, *_: object) -> None:
        watching = self._watches[self._id]
        watching.discard(self._watch)
        if not watching:
            del self._watches[self._id]

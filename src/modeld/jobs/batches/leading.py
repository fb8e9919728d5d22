"""Leads a batch from its beginning to its end, also when the daemon ends in between.

What a batch has come to is stored before the next step, and every step can be taken again: the check of the
input, the submission under the batch's own id, the wait for the job, the output.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec

from modeld.errors import Overloaded, StoreFailed
from modeld.gateway.encoding import dumps
from modeld.gateway.routing import Gateway
from modeld.jobs.batches.checking import Checked, checked
from modeld.jobs.batches.records import (
    KIND,
    OVER,
    Batch,
    Counts,
    Detail,
    Mistake,
    Mistakes,
    Record,
    counts_of,
)
from modeld.jobs.batches.writing import write
from modeld.jobs.files import routes as files
from modeld.jobs.queue import Queue
from modeld.store.batches import Batches, StoredBatch
from modeld.store.files import StoredFile
from modeld.store.job_records import Job, JobDraft

_log = logging.getLogger("modeld.jobs")

PAUSE_S = 5.0
"""Seconds after which a step is tried again that the disk or the store did not take."""

LOOK_S = 600.0
"""Seconds after which a job is looked at although there is no news of it."""


@dataclass(frozen=True)
class Desk:
    """What all leaders share. One batch at a time is checked (`checks`), and one is written (`outputs`)."""

    queue: Queue
    batches: Batches
    room: files.Room
    gateway: Gateway
    checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    outputs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


class Leader:
    """One batch that is not over. `turn` is held while its status changes."""

    def __init__(self, desk: Desk, identity: str, record: Record) -> None:
        self.identity = identity
        self._desk = desk
        self._record = record
        self._turn = asyncio.Lock()

    @property
    def batch(self) -> Batch:
        """It as callers see it."""
        return self._record.batch

    async def lead(self) -> None:
        """Lead it to its end. Raises nothing but cancellation."""
        while self.batch.status not in OVER:
            try:
                await self._step()
            except Overloaded as full:
                await asyncio.sleep(full.retry_after)
            except (StoreFailed, OSError) as failure:
                _log.warning("the batch %s waits: %s", self.batch.id, failure)
                await asyncio.sleep(PAUSE_S)
            except Exception:
                _log.exception("a defect of modeld in the batch %s", self.batch.id)
                await self._give_up()

    async def cancel(self) -> None:
        """Begin to cancel it, unless it is on its way to its end. Raises StoreFailed."""
        async with self._turn:
            if self.batch.status in ("validating", "in_progress"):
                # In this order: whoever leads it sees a cancelled job, should this be cut off in between.
                await self._desk.queue.cancel(None, self.batch.id)
                await self._become(status="cancelling", cancelling_at=self._now())

    async def _give_up(self) -> None:
        text = "modeld failed to do this batch; its log has the reason."
        try:
            async with self._turn:
                await self._fail([Mistake("internal_error", text)])
            await self._desk.queue.cancel(None, self.batch.id)
        except StoreFailed:
            await asyncio.sleep(PAUSE_S)

    # --- from step to step ----------------------------------------------------------------------------------

    async def _step(self) -> None:
        match self.batch.status:
            case "validating":
                await self._check()
            case "in_progress":
                await self._wait()
            case _:
                await self._finish()

    async def _check(self) -> None:
        desk, batch = self._desk, self.batch
        if self._now() >= (batch.expires_at or 0) and await desk.queue.get(None, batch.id) is None:
            async with self._turn:
                if self.batch.status == "validating":
                    await self._become(status="expired", expired_at=self._now())
            return
        if desk.queue.unfinished >= desk.queue.limits.most:  # it would be checked for nothing
            await asyncio.sleep(PAUSE_S)
            return
        async with desk.checks:
            found = await checked(desk.gateway, desk.room.shelf, self._record)
        async with self._turn:
            if self.batch.status != "validating":  # it was cancelled meanwhile
                return
            if found.mistakes:
                await self._fail(found.mistakes)
                return
            await self._submit(found)
            await self._become(
                status="in_progress",
                in_progress_at=self._now(),
                model=found.model,
                request_counts=Counts(total=len(found.requests)),
            )

    async def _submit(self, found: Checked) -> None:
        desk, batch = self._desk, self.batch
        if await desk.queue.get(None, batch.id) is not None:  # an earlier life has
            return
        await desk.queue.submit(
            JobDraft(
                id=batch.id,
                identity=self.identity,
                kind=KIND,
                model=found.key,
                requests=found.requests,
                created=desk.room.clock.time(),
                detail=dumps(Detail(batch.endpoint, self._record.gateway)),
                deadline=batch.expires_at,
                held=True,
            )
        )

    async def _wait(self) -> None:
        job = await self._desk.queue.wait(None, self.batch.id, LOOK_S)
        async with self._turn:
            if self.batch.status != "in_progress":
                return
            if job is None:
                await self._lose("its job was removed before they were written to a file")
            elif job.status == "cancelled":  # by the owner of the daemon
                await self._become(status="cancelling", cancelling_at=self._now())
            elif job.over:
                counts = counts_of(job)
                await self._become(status="finalizing", finalizing_at=self._now(), request_counts=counts)

    async def _finish(self) -> None:
        """Write the output of a batch whose job is over."""
        queue, batch = self._desk.queue, self.batch
        job = await queue.get(None, batch.id)
        if job is not None and not job.over:  # an earlier life ended before it could cancel it
            await queue.cancel(None, batch.id)
            return
        if job is None and batch.status == "finalizing":
            await self._lose("its job was removed before they were written to a file")
            return
        ended: dict[str, Any]
        if batch.status == "cancelling":
            ended = {"status": "cancelled", "cancelled_at": self._now()}
        elif job is not None and job.code == "expired":
            ended = {"status": "expired", "expired_at": self._now()}
        else:
            ended = {"status": "completed", "completed_at": self._now()}
        if job is None:  # it was cancelled before there was one
            await self._become(**ended)
            return
        async with self._desk.outputs:
            await self._write(job, ended)
        await queue.release(batch.id)

    async def _write(self, job: Job, ended: dict[str, Any]) -> None:
        room = self._desk.room
        try:
            written = await write(room, self._desk.queue.store, self.identity, self._record, job)
        except FileNotFoundError:
            if room.shelf.lent(self.batch.id).exists():
                raise
            await self._lose("the input, which has the names of its lines, was removed from the disk")
            return
        try:
            await self._become(written.files, **ended, **written.changes, request_counts=counts_of(job))
        except StoreFailed:
            written.drop(room.shelf)
            raise

    # --- its status -----------------------------------------------------------------------------------------

    async def _lose(self, why: str) -> None:
        await self._fail([Mistake("results_lost", f"The results of this batch are gone: {why}.")])

    async def _fail(self, mistakes: list[Mistake]) -> None:
        await self._become(status="failed", failed_at=self._now(), errors=Mistakes(mistakes))

    async def _become(self, written: tuple[StoredFile, ...] = (), **changes: Any) -> None:
        """Store how a batch stands from now on; only then it does. Raises StoreFailed."""
        desk, before = self._desk, self.batch.status
        batch = msgspec.structs.replace(self.batch, **changes)
        record = msgspec.structs.replace(self._record, batch=batch)
        keep_s = desk.room.limits.keep_s
        expires = None if keep_s is None else desk.room.clock.time() + keep_s
        await desk.batches.put(stored(self.identity, record, expires), written)
        self._record = record
        self._tell()
        desk.gateway.metrics.batch_moved(before, batch.status, over=batch.status in OVER)
        for file in written:
            desk.gateway.metrics.files_changed(file.purpose, 1, file.bytes)
        if batch.status in OVER:
            desk.room.shelf.remove(batch.id)

    def _tell(self) -> None:
        """Say in the log how far it is."""
        batch = self.batch
        counts, mistakes = batch.request_counts, batch.errors.data if batch.errors is not None else ()
        text = "the batch %s (%s, model %s) is %s: %d requests, %d done, %d failed"
        facts = (batch.id, batch.endpoint, batch.model, batch.status)
        numbers = (counts.total, counts.completed, counts.failed)
        if not mistakes:
            _log.info(text, *facts, *numbers)
        else:
            first = mistakes[0]
            where = "" if first.line is None else f"line {first.line}: "
            _log.warning(
                f"{text}; mistakes: %d, the first: %s%s",
                *facts,
                *numbers,
                len(mistakes),
                where,
                first.message,
            )

    def _now(self) -> int:
        return int(self._desk.room.clock.time())


def stored(identity: str, record: Record, expires: float | None) -> StoredBatch:
    """Return a batch as the store has it; it expires only when it is over."""
    over = record.batch.status in OVER
    return StoredBatch(record.batch.id, identity, dumps(record), over, expires if over else None)

"""Leads each batch from its beginning to its end, also when the daemon ends in between.

What a batch has come to is stored before the next step, and every step can be taken again: the check of the
input, the submission under the batch's own id, the wait for the job, the output.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from modeld.errors import Conflict, Overloaded, StoreFailed
from modeld.gateway.encoding import dumps
from modeld.gateway.routing import Gateway
from modeld.jobs import idempotency
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
from modeld.store.job_records import JobDraft
from modeld.store.tokens import Token

_log = logging.getLogger("modeld.jobs")

WINDOW_S = 86_400
"""Seconds that a batch may take."""

PAUSE_S = 5.0
"""Seconds after which a step is tried again that the disk or the store did not take."""

SWEEP_S = 60.0
LOOK_S = 600.0

_RECORD = msgspec.json.Decoder(Record)


class _Live:
    """A batch that is not over. `turn` is held while its status changes."""

    def __init__(self, identity: str, record: Record) -> None:
        self.identity = identity
        self.record = record
        self.turn = asyncio.Lock()

    @property
    def batch(self) -> Batch:
        """It as callers see it."""
        return self.record.batch


class Keeper:
    """All batches; a context manager that owns a task for each that is not over."""

    def __init__(self, queue: Queue, batches: Batches, room: files.Room, gateway: Gateway) -> None:
        self._queue = queue
        self._batches = batches
        self._room = room
        self._gateway = gateway
        self._live: dict[str, _Live] = {}
        self._intake = asyncio.Lock()
        """Held while a batch is stored, so that nobody is told of one that is taken back."""
        self._checks = asyncio.Semaphore(1)
        self._outputs = asyncio.Semaphore(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Keeper:
        """Go on with what an earlier life has left. Raises StoreFailed."""
        left = await self._batches.unfinished()
        known = await self._room.files.ids() | {stored.id for stored in left}
        await asyncio.to_thread(self._room.shelf.tidy, known)
        await self._group.__aenter__()
        for stored in left:
            self._lead_on(stored.identity, _RECORD.decode(stored.body))
        self._own(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave everything where it is, for the next life."""
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    # --- asked by callers -----------------------------------------------------------------------------------

    async def begin(self, identity: str, record: Record, token: Token | None = None) -> Batch:
        """Take a batch in; one with a token that its caller has used for the same is the batch of then.

        Raises Overloaded, StoreFailed, and Conflict when the token was used for something else.
        """
        most = self._queue.limits.most
        if len(self._live) >= most:
            raise Overloaded(
                f"{len(self._live)} batches are unfinished, the limit is {most} "
                "(jobs.unfinished in the configuration)",
                code="too_many_jobs",
                retry_after=10.0,
            )
        async with self._intake:
            try:
                added = await self._batches.add(_stored(identity, record, None), token)
            except BaseException:  # also when the client leaves: it never learns the id
                with suppress(StoreFailed):
                    await self._batches.withdraw(record.batch.id)
                raise
        if added.conflict:
            raise idempotency.used_before(None if token is None else token.name)
        if not added.new:
            return await self._seen(added.batch)
        return self._lead_on(identity, record).batch

    async def get(self, identity: str, id: str) -> Batch | None:
        """Return a batch as it stands; None when there is none of that id for this caller."""
        stored = await self._batches.get(identity, id)
        return None if stored is None else await self._seen(stored)

    async def page(self, identity: str, after: str | None, limit: int) -> list[Batch] | None:
        """Return batches, the newest first; None when there is no `after`."""
        page = await self._batches.page(identity, after, limit)
        return None if page is None else [await self._seen(stored) for stored in page]

    async def cancel(self, identity: str, id: str) -> Batch | None:
        """Begin to cancel a batch; None when there is none. Raises Conflict for one that is over."""
        live = self._live.get(id)
        if live is not None and live.identity == identity:
            async with live.turn:
                if live.batch.status in ("validating", "in_progress"):
                    # In this order: whoever leads it sees a cancelled job, should this be cut off in between.
                    await self._queue.cancel(None, id)
                    await self._become(live, status="cancelling", cancelling_at=self._now())
        batch = await self.get(identity, id)
        if batch is not None and batch.status not in ("cancelling", "cancelled"):
            text = f"Cannot cancel a batch with status '{batch.status}'."
            raise Conflict(text, code="batch_not_cancellable")
        return batch

    async def _seen(self, stored: StoredBatch) -> Batch:
        """Return a batch with the counts of this moment."""
        batch = _RECORD.decode(stored.body).batch
        if not stored.over and (job := await self._queue.get(None, stored.id)) is not None:
            batch.request_counts = counts_of(job)
        return batch

    # --- from step to step ----------------------------------------------------------------------------------

    def _own(self, work: Any) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lead_on(self, identity: str, record: Record) -> _Live:
        live = self._live[record.batch.id] = _Live(identity, record)
        self._own(self._lead(live))
        return live

    async def _lead(self, live: _Live) -> None:
        while live.batch.status not in OVER:
            try:
                await self._step(live)
            except Overloaded as full:
                await asyncio.sleep(full.retry_after)
            except (StoreFailed, OSError) as failure:
                _log.warning("the batch %s waits: %s", live.batch.id, failure)
                await asyncio.sleep(PAUSE_S)
            except Exception:
                _log.exception("a defect of modeld in the batch %s", live.batch.id)
                await self._give_up(live)
        del self._live[live.batch.id]

    async def _give_up(self, live: _Live) -> None:
        text = "modeld failed to do this batch; its log has the reason."
        try:
            await self._fail(live, [Mistake("internal_error", text)])
            await self._queue.cancel(None, live.batch.id)
        except StoreFailed:
            await asyncio.sleep(PAUSE_S)

    async def _step(self, live: _Live) -> None:
        match live.batch.status:
            case "validating":
                await self._check(live)
            case "in_progress":
                await self._wait(live)
            case _:
                await self._finish(live)

    async def _check(self, live: _Live) -> None:
        batch = live.batch
        if self._now() >= (batch.expires_at or 0) and await self._queue.get(None, batch.id) is None:
            await self._become(live, status="expired", expired_at=self._now())
            return
        if self._queue.unfinished >= self._queue.limits.most:  # it would be checked for nothing
            await asyncio.sleep(PAUSE_S)
            return
        async with self._checks:
            found = await checked(self._gateway, self._room.shelf, live.record)
        if found.mistakes:
            await self._fail(live, found.mistakes)
            return
        async with live.turn:
            if live.batch.status != "validating":  # it was cancelled meanwhile
                return
            await self._submit(live, found)
            await self._become(
                live,
                status="in_progress",
                in_progress_at=self._now(),
                model=found.model,
                request_counts=Counts(total=len(found.requests)),
            )

    async def _submit(self, live: _Live, found: Checked) -> None:
        batch = live.batch
        if await self._queue.get(None, batch.id) is not None:  # an earlier life has
            return
        await self._queue.submit(
            JobDraft(
                id=batch.id,
                identity=live.identity,
                kind=KIND,
                model=found.key,
                requests=found.requests,
                created=self._room.clock.time(),
                detail=dumps(Detail(batch.endpoint, live.record.gateway)),
                deadline=batch.expires_at,
                held=True,
            )
        )

    async def _wait(self, live: _Live) -> None:
        job = await self._queue.wait(None, live.batch.id, LOOK_S)
        async with live.turn:
            if live.batch.status != "in_progress":
                return
            if job is None:
                await self._lose(live)
            elif job.status == "cancelled":  # by the owner of the daemon
                await self._become(live, status="cancelling", cancelling_at=self._now())
            elif job.over:
                await self._become(live, status="finalizing", finalizing_at=self._now())

    async def _finish(self, live: _Live) -> None:
        """Write the output of a batch whose job is over."""
        batch = live.batch
        job = await self._queue.get(None, batch.id)
        if job is not None and not job.over:  # an earlier life ended before it could cancel it
            await self._queue.cancel(None, batch.id)
            return
        if job is None and batch.status == "finalizing":
            await self._lose(live)
            return
        ended: dict[str, Any]
        if batch.status == "cancelling":
            ended = {"status": "cancelled", "cancelled_at": self._now()}
        elif job is not None and job.code == "expired":
            ended = {"status": "expired", "expired_at": self._now()}
        else:
            ended = {"status": "completed", "completed_at": self._now()}
        if job is None:  # it was cancelled before there was one
            await self._become(live, **ended)
            return
        async with self._outputs:
            written = await write(self._room, self._queue.store, live.identity, live.record, job)
            try:
                await self._become(
                    live, written.files, **ended, **written.changes, request_counts=counts_of(job)
                )
            except StoreFailed:
                written.drop(self._room.shelf)
                raise
        await self._queue.delete(None, batch.id)

    async def _lose(self, live: _Live) -> None:
        text = "The results of this batch are gone: its job was removed before they were written to a file."
        await self._fail(live, [Mistake("results_lost", text)])

    async def _fail(self, live: _Live, mistakes: list[Mistake]) -> None:
        await self._become(live, status="failed", failed_at=self._now(), errors=Mistakes(mistakes))

    async def _become(self, live: _Live, written: tuple[StoredFile, ...] = (), **changes: Any) -> None:
        """Store how a batch stands from now on; only then it does. Raises StoreFailed."""
        batch = msgspec.structs.replace(live.batch, **changes)
        record = msgspec.structs.replace(live.record, batch=batch)
        keep_s = self._room.limits.keep_s
        expires = None if keep_s is None else self._room.clock.time() + keep_s
        await self._batches.put(_stored(live.identity, record, expires), written)
        live.record = record
        if batch.status in OVER:
            self._room.shelf.remove(batch.id)

    def _now(self) -> int:
        return int(self._room.clock.time())

    async def _sweep(self) -> None:
        """Clear away what has expired."""
        while True:
            try:
                while gone := await self._room.files.expired(self._room.clock.time()):
                    for id in gone:
                        self._room.shelf.remove(id)
                await self._batches.sweep(self._room.clock.time())
                for id in await self._batches.jobs_left():
                    await self._queue.delete(None, id)
            except (StoreFailed, OSError) as failure:
                _log.warning("expired files stay for now: %s", failure)
            await asyncio.sleep(SWEEP_S)


def _stored(identity: str, record: Record, expires: float | None) -> StoredBatch:
    over = record.batch.status in OVER
    return StoredBatch(record.batch.id, identity, dumps(record), over, expires if over else None)

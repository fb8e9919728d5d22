"""All batches: taken in, looked at, cancelled, and each led on to its end by a task, through restarts too."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from modeld.errors import Conflict, Overloaded, StoreFailed
from modeld.gateway.routing import Gateway
from modeld.jobs import idempotency
from modeld.jobs.batches.leading import Desk, Leader, stored
from modeld.jobs.batches.records import Batch, Record, counts_of
from modeld.jobs.files import routes as files
from modeld.jobs.queue import Queue
from modeld.store.batches import Batches, StoredBatch
from modeld.store.tokens import Token

_log = logging.getLogger("modeld.jobs")

WINDOW_S = 86_400
"""Seconds that a batch may take."""

SWEEP_S = 60.0
"""Seconds between two rounds of clearing away."""

_RECORD = msgspec.json.Decoder(Record)


class Keeper:
    """All batches; a context manager that owns a task for each that is not over."""

    def __init__(self, queue: Queue, batches: Batches, room: files.Room, gateway: Gateway) -> None:
        self._queue = queue
        self._batches = batches
        self._room = room
        self._metrics = gateway.metrics
        self._desk = Desk(queue, batches, room, gateway)
        self._leaders: dict[str, Leader] = {}
        self._intake = asyncio.Lock()
        """Held while a batch is stored, so that nobody is told of one that is taken back."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Keeper:
        """Go on with what an earlier life has left. Raises StoreFailed."""
        left = await self._batches.unfinished()
        known = await self._room.files.ids() | {one.id for one in left}
        await asyncio.to_thread(self._room.shelf.tidy, known)
        for purpose, count, size in await self._room.files.held():
            self._metrics.files_changed(purpose, count, size)
        await self._group.__aenter__()
        for one in left:
            self._lead_on(one.identity, _RECORD.decode(one.body))
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
        if len(self._leaders) >= most:
            raise Overloaded(
                f"{len(self._leaders)} batches are unfinished, the limit is {most} "
                "(jobs.unfinished in the configuration)",
                code="too_many_jobs",
                retry_after=10.0,
            )
        async with self._intake:
            try:
                added = await self._batches.add(stored(identity, record, None), token)
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
        found = await self._batches.get(identity, id)
        return None if found is None else await self._seen(found)

    async def page(self, identity: str, after: str | None, limit: int) -> list[Batch] | None:
        """Return batches, the newest first; None when there is no `after`."""
        page = await self._batches.page(identity, after, limit)
        return None if page is None else [await self._seen(one) for one in page]

    async def cancel(self, identity: str, id: str) -> Batch | None:
        """Begin to cancel a batch; None when there is none. Raises Conflict for one that is over."""
        leader = self._leaders.get(id)
        if leader is not None and leader.identity == identity:
            await leader.cancel()
        batch = await self.get(identity, id)
        if batch is not None and batch.status not in ("cancelling", "cancelled"):
            text = f"Cannot cancel a batch with status '{batch.status}'."
            raise Conflict(text, code="batch_not_cancellable")
        return batch

    async def _seen(self, found: StoredBatch) -> Batch:
        """Return a batch with the counts of this moment."""
        batch = _RECORD.decode(found.body).batch
        if not found.over and (job := await self._queue.get(None, found.id)) is not None:
            batch.request_counts = counts_of(job)
        return batch

    # --- tasks ----------------------------------------------------------------------------------------------

    def _own(self, work: Any) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lead_on(self, identity: str, record: Record) -> Leader:
        leader = self._leaders[record.batch.id] = Leader(self._desk, identity, record)
        self._metrics.batch_moved(None, record.batch.status, over=False)
        self._own(self._lead(leader))
        return leader

    async def _lead(self, leader: Leader) -> None:
        await leader.lead()
        del self._leaders[leader.batch.id]

    async def _sweep(self) -> None:
        """Clear away what has expired."""
        while True:
            try:
                while gone := await self._room.files.expired(self._room.clock.time()):
                    for file in gone:
                        self._metrics.files_changed(file.purpose, -1, -file.bytes)
                        self._room.shelf.remove(file.id)
                await self._batches.sweep(self._room.clock.time())
                for id in await self._batches.jobs_left():
                    await self._queue.release(id)
            except (StoreFailed, OSError) as failure:
                _log.warning("expired files stay for now: %s", failure)
            await asyncio.sleep(SWEEP_S)

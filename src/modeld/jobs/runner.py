"""Does the items of jobs: one lane for each model, at low priority, as many side by side as slots are free.

A lane takes an item and asks for a slot. Only when it has one is the next item taken, so that no more than
one item of a model stands in the model's queue, however many wait on the disk: the places there are for
people. What gives way to them, and when it need not, is in `rules`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from types import TracebackType

from modeld.errors import ModeldError, ModelUnavailable, Overloaded, StoreFailed
from modeld.gateway.envelope import row_of
from modeld.ids import Identity
from modeld.jobs import rules
from modeld.jobs.patience import insist
from modeld.jobs.ports import Kind, Pool, Stream
from modeld.jobs.queue import Queue
from modeld.jobs.rules import MOST_ATTEMPTS, MOST_YIELDS, Next
from modeld.jobs.upkeep import upkeep
from modeld.protocol.tasks import Task
from modeld.store.job_ends import failure
from modeld.store.job_records import TakenItem
from modeld.supervisor.admission import Priority

_log = logging.getLogger("modeld.jobs")

PAUSE_S = (0.25, 10.0)
"""Seconds after which a model that could not take an item is asked again: at first, and at most."""

ONCE = "tools had been called by then, so it is not tried again: they would be called twice"

BUG = "modeld failed to do this; its log has the reason"


class _Gone(Exception):
    """The item is not ours any more: its job was cancelled."""


class _Run:
    """One item at work. `off` is set when it has begun or is over: then the lane takes the next one.

    `final`: it must not be begun anew.
    """

    def __init__(self, item: TakenItem, yields: bool) -> None:
        self.item = item
        self.yields = yields
        self.begun = False
        self.cut = False
        self.final = False
        self.off = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class _Work:
    """What a kind does an item with."""

    def __init__(self, runner: Runner, run: _Run) -> None:
        self._runner = runner
        self._run = run

    def open(self, task: Task) -> AbstractAsyncContextManager[Stream]:
        """Call the item's model."""
        return self._runner.opened(self._run, task)

    async def commit(self) -> None:
        """Note that the item must not be begun anew."""
        await self._runner.committed(self._run)


class _Lane:
    """One model's items at work. `served`: the turn of each caller's last item. `tired`: a pause is due."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.more = asyncio.Event()
        self.at_work: Counter[str] = Counter()
        self.served: dict[str, int] = {}
        self.turn = 0
        self.tired = False
        self.pause = PAUSE_S[0]


class Runner:
    """The daemon's runner, as an `async with`; leaving it lets everything at work wait for the next life."""

    def __init__(self, queue: Queue, pool: Pool, kinds: Mapping[str, Kind]) -> None:
        self._queue = queue
        self._store = queue.store
        self._pool = pool
        self._kinds = kinds
        self._clock = queue.clock
        self._metrics = queue.metrics
        self._lanes: dict[str, _Lane] = {}
        self._runs: dict[int, _Run] = {}
        self._yielded: Counter[int] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._group = asyncio.TaskGroup()
        self._stopping = False

    async def __aenter__(self) -> Runner:
        """Begin with what an earlier life has left."""
        self._queue.cut = self._cut
        await self._group.__aenter__()
        self._tasks += [
            self._group.create_task(self._dispatch()),
            self._group.create_task(upkeep(self._queue, self._kinds, lambda: bool(self._runs))),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, if `stop` has not been called."""
        await self.stop()
        await self._group.__aexit__(None, None, None)

    async def stop(self) -> None:
        """Take nothing more up, and give back what is at work; returns when that is stored."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        at_work = [run.task for run in self._runs.values() if run.task is not None]
        for task in at_work:
            task.cancel()
        if at_work:
            await asyncio.wait(at_work)

    # --- lanes ----------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        """Wake the lane of each model that something comes for."""
        again, ended = await insist(lambda: self._store.reclaim(MOST_ATTEMPTS, self._queue.limits.keep_s))
        if again:
            _log.info("%d items of jobs that were being worked on are begun anew", again)
        for job in ended:
            self._queue.ended(job)
        self._queue.fresh.update(await insist(self._store.models))
        while True:
            for model in self._queue.fresh:
                if model not in self._lanes:
                    lane = self._lanes[model] = _Lane(model)
                    self._tasks.append(self._group.create_task(self._run_lane(lane)))
                self._lanes[model].more.set()
            self._queue.fresh.clear()
            self._queue.work.clear()
            await self._queue.work.wait()

    async def _run_lane(self, lane: _Lane) -> None:
        while True:
            lane.more.clear()
            if lane.tired:
                lane.tired = False
                await asyncio.sleep(lane.pause)
                lane.pause = min(lane.pause * 2, PAUSE_S[1])
            item = await self._next(lane)
            if item is None:
                await lane.more.wait()
                continue
            run = _Run(item, self._yielded[item.key] < MOST_YIELDS)
            self._runs[item.key] = run
            lane.at_work[item.identity] += 1
            run.task = self._group.create_task(self._live(lane, run))
            run.task.add_done_callback(partial(self._over, lane, run))
            await run.off.wait()
            if run.begun:
                lane.pause = PAUSE_S[0]

    async def _next(self, lane: _Lane) -> TakenItem | None:
        while True:
            candidates = await insist(self._store.candidates, lane.model)
            if not candidates:
                return None
            job = rules.choose(candidates, lane.at_work, lane.served, lane.turn)
            item = await insist(self._store.take, job)
            if item is not None:
                lane.served = {one.identity: lane.served.get(one.identity, -1) for one in candidates}
                lane.served[item.identity] = lane.turn
                lane.turn += 1
                return item

    # --- one item -------------------------------------------------------------------------------------------

    async def _live(self, lane: _Lane, run: _Run) -> None:
        item = run.item
        try:
            await self._do(lane, run)
        except asyncio.CancelledError:
            if not run.cut and not self._stopping:
                raise
            if not run.cut and not run.final:
                with suppress(StoreFailed):  # the next life takes it back, or ends it
                    await self._store.give_back(item, counted=False)

    def _over(self, lane: _Lane, run: _Run, _: object) -> None:
        """Also called for a run that was cut off before its first step."""
        self._runs.pop(run.item.key, None)
        lane.at_work -= Counter({run.item.identity: 1})
        run.off.set()

    async def _do(self, lane: _Lane, run: _Run) -> None:
        item = run.item
        try:
            body = await self._kinds[item.kind].run(item, _Work(self, run))
        except _Gone:
            return
        except Exception as error:
            await self._failed(lane, run, error)
        else:
            await self._end(item, body, failed=False)

    @asynccontextmanager
    async def opened(self, run: _Run, task: Task) -> AsyncIterator[Stream]:
        """Call the model of an item: the context is entered when the call has a slot. Raises ModeldError."""
        async with AsyncExitStack() as stack:
            stream = await self._admitted(run, task, stack)
            if not run.begun:
                item = run.item
                if not await self._store.begin(item):
                    raise _Gone
                # Not before: while the disk takes no beginning the lane has to pause.
                run.begun = True
                run.off.set()
                if not (item.place or item.attempts or item.key in self._yielded):
                    self._metrics.job_waited(item.kind, self._clock.time() - item.created)
            yield stream

    async def _admitted(self, run: _Run, task: Task, stack: AsyncExitStack) -> Stream:
        item, pause = run.item, PAUSE_S[0]
        while True:
            try:
                opening = self._pool.open(
                    item.model,
                    task,
                    Identity(item.identity),
                    priority=Priority.BACKGROUND,
                    yields=run.yields and not run.final,
                )
                stream = await stack.enter_async_context(opening)
                await stream.admitted()
                return stream
            except (Overloaded, ModelUnavailable):
                if not run.final:
                    raise
            await stack.aclose()  # it cannot be begun anew, so it waits where it is
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_S[1])

    async def committed(self, run: _Run) -> None:
        """Note that an item must not be begun anew. Raises StoreFailed."""
        if run.final:
            return
        if not await self._store.commit(run.item):
            raise _Gone
        run.final = True

    async def _failed(self, lane: _Lane, run: _Run, error: Exception) -> None:
        item = run.item
        if not isinstance(error, ModeldError):
            _log.error("a defect of modeld in a job", exc_info=error, extra={"job": item.job_id})
            await self._end(item, failure("internal_error", BUG, status=500), failed=True)
            return
        verdict = rules.after(error, item.attempts)
        if verdict is Next.FAIL or run.final:
            row = row_of(error)
            text = error.message if verdict is Next.FAIL else f"{error.message}; {ONCE}"
            told = failure(error.code, text, status=row.status, type=row.type, param=error.param)
            await self._end(item, told, failed=True)
            return
        if verdict is Next.YIELD:
            self._yielded[item.key] += 1
            self._metrics.job_items_yielded.inc()
        lane.tired |= verdict is Next.WAIT
        await insist(self._store.give_back, item, counted=verdict is Next.AGAIN)
        lane.more.set()

    async def _end(self, item: TakenItem, body: bytes, *, failed: bool) -> None:
        keep_s = self._queue.limits.keep_s
        job = await insist(self._store.finish, item, body, failed=failed, keep_s=keep_s)
        self._yielded.pop(item.key, None)
        self._metrics.job_item_ended(item.model, "failed" if failed else "done")
        if job is not None:
            self._queue.moved(job)

    def _cut(self, job: int) -> None:
        """End what is at work of a job; the store knows already."""
        for run in self._runs.values():
            if run.item.job == job and run.task is not None:
                run.cut = True
                run.task.cancel()

"""Runs that no connection waits for: they go on when their caller leaves, and end in the store.

A run is there before its caller hears of it: its row is written first, and a heartbeat as long as it
lives. What a run of an earlier life of the daemon left unfinished is reported failed, at the start and by
whoever reads it first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Literal

import msgspec

from modeld.errors import ModeldError, Overloaded, StoreFailed
from modeld.gateway.encoding import dumps
from modeld.gateway.sse import escape_separators
from modeld.ids import Identity
from modeld.responses.context import Context
from modeld.responses.engine import Run
from modeld.responses.events import TERMINAL, StreamEvent, payload
from modeld.responses.history import UNFINISHED
from modeld.responses.items import Response
from modeld.responses.outlets import body, done
from modeld.responses.prepare import Prepared, release
from modeld.store.responses import Done, Draft, Origin, Stored
from modeld.supervisor.admission import Priority

_log = logging.getLogger("modeld.responses")

BEAT_S = 5.0
"""Seconds between heartbeats."""

SWEEP_S = 60.0
"""Seconds between two looks for what has expired."""

AT_ONCE = 16
"""Runs of one model that ask for it at the same time; the others wait here and not in the model's queue,
which refuses what is over its length.
"""

PATIENCE_S = 60.0
"""Seconds for which a run that is over is tried to be stored as it ended; after that it has failed."""

RETRY_S = 1.0
"""Seconds between two of these tries."""

PAGE = 256
"""Events that are read from the log at a time."""

ORPHANED = "modeld was stopped or killed before this response was complete"
UNSTORED = "modeld could not store this response"

LAST_WRITES_S = 5.0
"""Seconds that runs get to be stored as failed when the daemon stops."""

Why = Literal["cancelled", "deleted", "stopped"]


class _Log:
    """The outlet of a run in the background: a log in the store, where the caller asked for a stream."""

    started = True

    def __init__(self, owner: Background, prepared: Prepared, streamed: bool) -> None:
        self.streamed = streamed
        self.ending = False
        """The response is over, and on its way into the store."""

        self.stored = False

        self.entry: Done | None = None
        """The end as it is to be stored."""

        self.grown = asyncio.Event()
        """Set when there is more to read; another one takes its place then."""

        self._owner = owner
        self._prepared = prepared
        self._unwritten: list[tuple[int, bytes]] = []  # what a failed write has left: no number is skipped

    async def send(self, events: Sequence[StreamEvent]) -> None:
        """Write events to the log. The last one is written when the response is, not here.

        What the store does not take now is written with what comes next: nobody has seen it.
        """
        self._take(events)
        if self._unwritten:
            id = self._prepared.response.id
            try:
                await self._owner.context.responses.log(id, self._unwritten)
            except StoreFailed as failure:
                _log.warning("events wait to be stored: %s", failure, extra={"response": id})
                return
            self._unwritten = []
            self.tell()

    def _take(self, events: Sequence[StreamEvent]) -> None:
        if self.streamed:
            self._unwritten += [
                (event.sequence_number, payload(event)) for event in events if not isinstance(event, TERMINAL)
            ]

    def end(self, response: Response, closing: Sequence[StreamEvent], terminal: StreamEvent) -> Done:
        """Return a run's end as it is to be stored, with all events that are not in the log yet."""
        self._take(closing)
        context = self._owner.context
        log = (*self._unwritten, (terminal.sequence_number, payload(terminal))) if self.streamed else ()
        self.entry = msgspec.structs.replace(
            done(context, self._prepared, response),
            log=log,
            log_expires=context.clock.time() + context.replay_s if log else None,
        )
        return self.entry

    async def idle(self) -> None:
        """Nobody needs a sign of life: the heartbeat is one."""

    async def keep(self, response: Response, terminal: StreamEvent) -> None:
        """Store the response and the last event together. Tries for a while; raises StoreFailed then."""
        self.ending = True
        context, entry = self._owner.context, self.end(response, (), terminal)
        until = context.clock.monotonic() + PATIENCE_S
        while True:
            try:
                await context.responses.finish(entry)
                self.stored = True
                return
            except StoreFailed as failure:
                if context.clock.monotonic() >= until or self._owner.stopping:
                    raise
                _log.warning("a response waits to be stored: %s", failure, extra={"response": response.id})
            await asyncio.sleep(RETRY_S)

    def tell(self) -> None:
        """Wake who waits for more."""
        grown, self.grown = self.grown, asyncio.Event()
        grown.set()


class _Record:
    """One run and its task."""

    def __init__(self, run: Run, outlet: _Log) -> None:
        self.run = run
        self.outlet = outlet
        self.why: Why | None = None
        self.over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Background:
    """All runs of this life of the daemon; a context manager that ends them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.stopping = False
        self._records: dict[str, _Record] = {}
        self._owed: dict[str, Done] = {}
        self._buried = False
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._group = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Background:
        """Report failed what an earlier life left, and begin the heartbeat."""
        try:
            await self._bury_all()
        except StoreFailed as failure:  # tried again with every heartbeat
            _log.warning("orphans of an earlier life: %s", failure)
        await self._group.__aenter__()
        self._keeper = self._group.create_task(self._upkeep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is still running as failed, and store that."""
        self.stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
        for record in self._records.values():
            self._end(record, "stopped")
        tasks = [record.task for record in self._records.values() if record.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=LAST_WRITES_S)
            for task in late:
                task.cancel()
        await self._group.__aexit__(None, None, None)

    @property
    def unfinished(self) -> int:
        """How many runs are not over."""
        return len(self._records)

    async def submit(self, prepared: Prepared, *, streamed: bool) -> Response:
        """Begin a run, and return its response as it is then: queued.

        It is stored when this returns, and goes on whatever becomes of the caller. Raises Overloaded and
        StoreFailed.
        """
        try:
            return await self._submit(prepared, streamed)
        except ModeldError:
            await release(self.context, prepared)
            raise

    async def _submit(self, prepared: Prepared, streamed: bool) -> Response:
        if len(self._records) >= self.context.most_background:
            raise Overloaded(
                f"{len(self._records)} background responses are unfinished, the limit is "
                f"{self.context.most_background} (responses.background in the configuration)",
                code="too_many_background_responses",
            )
        outlet = _Log(self, prepared, streamed)
        run = Run(self.context, prepared, outlet, Priority.BACKGROUND, queued=True)
        record = self._records[prepared.response.id] = _Record(run, outlet)
        accepted: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.context.metrics.background_runs.inc()
        record.task = self._group.create_task(self._live(record, accepted, streamed))
        accepted.add_done_callback(lambda future: future.cancelled() or future.exception())
        return await asyncio.shield(accepted)

    def live(self, identity: Identity, id: str) -> Response | None:
        """Return an unfinished response as it is at this moment; None when it is over, or somebody else's.

        It is not over before it is stored.
        """
        record = self._records.get(id)
        if record is None or record.run.prepared.identity != identity:
            return None
        response = record.run.response
        if not record.outlet.ending:
            return response
        return msgspec.structs.replace(
            response,
            status="in_progress",
            completed_at=None,
            error=None,
            incomplete_details=None,
        )

    async def cancel(self, identity: Identity, id: str, why: Why = "cancelled") -> bool:
        """End a run, and return when that is stored; False when there is no unfinished one of that id.

        The first reason given stands; a run that is over already stays as it ended.
        """
        record = self._records.get(id)
        if record is None or record.run.prepared.identity != identity:
            return False
        self._end(record, why)
        await record.over.wait()
        return True

    async def get(self, identity: Identity, id: str) -> Stored | None:
        """Return a stored response that is over: one that was left unfinished is reported failed by this."""
        await self._settle(id)
        stored = await self.context.responses.get(identity, id)
        if stored is not None and stored.status in UNFINISHED and id not in self._records:
            await self._bury(stored)
            stored = await self.context.responses.get(identity, id)
        return stored

    async def follow(self, id: str, after: int, interval: float) -> AsyncIterator[list[bytes]]:
        """Give the events of a streamed run that are numbered over `after`, as they come, until its last one.

        An empty list says that nothing came for `interval` seconds. Only what is stored is given.
        """
        while True:
            record = self._records.get(id)
            grown = record.outlet.grown if record is not None else None
            rows = await self.context.responses.replay(id, after, PAGE)
            if rows:
                after = rows[-1][0]
                yield [data for _, data in rows]
            elif grown is None:
                return
            else:
                try:
                    async with asyncio.timeout(interval):
                        await grown.wait()
                except TimeoutError:
                    yield []

    # --- one run --------------------------------------------------------------------------------------------

    def _end(self, record: _Record, why: Why) -> None:
        if record.why is None and not record.outlet.ending and record.task is not None:
            record.why = why
            record.task.cancel()

    async def _live(self, record: _Record, accepted: asyncio.Future[Response], streamed: bool) -> None:
        run, outlet = record.run, record.outlet
        try:
            try:
                await self._begin(record, streamed)
            except Exception as error:
                accepted.set_exception(error)
                return
            accepted.set_result(msgspec.structs.replace(run.response))
            try:
                async with self._gates[run.prepared.model.name]:
                    await run.go()
            except asyncio.CancelledError:
                await self._cut(record)
            except Exception as error:
                _log.error("a response's end failed", exc_info=error, extra={"response": run.response.id})
            if not outlet.stored:
                self._owe(record)
            self._count(run)
        finally:
            if not accepted.done():
                accepted.cancel()
            self._records.pop(run.response.id, None)
            self.context.metrics.background_runs.dec()
            record.over.set()
            outlet.tell()

    async def _begin(self, record: _Record, streamed: bool) -> None:
        run, prepared = record.run, record.run.prepared
        first = run.translator.begin(queued=True)
        await self.context.responses.begin(
            Draft(
                id=run.response.id,
                identity=prepared.identity,
                body=body(run.response),
                created=prepared.created,
                expires=self.context.expires(prepared.created, store=run.response.store),
                inputs=prepared.given,
                before=prepared.before,
                origin=prepared.origin,
                streamed=streamed,
            )
        )
        await record.outlet.send(first)

    async def _cut(self, record: _Record) -> None:
        """End a run that was cancelled from outside."""
        run, outlet = record.run, record.outlet
        now = int(self.context.clock.time())
        if record.why in ("cancelled", "deleted"):
            *closing, terminal = run.translator.cancel(now)
        else:
            *closing, terminal = run.translator.fail("server_error", ORPHANED, now)
        if record.why == "deleted":
            # Whoever deletes it takes it away in a moment, and where that fails it must be over all the same.
            outlet.stored = outlet.ending = True
            try:
                await self.context.responses.finish(outlet.end(run.response, closing, terminal))
            except StoreFailed as failure:
                _log.warning("the end of a deleted response is not stored: %s", failure)
            return
        try:
            await outlet.send(closing)
            await outlet.keep(run.response, terminal)
        except StoreFailed as failure:
            _log.error(
                "the end of a response is not stored: %s", failure, extra={"response": run.response.id}
            )

    def _count(self, run: Run) -> None:
        metrics, model = self.context.metrics, run.prepared.model.name
        metrics.background_response_ended(model, run.response.status)
        if run.first_event is not None:
            usage = run.usage
            metrics.call_ended(
                model=model,
                first_token_s=run.first_event - run.started,
                chunks=run.events,
                prompt_tokens=usage.prompt_tokens if usage else 0,
                cached_tokens=usage.cached_tokens if usage else 0,
                completion_tokens=usage.completion_tokens if usage else 0,
            )

    def _owe(self, record: _Record) -> None:
        """Remember an end that could not be stored: it is tried again with every heartbeat."""
        run, outlet = record.run, record.outlet
        entry = outlet.entry
        if entry is None or entry.status not in ("failed", "cancelled"):
            *closing, terminal = run.translator.fail("server_error", UNSTORED, int(self.context.clock.time()))
            entry = outlet.end(run.response, closing, terminal)
        self._owed[run.response.id] = entry

    # --- upkeep ---------------------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        """Write heartbeats, store what is owed, and clear away what has expired."""
        swept = -SWEEP_S
        clock = self.context.clock
        while True:
            try:
                if not self._buried:
                    await self._bury_all()
                await self._pay()
                if self._records:
                    await self.context.responses.beat(list(self._records), clock.time())
                if clock.monotonic() - swept >= SWEEP_S:
                    swept = clock.monotonic()
                    await self.context.responses.sweep(clock.time())
                    await self.context.approvals.sweep(clock.time())
            except StoreFailed as failure:
                _log.warning("upkeep of the responses: %s", failure)
            except Exception as error:  # it would end all runs, and it may go well the next time
                _log.error("bug in the upkeep of the responses", exc_info=error)
            await asyncio.sleep(BEAT_S)

    async def _bury_all(self) -> None:
        for stored in await self.context.responses.abandoned():
            await self._bury(stored)
        self._buried = True

    async def _pay(self) -> None:
        for id in list(self._owed):
            await self._settle(id)

    async def _settle(self, id: str) -> None:
        """Store a run's end, where that is owed. Raises StoreFailed."""
        entry = self._owed.get(id)
        if entry is not None:
            await self.context.responses.finish(entry)
            self._owed.pop(id, None)

    async def _bury(self, stored: Stored) -> None:
        """Report a response failed whose run is gone."""
        response = msgspec.json.decode(stored.body)
        response |= {"status": "failed", "error": {"code": "server_error", "message": ORPHANED}}
        events: tuple[tuple[int, bytes], ...] = ()
        if stored.streamed:
            number = await self.context.responses.last_logged(stored.id) + 1
            event = {"type": "response.failed", "sequence_number": number, "response": response}
            events = ((number, escape_separators(dumps(event))),)
        now = self.context.clock.time()
        await self.context.responses.finish(
            Done(
                id=stored.id,
                identity=stored.identity,
                status="failed",
                body=dumps(response),
                created=stored.created,
                expires=self.context.expires(now, store=bool(response["store"])),
                inputs=(),
                outputs=(),
                before=(),
                origin=Origin(),
                log=events,
                log_expires=now + self.context.replay_s if events else None,
            )
        )
        _log.warning("a response was left unfinished: it has failed", extra={"response": stored.id})

"""The owner of one model: the only writer of its state, its queue and its worker.

`run` is the life of the model: while it is wanted, attempt after attempt, with `restart` deciding what
follows a crash. Everybody else asks: `want`, `unwant`, `restart`, `enter`. A change of mind interrupts
whatever the attempt is waiting for.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from modeld.clock import Clock
from modeld.errors import LoadFailed, ModeldError, ModelFailed, ModelUnavailable, WorkerDied
from modeld.ids import new_id
from modeld.protocol.messages import LoadSpec
from modeld.supervisor import admission, restart
from modeld.supervisor.admission import Priority, Situation, Verdict
from modeld.supervisor.events import EventFeed
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.memory import Memory
from modeld.supervisor.ledger import footprint
from modeld.supervisor.spec import ModelSpec, Resolve
from modeld.supervisor.states import State, Status, check_move
from modeld.supervisor.tickets import Ticket, Tickets
from modeld.supervisor.worker import Worker

_log = logging.getLogger("modeld.supervisor")

CANCEL_LIMIT_S = 10.0
"""Seconds a worker may take to end a cancelled call before it counts as hung and is replaced."""

NOT_RUNNING: dict[str, Any] = {"run_id": None, "pid": None, "bytes_used": 0}
"""What a status says of a worker that is gone; it goes with the move, so that no READY ever lacks a pid."""

T = TypeVar("T")


class _ChangedMind(Exception):
    """The owner no longer wants what the attempt was doing."""


class _Crashed(WorkerDied):
    """A model that was READY lost its worker; the crash has been remembered."""


class Actor:
    """One model and all that belongs to it."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        resolve: Resolve,
        memory: Memory,
        feed: EventFeed,
        clock: Clock,
        runtime_dir: Path,
        policy: restart.RestartPolicy,
        drain_s: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.spec = spec
        self.ring = LogRing(clock)
        self._resolve = resolve
        self._memory = memory
        self._feed = feed
        self._clock = clock
        self._runtime_dir = runtime_dir
        self._policy = policy
        self._drain_s = drain_s
        self._chance = chance
        self._wanted = False
        self._again = False
        self._nudge = asyncio.Event()
        self._watchers: list[tuple[Callable[[Status], bool], asyncio.Future[Status]]] = []
        self._worker: Worker | None = None
        self._crashes: tuple[restart.Crash, ...] = ()
        self.tickets = Tickets()
        self._runs = itertools.count(1)
        self.status = Status(
            spec.name, spec.usecase, spec.loader, State.STOPPED, "start", "not loaded yet", clock.time()
        )

    # --- what others ask ------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether the owner wants the model up."""
        return self._wanted

    def want(self) -> None:
        """Ask for the model to be up; a FAILED one gets a new chance, one in BACKOFF tries now."""
        state = self.status.state
        if state is State.BACKOFF or (not self._wanted and state not in (State.STOPPED, State.FAILED)):
            # A stop asked for a moment ago still comes first: somebody waits to see it.
            self._again = True
        self._crashes = ()
        self._wanted = True
        self._nudge.set()

    def unwant(self, drain_s: float | None = None) -> None:
        """Ask for the model to be down, after at most `drain_s` seconds for its open requests."""
        if drain_s is not None:
            self._drain_s = drain_s
        self._wanted = False
        self._nudge.set()

    def restart(self) -> None:
        """Ask for the model to go down and up again."""
        if self._worker is not None:
            self._again = True
        self.want()

    async def until(self, test: Callable[[Status], bool], *, now: bool = True) -> Status:
        """Wait until `test` holds for the status, and return the status for which it did.

        No status is missed, however short-lived. With `now` false the present one does not count.
        """
        if now and test(self.status):
            return self.status
        future: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        watcher = (test, future)
        self._watchers.append(watcher)
        try:
            return await future
        finally:
            self._watchers.remove(watcher)

    def enter(self, priority: Priority) -> Ticket:
        """Take a slot or a place in the queue. Raises Overloaded, ModelFailed or ModelUnavailable."""
        verdict = admission.decide(self._situation())
        if isinstance(verdict, ModeldError):
            raise verdict
        ticket = Ticket(self._leave, priority)
        if verdict is Verdict.GRANT:
            self.tickets.grant(ticket)
        else:
            self.tickets.wait(ticket)
        return ticket

    def worker(self) -> Worker:
        """Return the worker that serves now. Raises WorkerDied when there is none."""
        if self._worker is None or not self._serving():
            raise WorkerDied(f"model {self.spec.name!r} is {self.status.state}")
        return self._worker

    def measure(self, tree_memory: Callable[[int], int]) -> None:
        """Measure the worker's memory now; `tree_memory` gives the bytes of a process tree."""
        if self._worker is not None:
            self.status = replace(self.status, bytes_used=tree_memory(self._worker.pid))

    def abandon(self) -> None:
        """Kill the worker at once; open requests fail."""
        if self._worker is not None:
            self._worker.abandon()

    def report_hung(self, worker: Worker | None) -> None:
        """Replace a worker that did not end a cancelled call in time."""
        if worker is not None and self._worker is worker:
            self.ring.add(
                f"modeld: a cancelled call did not end within {CANCEL_LIMIT_S:g} s; ending the worker"
            )
            worker.abandon()

    # --- the life of the model ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until cancelled; then the worker is stopped."""
        try:
            while True:
                if not self._wanted:
                    self._nudge.clear()
                    await self._nudge.wait()
                    continue
                try:
                    await self._attempt()
                except _ChangedMind:
                    self._after_stop()
                except LoadFailed as error:
                    await self._after_failure(error, permanent=error.permanent)
                except ModeldError as error:
                    await self._after_failure(error, permanent=False)
                except OSError as error:
                    await self._after_failure(LoadFailed(f"cannot start a worker: {error}"), permanent=False)
        finally:
            self.tickets.refuse_waiting(ModelUnavailable(f"model {self.spec.name!r} is being shut down"))

    async def _attempt(self) -> None:
        spec = self.spec
        self._again = False
        self._move(
            State.STARTING,
            "wanted",
            "looking for the model's files" if spec.reference else "starting a worker",
        )
        path = Path()
        if spec.reference is not None:
            path = await self._unless_changed(self._resolve(spec.reference, self._progress))
        size = await asyncio.to_thread(_size, path) if spec.reference is not None else 0
        await self._reserve(footprint(spec.resources.ram, size))
        try:
            await self._serve(path)
        finally:
            self._memory.release(spec.name)

    async def _reserve(self, need: int) -> None:
        while (refusal := self._memory.reserve(self.spec.name, need)) is not None:
            if not refusal.ever:
                raise LoadFailed(refusal.message, code="does_not_fit", permanent=True)
            if self.status.state is State.WAITING:
                self._update(message=refusal.message)  # the numbers have changed
            else:
                self._move(State.WAITING, "memory", refusal.message)
            await self._unless_changed(self._memory.freed())
        if self.status.state is State.WAITING:
            self._move(State.STARTING, "memory", "there is room now")

    async def _serve(self, path: Path) -> None:
        run_id = new_id("run_")
        folder = self._runtime_dir / f"w{next(self._runs)}-{run_id[-8:]}"
        worker = await Worker.start(self.ring, folder, self._runtime_dir / "workers")
        self._worker = worker
        ready_at: float | None = None
        try:
            self._move(State.LOADING, "spawned", "the worker has started", run_id=run_id, pid=worker.pid)
            spec = LoadSpec(
                name=self.spec.name,
                loader=self.spec.loader,
                usecase=self.spec.usecase,
                path=str(path),
                runtime_dir=str(folder),
                options=self.spec.options,
                template_kwargs=self.spec.template_kwargs,
                start_timeout_s=self.spec.start_timeout_s,
            )
            began = self._clock.monotonic()
            facts = await self._unless_changed(worker.load(spec, self._progress))
            ready_at = self._clock.monotonic()
            self._update(facts=facts, bytes_used=facts.bytes_used)
            self._move(State.READY, "loaded", f"loaded in {ready_at - began:.1f} s")
            self._admit()
            reason = await self._unless_changed(asyncio.shield(worker.ended))
            self._remember_crash(self._clock.monotonic() - ready_at)
            raise _Crashed(reason)
        except _ChangedMind:
            drain_s = self._drain_s if ready_at is not None else 0.0
            if ready_at is not None and worker.open_calls and drain_s > 0:
                self._move(
                    State.DRAINING, "asked", f"{worker.open_calls} requests may finish, {drain_s:g} s at most"
                )
            elif self.status.state is State.LOADING or ready_at is not None:
                self._move(State.STOPPING, "asked", "ending the worker")
            await worker.stop(drain_s)
            raise
        finally:
            await worker.stop(0.0)
            self._worker = None

    async def _after_failure(self, error: ModeldError, *, permanent: bool) -> None:
        message = str(error)
        if not isinstance(error, _Crashed):
            self._remember_crash(0.0)
        if permanent:
            self._fail(error.code, message)
            return
        verdict = restart.decide(self._policy, self._crashes, self._clock.monotonic(), self._chance())
        if isinstance(verdict, restart.GiveUp):
            self._fail("crash_loop", f"{verdict.reason}; the last one: {message}")
            return
        self._move(
            State.BACKOFF,
            "crashed",
            f"{message}\n{verdict.reason}",
            restarts=self.status.restarts + 1,
            **NOT_RUNNING,
        )
        try:
            await self._unless_changed(asyncio.sleep(verdict.delay_s))
        except _ChangedMind:
            self._after_stop()

    def _remember_crash(self, ready_s: float) -> None:
        crash = restart.Crash(self._clock.monotonic(), ready_s)
        self._crashes = restart.remember(self._policy, self._crashes, crash)

    def _fail(self, cause: str, message: str) -> None:
        self._wanted = False
        self._move(State.FAILED, cause, message, **NOT_RUNNING)
        self.tickets.refuse_waiting(ModelFailed(f"model {self.spec.name!r} failed: {message}", param="model"))

    def _after_stop(self) -> None:
        if self.status.state in (State.DRAINING, State.READY, State.LOADING):
            self._move(State.STOPPING, "asked", "ending the worker")
        if self.status.state is not State.STOPPED:
            words = "unloaded" if not self._wanted else "restarting"
            self._move(State.STOPPED, "asked", words, **NOT_RUNNING)
        if not self._wanted:
            self.tickets.refuse_waiting(
                ModelUnavailable(f"model {self.spec.name!r} was unloaded", param="model")
            )

    async def _unless_changed(self, doing: Awaitable[T]) -> T:
        """Await `doing`; when the owner changes his mind first, cancel it and raise _ChangedMind."""
        task: asyncio.Future[T] = asyncio.ensure_future(doing)
        try:
            while not task.done():
                if not self._wanted or self._again:
                    raise _ChangedMind
                self._nudge.clear()
                nudged = asyncio.ensure_future(self._nudge.wait())
                try:
                    either: set[asyncio.Future[Any]] = {task, nudged}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    nudged.cancel()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():
                    task.exception()  # how it failed on its way out is no news to anybody

    # --- state and queue ------------------------------------------------------------------------------------

    def _slots(self) -> int:
        slots = self.status.facts.slots if self.status.facts is not None else 1
        return min(slots, self.spec.max_ongoing or slots)

    def _serving(self) -> bool:
        return self.status.state is State.READY and self._worker is not None and self._worker.alive

    def _situation(self) -> Situation:
        state = self.status.state
        if state is State.READY and not self._serving():
            state = State.BACKOFF  # the worker has just died, and the move is on its way
        return Situation(
            self.spec.name,
            state,
            self._wanted,
            self.tickets.in_flight,
            self._slots(),
            self.tickets.queued,
            self.spec.max_queue,
            self.status.message,
        )

    def _admit(self) -> None:
        if self._serving():
            self.tickets.admit(self._slots())

    def _leave(self, ticket: Ticket) -> None:
        if self.tickets.leave(ticket):
            self._admit()

    def _progress(self, stage: str, fraction: float | None) -> None:
        self._update(message=stage, progress=fraction)
        self._feed.publish("progress", self.spec.name, message=stage, progress=fraction)

    def _move(self, to: State, cause: str, message: str, **fields: Any) -> None:
        check_move(self.status.state, to)
        self._update(
            state=to, cause=cause, message=message, since=self._clock.time(), progress=None, **fields
        )
        self._feed.publish("state", self.spec.name, state=to.value, cause=cause, message=message)
        _log.log(
            logging.WARNING if to in (State.BACKOFF, State.FAILED) else logging.INFO,
            "%s: %s",
            to.value,
            message,
            extra={"model": self.spec.name, "cause": cause},
        )

    def _update(self, **fields: Any) -> None:
        self.status = status = replace(self.status, **fields)
        for test, future in self._watchers:
            if not future.done() and test(status):
                future.set_result(status)


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size

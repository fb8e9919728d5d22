"""One copy of a model: the only writer of its state, its lease and its worker.

`run` is its life: while it is wanted, attempt after attempt (files, size, memory, process, load, serve), with
`restart` deciding what follows a crash. Its deployment asks: `want`, `unwant`, `restart`; the ledger asks:
`evict`. A change of mind interrupts whatever the attempt is waiting for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from modeld.errors import LoadFailed, ModeldError, WorkerDied
from modeld.hardware.footprint import Source
from modeld.hardware.machine import HOST, Condition, Kind
from modeld.ids import new_id
from modeld.protocol.messages import Facts, LoadSpec
from modeld.supervisor import oom, restart
from modeld.supervisor.intent import ChangedMind, Intent
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.memory import Lease, Standing, Usage
from modeld.supervisor.observation import Measured
from modeld.supervisor.process import PYTHON
from modeld.supervisor.scheduling.placement import Refusal, gib
from modeld.supervisor.sizing import Size
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import ReplicaStatus, State, check_move
from modeld.supervisor.worker import LAST_WORDS, Worker
from modeld.supervisor.world import World

_log = logging.getLogger("modeld.supervisor")

CANCEL_LIMIT_S = 10.0
"""Seconds a worker may take to end a cancelled call before it counts as hung and is replaced."""

OVER = 1.1
"""Beyond so many times the owner's figure, what is measured is worth a warning."""

ENGINE_RECHECK_S = 30.0
"""Seconds between looks for an engine that is missing."""

NOT_RUNNING: dict[str, Any] = {"run_id": None, "pid": None, "bytes_used": 0, "devices": {}}
"""What a status says of a worker that is gone; it goes with the move, so that no READY ever lacks a pid."""


FETCHES = 2
"""How often files are sought in a row: whoever gets them has tried for minutes when it gives up."""


class Owner(Protocol):
    """The deployment, as its replicas see it."""

    spec: ModelSpec

    def standing(self, replica: Replica) -> Standing:
        """Say how urgent a replica's claim for memory is."""
        ...

    def usage(self, replica: Replica) -> Usage:
        """Say how much a replica is used."""
        ...

    def progressed(self, replica: Replica) -> None:
        """A replica's status has changed."""
        ...

    def ready(self, replica: Replica) -> None:
        """A replica serves from now on."""
        ...

    def failed(self, replica: Replica, error: ModeldError) -> None:
        """A replica has given up."""
        ...

    def evicted(self, replica: Replica, reason: str) -> None:
        """A replica must make room for another model."""
        ...

    def make_way(self, replica: Replica) -> None:
        """Somebody waits for a replica's memory."""
        ...

    def refused(self, replica: Replica, refusal: Refusal) -> None:
        """A replica gets no memory, and waiting does not help."""
        ...


class _Crashed(WorkerDied):
    """A replica that was READY lost its worker; the crash has been remembered."""


class _NotFetched(LoadFailed):
    """The model's files could not be got; another time they may be."""


class _OutOfMemory(LoadFailed):
    """A load ran out of memory."""


def _weight(to: State, cause: str) -> int:
    """Return a move's weight in the log: mere steps on the way are for whoever looks closer."""
    if to in (State.BACKOFF, State.FAILED):
        return logging.WARNING
    step = to in (State.STARTING, State.STOPPING) or (to is State.WAITING and cause == "turn")
    return logging.DEBUG if step else logging.INFO


class Replica:
    """One copy of a model and all that belongs to it."""

    def __init__(self, key: str, owner: Owner, world: World, ring: LogRing) -> None:
        self.key = key
        self.ring = ring
        self.in_flight = 0
        self.idle_since = world.clock.monotonic()
        self.facts: Facts | None = None
        self.size: Size | None = None
        self.load_s = 0.0
        self.restarts = 0
        self.leaving = False
        """It has been told to stop: no request goes in any more."""
        self._owner = owner
        self._world = world
        self._intent = Intent(world.drain_s)
        self._recheck = asyncio.Event()
        self._worker: Worker | None = None
        self._python = ""
        self._unfetched = 0
        self._crashes: tuple[restart.Crash, ...] = ()
        self.status = ReplicaStatus(State.STOPPED, "start", "not loaded yet", world.clock.time())

    # --- what the deployment asks ---------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether it is wanted up."""
        return self._intent.wanted

    def want(self) -> None:
        """Ask for it to be up; a FAILED one gets a new chance, one in BACKOFF tries now, and one that lacks
        its engine looks for it.
        """
        state = self.status.state
        if state is State.BACKOFF or (not self._intent.wanted and state not in (State.STOPPED, State.FAILED)):
            # A stop asked for a moment ago still comes first: somebody waits to see it.
            self._intent.again = True
        self._crashes = ()
        self._intent.wanted = True
        self._intent.nudge()
        self.recheck()

    def unwant(self, cause: str, words: str, drain_s: float | None = None) -> None:
        """Ask for it to be down, after at most `drain_s` seconds for its open requests."""
        self._intent.drain_s = self._world.drain_s if drain_s is None else drain_s
        self._intent.why = (cause, words)
        self._intent.wanted = False
        self._close()

    def again(self, words: str, cause: str = "asked") -> None:
        """Ask for it to go down, and up again as soon as there is room."""
        if self._worker is not None:
            self._intent.drain_s = self._world.drain_s
            self._intent.why = (cause, words)
            self._intent.again = True
            self._close()
        self.want()

    def recheck(self) -> None:
        """Look again for an engine that was missing: somebody asks."""
        self._recheck.set()

    def worker(self) -> Worker:
        """Return the worker that serves now. Raises WorkerDied when there is none."""
        if self._worker is None or not self.serving:
            raise WorkerDied(f"model {self._owner.spec.name!r} is {self.status.state}")
        return self._worker

    @property
    def serving(self) -> bool:
        """Whether calls may go in."""
        worker = self._worker
        return self.status.state is State.READY and worker is not None and worker.alive

    @property
    def open(self) -> bool:
        """Whether new requests may go in."""
        return self.serving and not self.leaving

    @property
    def slots(self) -> int:
        """Requests it takes at once."""
        slots = self.facts.slots if self.facts is not None else 1
        return min(slots, self._owner.spec.max_ongoing or slots)

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

    def remember(self, bytes_used: int) -> None:
        """Take note of a measurement."""
        if self._worker is not None:
            self.status = replace(self.status, bytes_used=bytes_used)

    # --- what the ledger asks -------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """Its model's name."""
        return self._owner.spec.name

    @property
    def pid(self) -> int | None:
        """Its worker's process id."""
        return self._worker.pid if self._worker is not None else None

    def standing(self) -> Standing:
        """Say how urgent its claim is now."""
        return self._owner.standing(self)

    def usage(self) -> Usage:
        """Say how much it is used now."""
        return self._owner.usage(self)

    def explain(self, cause: str, message: str) -> None:
        """Take note of why its claim waits: for memory, or (cause "turn") for other loads to end."""
        if self.status.state is State.WAITING:
            if (cause, message) != (self.status.cause, self.status.message):
                self._update(cause=cause, message=message)
        elif self.status.state is State.STARTING:
            self._move(State.WAITING, cause, message)

    def refuse(self, refusal: Refusal) -> None:
        """Take note that its claim's waiting cannot end by itself."""
        self._owner.refused(self, refusal)

    def evict(self, reason: str) -> None:
        """Stop, and give the memory back."""
        self.leaving = True
        self._owner.evicted(self, reason)

    def make_way(self) -> None:
        """Cut off the calls that make way for others."""
        self._owner.make_way(self)

    def _close(self) -> None:
        self.leaving = self._worker is not None
        self._intent.nudge()

    # --- its life -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until cancelled; then the worker is stopped."""
        while True:
            await self._intent.until_wanted()
            try:
                await self._attempt()
            except ChangedMind:
                self._after_stop()
            except LoadFailed as error:
                await self._after_failure(error, permanent=error.permanent and not self._engine_gone())
            except ModeldError as error:
                await self._after_failure(error, permanent=False)
            except OSError as error:
                await self._after_failure(LoadFailed(f"cannot start a worker: {error}"), permanent=False)

    async def _attempt(self) -> None:
        spec, memory = self._owner.spec, self._world.memory
        self._intent.again = False
        self._move(
            State.STARTING,
            "wanted",
            "looking for the model's files" if spec.reference else "starting a worker",
        )
        if not spec.on_demand:
            memory.sizing(self.key)
        try:
            await self._until_engine_is_there()
            path = Path()
            if spec.reference is not None:
                path = await self._found(spec.reference)
            self.size = size = await self._intent.unless_changed(
                self._sized(spec, path if spec.reference is not None else None)
            )
            # It claims before it ceases to hold the others up, so that no smaller one slips in between.
            claiming = memory.place(self, size.demand)
        finally:
            memory.sized(self.key)
        self._owner.progressed(self)
        try:
            await self._with_lease(await self._intent.unless_changed(claiming), path, size, first=True)
        except _OutOfMemory as error:
            # Idle models have made room; the same promise is tried once more, and then a larger one is due.
            self._move(State.BACKOFF, "out_of_memory", f"{error}\ntrying once more", **NOT_RUNNING)
            if self._intent.changed:
                raise ChangedMind from None
            self._move(State.STARTING, "out_of_memory", "trying once more, with idle models unloaded")
            lease = await self._intent.unless_changed(memory.place(self, size.demand))
            await self._with_lease(lease, path, size, first=False)

    async def _sized(self, spec: ModelSpec, path: Path | None) -> Size:
        machine = await self._world.memory.look()
        return await self._world.sizing.size(spec, path, machine)

    async def _until_engine_is_there(self) -> None:
        spec = self._owner.spec
        binary, python = spec.options.get("binary"), spec.options.get("python")
        while True:
            found = await self._world.engines.find(spec.loader, binary=binary, python=python)
            self._python = found.python
            if found.available:
                break
            self._world.memory.sized(self.key)
            fix = f"; this may help: {found.fix}" if found.fix else ""
            words = f"the engine of the loader {spec.loader} is missing: {found.detail}{fix}"
            if self.status.state is State.STARTING:
                self._move(State.WAITING, "engine", words)
            else:
                self._update(message=words)  # who asked for another look hears that it was in vain
            self._owner.failed(self, LoadFailed(words, code="engine_missing"))
            self._recheck.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENGINE_RECHECK_S):
                    await self._intent.unless_changed(self._recheck.wait())
        if self.status.state is State.WAITING:
            self._move(State.STARTING, "engine", "the engine is there now")

    def _engine_gone(self) -> bool:
        """Whether the environment that modeld had made for the engine was taken away meanwhile."""
        named = self._owner.spec.options.get("python")
        return named is None and bool(self._python) and not os.path.exists(self._python)

    async def _with_lease(self, lease: Lease, path: Path, size: Size, *, first: bool) -> None:
        memory = self._world.memory
        try:
            if self.status.state is State.WAITING:
                self._move(State.STARTING, "memory", "there is room now")
            self._update(devices=dict(lease.devices))
            try:
                await self._serve(path, size, lease)
            except _OutOfMemory:
                if not first:
                    raise
                memory.make_room(self, lease)
                raise
            finally:
                memory.leaving(lease)
            return
        except _OutOfMemory as error:
            self._world.observer.model_loaded(self.model, self._owner.spec.loader, 0.0, "out_of_memory")
            if first:
                raise
            next_time = await self._world.sizing.ran_out(self._owner.spec, size, lease.devices)
            raise LoadFailed(f"{error}\nIt ran out of memory twice; {next_time}") from error
        finally:
            try:
                await memory.returned(lease)
            finally:
                memory.drop(lease)

    async def _serve(self, path: Path, size: Size, lease: Lease) -> None:
        world, spec = self._world, self._owner.spec
        run_id = new_id("run_")
        folder = world.runtime_dir / f"w{next(world.numbers)}-{run_id[-8:]}"
        worker = await world.start_worker(
            self.ring, folder, world.runtime_dir / "workers", self._environment(lease)
        )
        self._worker = worker
        self.leaving = False
        ready_at: float | None = None
        began = world.clock.monotonic()
        try:
            self._move(State.LOADING, "spawned", "the worker has started", run_id=run_id, pid=worker.pid)
            facts = await self._load(worker, spec, path, folder, lease)
            ready_at = world.clock.monotonic()
            self.load_s = ready_at - began
            self.idle_since = ready_at
            self.facts = facts
            self._update(bytes_used=facts.bytes_used)
            self._move(State.READY, "loaded", f"loaded in {self.load_s:.1f} s")
            self._owner.ready(self)
            world.observer.model_loaded(spec.name, spec.loader, self.load_s, "ready")
            # Those who waited are on their way; the device stays taken for loads until this is done.
            await self._intent.unless_changed(self._measure(size, lease))
            reason = await self._intent.unless_changed(asyncio.shield(worker.ended))
            self._remember_crash(world.clock.monotonic() - ready_at)
            raise _Crashed(reason)
        except ChangedMind:
            drain_s = self._intent.drain_s if ready_at is not None else 0.0
            cause, words = self._intent.why
            if ready_at is not None and worker.open_calls and drain_s > 0:
                plural = "s" if worker.open_calls > 1 else ""
                self._move(
                    State.DRAINING,
                    cause,
                    f"{words}; {worker.open_calls} open request{plural} may finish, within {drain_s:g} s",
                )
            elif self.status.state is State.LOADING or ready_at is not None:
                self._move(State.STOPPING, cause, f"{words}; ending the worker")
            if ready_at is not None and worker.alive:
                # Engines grow on their first prompts: the most it was seen to take is what to expect.
                await self._learn(size, lease, await world.memory.measure(self))
            await worker.stop(drain_s)
            raise
        finally:
            self.leaving = True
            await worker.stop(0.0)
            self._worker = None

    async def _found(self, reference: str) -> Path:
        """Return where the model's files are, once they are here."""
        try:
            path = await self._intent.unless_changed(self._world.resolve(reference, self._fetching))
        except LoadFailed as error:
            if error.permanent:
                raise
            self._unfetched += 1
            raise _NotFetched(str(error), code=error.code) from error
        self._unfetched = 0
        return path

    async def _load(self, worker: Worker, spec: ModelSpec, path: Path, folder: Path, lease: Lease) -> Facts:
        load = LoadSpec(
            name=spec.served_name,
            loader=spec.loader,
            usecase=spec.usecase,
            path=str(path),
            runtime_dir=str(folder),
            options=spec.options,
            template_kwargs=spec.template_kwargs,
            start_timeout_s=spec.start_timeout_s,
            gpus=len([device for device in lease.devices if device != HOST]),
            gpu_share=spec.resources.gpus or 0.0 if (spec.resources.gpus or 0.0) < 1 else 0.0,
            limits=spec.media,
        )
        try:
            return await self._intent.unless_changed(worker.load(load, self._progress))
        except (LoadFailed, WorkerDied) as error:
            words = f"{error}\n{self.ring.tail(LAST_WORDS)}"
            if oom.out_of_memory(worker.exit_code, words, killed_by_us=worker.killed_by_us):
                raise _OutOfMemory(str(error), code="out_of_memory") from error
            self._world.observer.model_loaded(spec.name, spec.loader, 0.0, "failed")
            raise

    async def _measure(self, size: Size, lease: Lease) -> None:
        """Measure the loaded worker: the ledger and the metrics take it from here."""
        world, spec = self._world, self._owner.spec
        measured = await world.memory.measure(self)
        used = measured.ram + sum(measured.gpus.get(device, 0) for device in lease.devices)
        world.memory.loaded(lease, explicit=size.explicit)
        world.observer.footprint_measured(spec.name, size.total, used)
        if size.footprint.source is Source.ESTIMATED:
            await self._learn(size, lease, measured)  # better than nothing, should its end be a sudden one
        promised = sum(lease.devices.values())
        if size.explicit and used > promised * OVER:
            _log.warning(
                "takes %s, and the configuration says %s",
                gib(used),
                gib(promised),
                extra={"model": spec.name},
            )
        self._update(bytes_used=used)

    async def _learn(self, size: Size, lease: Lease, peak: Measured) -> None:
        on_gpus = sum(peak.gpus.get(device, 0) for device in lease.devices)
        await self._world.sizing.measured(
            self._owner.spec, size, ram=peak.ram, vram=on_gpus, load_s=round(self.load_s, 3)
        )

    def _environment(self, lease: Lease) -> dict[str, str] | None:
        """Return variables that show the worker the GPUs it was given, and no others; None to leave all.

        One of them names the interpreter that has the engine, if it is not the daemon's own.
        """
        own = {PYTHON: self._python} if self._python else {}
        gpus = [device for device in self._world.memory.machine.devices if device.kind is Kind.GPU]
        if not gpus:
            return own or None
        given = [device for device in gpus if lease.devices.get(device.id)]
        # Numbers are understood by every engine, identifiers are not; but CUDA does not count lost GPUs.
        lost = any(device.condition is Condition.LOST for device in gpus)
        names = [device.id if lost or device.index is None else str(device.index) for device in given]
        return own | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}

    async def _after_failure(self, error: ModeldError, *, permanent: bool) -> None:
        message = str(error)
        if not isinstance(error, _Crashed):
            self._remember_crash(0.0)
        if permanent:
            self._fail(error.code, message)
            return
        if isinstance(error, _NotFetched) and self._unfetched >= FETCHES:
            self._unfetched = 0
            self._fail(error.code, message)
            return
        verdict = restart.decide(
            self._world.policy, self._crashes, self._world.clock.monotonic(), self._world.chance()
        )
        if isinstance(verdict, restart.GiveUp):
            self._fail("crash_loop", f"{verdict.reason}; the last one: {message}")
            return
        self.restarts += 1
        reason = verdict.reason
        if isinstance(error, _NotFetched):
            reason = f"next try in {verdict.delay_s:.1f} s"
        self._move(State.BACKOFF, "crashed", f"{message}\n{reason}", **NOT_RUNNING)
        with contextlib.suppress(ChangedMind):
            await self._intent.unless_changed(asyncio.sleep(verdict.delay_s))
        if self._intent.changed:  # maybe in the moment in which the delay ended
            self._after_stop()

    def _remember_crash(self, ready_s: float) -> None:
        crash = restart.Crash(self._world.clock.monotonic(), ready_s)
        self._crashes = restart.remember(self._world.policy, self._crashes, crash)

    def _fail(self, cause: str, message: str) -> None:
        self._intent.wanted = False
        self._move(State.FAILED, cause, message, **NOT_RUNNING)
        self._owner.failed(self, LoadFailed(message, code=cause, permanent=True))

    def _after_stop(self) -> None:
        cause, words = self._intent.why
        if self.status.state in (State.DRAINING, State.READY, State.LOADING):
            self._move(State.STOPPING, cause, f"{words}; ending the worker")
        if self.status.state is not State.STOPPED:
            self._move(State.STOPPED, cause, words, **NOT_RUNNING)

    # --- state ----------------------------------------------------------------------------------------------

    def _fetching(
        self, stage: str, fraction: float | None, done: int | None = None, total: int | None = None
    ) -> None:
        self._world.memory.sized(self.key)  # a download takes long: nobody waits for its size
        self._progress(stage, fraction, done, total)

    def _progress(
        self, stage: str, fraction: float | None, done: int | None = None, total: int | None = None
    ) -> None:
        self._update(message=stage, progress=fraction)
        feed = self._world.feed
        feed.publish("progress", self.model, message=stage, progress=fraction, done=done, total=total)

    def _move(self, to: State, cause: str, message: str, **fields: Any) -> None:
        check_move(self.status.state, to)
        self._update(
            state=to,
            cause=cause,
            message=message,
            since=self._world.clock.time(),
            progress=None,
            **fields,
        )
        self._world.feed.publish("state", self.model, state=to.value, cause=cause, message=message)
        _log.log(
            _weight(to, cause),
            "%s: %s",
            to.value,
            message,
            extra={"model": self.model, "cause": cause},
        )

    def _update(self, **fields: Any) -> None:
        self.status = replace(self.status, **fields)
        self._owner.progressed(self)

"""All models: what the gateway, the admin socket and the control room ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType

from modeld.clock import Clock
from modeld.errors import ModelFailed, ModelUnavailable
from modeld.hardware import host
from modeld.hardware.footprint import Footprint
from modeld.hardware.machine import HOST, Machine, Probe
from modeld.ids import Identity
from modeld.protocol.tasks import Task
from modeld.supervisor.admission import DAEMON_STOPS, Priority
from modeld.supervisor.deployment import Deployment
from modeld.supervisor.events import EventFeed
from modeld.supervisor.log_ring import LogLine
from modeld.supervisor.memory import Memory
from modeld.supervisor.observation import Limits
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.roster import Roster, end_of
from modeld.supervisor.scheduling import routing
from modeld.supervisor.scheduling.placement import Found, Never, Refusal, Space, gib
from modeld.supervisor.sizing import Sizing
from modeld.supervisor.spec import ModelSpec, Resolve
from modeld.supervisor.states import State, Status
from modeld.supervisor.stream import Stream
from modeld.supervisor.worker import Worker
from modeld.supervisor.world import Engines, Observer, StartWorker, World

MEASURE_S = 1.0
"""Seconds a measurement of the workers' memory stays good; measuring walks the process tree."""

TICK_S = 0.05
"""Seconds between two rounds of housekeeping at least."""

GONE = (State.STOPPED, State.FAILED)


class Pool:
    """The models of one daemon, as an `async with`: entering starts them, leaving stops them."""

    def __init__(
        self,
        specs: Iterable[ModelSpec],
        *,
        resolve: Resolve,
        sizing: Sizing,
        probe: Probe,
        engines: Engines,
        observer: Observer,
        feed: EventFeed,
        clock: Clock,
        runtime_dir: Path,
        drain_s: float,
        limits: Limits | None = None,
        cores: int = 1,
        policy: RestartPolicy | None = None,
        queue_timeout_s: float | None = None,
        start_worker: StartWorker = Worker.start,
    ) -> None:
        self.feed = feed
        self._clock = clock
        self._observer = observer
        self._tick = asyncio.Event()
        self._measured_at = float("-inf")
        self.memory = Memory(
            probe,
            clock,
            limits or Limits(),
            cores=cores,
            reopened=self._reopen,
            evicted=observer.evicted,
            overtook=observer.overtaken,
        )
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._world = World(
            resolve=resolve,
            sizing=sizing,
            memory=self.memory,
            engines=engines,
            feed=feed,
            clock=clock,
            runtime_dir=runtime_dir,
            policy=policy or RestartPolicy(),
            drain_s=drain_s,
            observer=observer,
            spawn=lambda life: self._group.create_task(life),
            start_worker=start_worker,
            tick=self._tick.set,
            queue_timeout_s=queue_timeout_s,
        )
        self._specs = tuple(specs)
        self.roster = Roster(self._world)

    async def __aenter__(self) -> Pool:
        """Start every eager model's life; none is READY yet."""
        await self._group.__aenter__()
        self._tasks += [
            self._group.create_task(self.memory.run()),
            self._group.create_task(self._keep_house()),
        ]
        self.roster.begin(self._specs)
        for deployment in self.roster.present():
            deployment.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what `stop` has not: at once, without draining."""
        try:
            if kind is None:
                await self.stop(0.0)
        finally:
            # Also when stopping was itself cancelled; else the group would never end.
            for deployment in self.roster.all():
                deployment.end()
            for task in self._tasks:
                task.cancel()
            # An error of the body leaves as it is; handed to the group it would come out inside an
            # ExceptionGroup, and nobody would catch a StartupError any more. Cancellation is the group's own.
            if kind is not None and issubclass(kind, asyncio.CancelledError):
                await self._group.__aexit__(kind, error, trace)
            else:
                await self._group.__aexit__(None, None, None)

    async def stop(self, drain_s: float) -> None:
        """Stop every model, giving open requests up to `drain_s` seconds; returns when no worker is left."""
        for deployment in self.roster.all():
            deployment.unload("asked", DAEMON_STOPS, drain_s, stay=True)
        async with asyncio.TaskGroup() as group:
            for deployment in self.roster.all():
                group.create_task(deployment.until(lambda status: status.state in GONE))

    def abandon(self) -> None:
        """Kill every worker at once; open requests fail. `stop` then has nothing to wait for."""
        for deployment in self.roster.all():
            for replica in deployment.replicas:
                replica.abandon()

    # --- looking --------------------------------------------------------------------------------------------

    def status(self, name: str) -> Status:
        """Return one model's status, cheaply. Raises NotFound (`model_not_found`)."""
        return self.roster[name].snapshot()

    def find(self, gateway: str, name: str) -> Status | None:
        """Return the status of the model that a gateway ("" is the default one) serves under a name or alias.

        It is the last published one: the queue's figures in it are not kept up to date.
        """
        deployment = self.roster.find(gateway, name)
        return deployment.status if deployment is not None else None

    def gateways(self) -> tuple[str, ...]:
        """Return the named gateways there are, without the default one."""
        return self.roster.gateways

    def statuses(self) -> tuple[Status, ...]:
        """Return every model's status, by name; memory is measured at most every MEASURE_S seconds."""
        now = self._clock.monotonic()
        if now - self._measured_at >= MEASURE_S:
            self._measured_at = now
            for deployment in self.roster.present():
                for replica in deployment.replicas:
                    if replica.pid is not None:
                        measured = self.memory.measured(replica.key)
                        on_gpus = sum(measured.gpus.values()) if measured is not None else 0
                        replica.remember(host.tree_memory(replica.pid) + on_gpus)
        return tuple(deployment.detail() for deployment in self.roster.present())

    def log_lines(self, name: str) -> list[LogLine]:
        """Return the kept lines of a model's log. Raises NotFound."""
        return self.roster[name].ring.lines()

    def follow_log(self, name: str) -> AbstractContextManager[AsyncIterator[LogLine]]:
        """Follow a model's log from now on. Raises NotFound."""
        return self.roster[name].ring.follow()

    async def settled(self) -> None:
        """Wait until no model is on its way any more: each is READY, FAILED, STOPPED, or waits for memory."""
        for deployment in self.roster.present():
            await end_of(deployment)

    # --- asking ---------------------------------------------------------------------------------------------

    def open(
        self,
        name: str,
        task: Task,
        identity: Identity,
        priority: Priority = Priority.INTERACTIVE,
        *,
        keep_alive: float | None = None,
        yields: bool = False,
    ) -> Stream:
        """Give a context manager in which the task runs. Raises NotFound now; refusals come on entering.

        `keep_alive`: what the request says about it, in seconds (infinity for never); None when it does not.
        `yields`: it is cut off, with GaveWay, when an interactive request waits for the slot it holds; not
        when it got that slot although others waited, because its turn had come.
        """
        deployment = self.roster[name]
        affinity = routing.affinity_of(task) if deployment.spec.scaling.maximum > 1 else None
        return Stream(deployment, self._world, task, identity, priority, affinity, keep_alive, yields)

    async def load(self, name: str, *, force: bool = False) -> Status:
        """Bring a model up; returns when it is READY. `force` evicts busy models too.

        Raises NotFound, ModelFailed, ModelUnavailable (no memory, and waiting does not help).
        """
        deployment = self.roster[name]
        up = deployment.wanted and deployment.status.state is State.READY
        deployment.load(force=force)
        return self._up(await deployment.until(partial(_came, deployment), now=up))

    async def restart(self, name: str) -> Status:
        """Stop and start a model; returns when it is READY again. Raises as `load` does."""
        deployment = self.roster[name]
        run = deployment.status.run_id
        deployment.restart()
        return self._up(
            await deployment.until(
                lambda status: (
                    _came(deployment, status) and (status.state is not State.READY or status.run_id != run)
                ),
                now=False,
            )
        )

    async def unload(self, name: str) -> Status:
        """Bring a model down; returns when its worker is gone. Raises NotFound."""
        deployment = self.roster[name]
        deployment.unload_asked()
        await deployment.until(lambda status: status.state in GONE)
        return deployment.snapshot()

    # --- changing what there is -----------------------------------------------------------------------------

    def specs(self) -> dict[str, ModelSpec]:
        """Return the models there are, as they are configured now."""
        return {deployment.spec.name: deployment.spec for deployment in self.roster.present()}

    def add(self, spec: ModelSpec) -> None:
        """Add a model and start it as configured; it must not be there yet."""
        self.roster.add(spec)

    def update(self, spec: ModelSpec) -> None:
        """Give a model settings that need no new worker. Raises NotFound."""
        self.roster.update(spec)

    async def remove(self, name: str, drain_s: float | None = None) -> None:
        """Take a model out: nobody finds it from now on, open requests may finish. Raises NotFound."""
        await self.roster.remove(name, drain_s)

    async def replace(self, spec: ModelSpec, *, beside: bool) -> str:
        """Put `spec` in the place of the model of its name; see `Roster.replace`."""
        return await self.roster.replace(spec, beside=beside)

    def wake(self, name: str) -> None:
        """Bring a model that is down up again, with what memory is free. Raises NotFound."""
        self.roster[name].load(passive=True)

    async def came_up(self, name: str) -> Status:
        """Wait for what became of a model: READY, FAILED, STOPPED, or waiting for memory. Raises NotFound."""
        return await end_of(self.roster[name])

    # --- devices and footprints -----------------------------------------------------------------------------

    async def devices(self) -> tuple[Machine, tuple[Space, ...]]:
        """Look at the machine now; return it, and what modeld may use of it."""
        machine = await self.memory.look(fresh=True)
        return machine, self.memory.spaces()

    async def estimate(self, name: str) -> tuple[Footprint, Footprint, str]:
        """Return the footprint modeld works with, what metadata alone says, and where it would go.

        Raises NotFound, LoadFailed (there is no file to look at).
        """
        spec = self.roster[name].spec
        path = None
        if spec.reference is not None:
            path = await self._world.resolve(spec.reference, lambda *_: None)
        machine = await self.memory.look()
        size = await self._world.sizing.size(spec, path, machine)
        estimate = await self._world.sizing.estimate(spec, path, machine)
        return size.footprint, estimate, self._where(name, self.memory.would(size.demand))

    def _where(self, name: str, answer: Found | Refusal) -> str:
        running = [replica.key for replica in self.roster[name].replicas if self.memory.lease(replica.key)]
        if running:
            return "It is loaded."
        if isinstance(answer, Refusal):
            now = "" if answer.never is Never.EVER else " now"
            return f"It would not fit{now}: {answer.message}."
        labels = {space.id: space.label for space in self.memory.spaces()}
        places = ", ".join(
            f"{gib(size)} on {labels[device]}" if device != HOST else f"{gib(size)} of RAM"
            for device, size in answer.devices.items()
        )
        victims = ", ".join(sorted(key.split("#")[0] for key in answer.victims))
        return f"It would take {places}" + (f" once {victims} makes room." if victims else ".")

    # --- inside ---------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        """See to idle models and replica counts, whenever something is due."""
        while True:
            self._tick.clear()
            due = [at for deployment in self.roster.present() if (at := deployment.tick())]
            wait = max(min(due) - self._clock.monotonic(), 0.0) if due else None
            await asyncio.sleep(TICK_S)
            try:
                async with asyncio.timeout(wait):
                    await self._tick.wait()
            except TimeoutError:
                pass

    def _reopen(self) -> None:
        for deployment in self.roster.all():
            deployment.reopen()

    def _up(self, status: Status) -> Status:
        if status.state is State.READY:
            return self.status(status.name)
        if status.state is State.FAILED:
            raise ModelFailed(f"model {status.name!r} failed: {status.message}", param="model")
        raise ModelUnavailable(f"model {status.name!r} did not come up: {status.message}", param="model")


def _came(deployment: Deployment, status: Status) -> bool:
    """Say whether an order to load has come to its end; waiting for memory that busy models hold is none."""
    if status.state is State.STOPPED:
        return not deployment.wanted
    if status.state is State.READY:
        return deployment.open  # one that has just been told to stop is READY no more
    return status.state is State.FAILED or (
        status.state is State.WAITING and (status.cause == "engine" or deployment.hopeless)
    )

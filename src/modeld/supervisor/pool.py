"""All models: what the gateway, the admin socket and the daemon ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from modeld.clock import Clock
from modeld.errors import ModelFailed, ModelUnavailable, NotFound
from modeld.hardware import host
from modeld.ids import Identity
from modeld.protocol.tasks import Task
from modeld.supervisor.actor import Actor
from modeld.supervisor.admission import Priority
from modeld.supervisor.events import EventFeed
from modeld.supervisor.log_ring import LogLine
from modeld.supervisor.memory import Memory
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.spec import ModelSpec, Resolve
from modeld.supervisor.states import State, Status
from modeld.supervisor.stream import Stream

MEASURE_S = 1.0
"""Seconds a measurement of the workers' memory stays good; measuring walks the process tree."""


def _settled(actor: Actor, status: Status) -> bool:
    """Say whether `status` is an end: READY, FAILED, or STOPPED without anybody wanting it up again."""
    if status.state is State.STOPPED:
        return not actor.wanted
    return status.state in (State.READY, State.FAILED)


class Pool:
    """The models of one daemon, as an `async with`: entering starts them, leaving stops them."""

    def __init__(
        self,
        specs: Iterable[ModelSpec],
        *,
        resolve: Resolve,
        feed: EventFeed,
        clock: Clock,
        runtime_dir: Path,
        capacity: int,
        drain_s: float,
        policy: RestartPolicy | None = None,
    ) -> None:
        self.feed = feed
        self._clock = clock
        self._drain_s = drain_s
        self._measured_at = float("-inf")
        self.memory = Memory(capacity)
        # The largest known footprint first: it is the hardest to place.
        ordered = sorted(specs, key=lambda spec: -(spec.resources.ram or 0))
        self._actors = {
            spec.name: Actor(
                spec,
                resolve=resolve,
                memory=self.memory,
                feed=feed,
                clock=clock,
                runtime_dir=runtime_dir,
                policy=policy or RestartPolicy(),
                drain_s=drain_s,
            )
            for spec in ordered
        }
        self._group = asyncio.TaskGroup()
        self._lives: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Pool:
        """Start every model's life; none is READY yet."""
        await self._group.__aenter__()
        for actor in self._actors.values():
            self._lives.append(self._group.create_task(actor.run()))
            actor.want()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what `stop` has not: at once, without draining."""
        try:
            if kind is None:
                await self.stop(0.0)
        finally:
            for life in self._lives:  # also when stopping was itself cancelled, or the group never ends
                life.cancel()
            # An error of the body leaves as it is; handed to the group it would come out inside an
            # ExceptionGroup, and nobody would catch a StartupError any more. Cancellation is the group's own.
            if kind is not None and issubclass(kind, asyncio.CancelledError):
                await self._group.__aexit__(kind, error, trace)
            else:
                await self._group.__aexit__(None, None, None)

    async def stop(self, drain_s: float) -> None:
        """Stop every model, giving open requests up to `drain_s` seconds; returns when no worker is left."""
        for actor in self._actors.values():
            actor.unwant(drain_s)
        async with asyncio.TaskGroup() as group:
            for actor in self._actors.values():
                group.create_task(actor.until(lambda status: status.state in (State.STOPPED, State.FAILED)))

    def abandon(self) -> None:
        """Kill every worker at once; open requests fail. `stop` then has nothing to wait for."""
        for actor in self._actors.values():
            actor.abandon()

    # --- looking --------------------------------------------------------------------------------------------

    def status(self, name: str) -> Status:
        """Return one model's status, cheaply. Raises NotFound (`model_not_found`)."""
        return self._snapshot(self._actor(name))

    def statuses(self) -> tuple[Status, ...]:
        """Return every model's status, by name; memory is measured at most every MEASURE_S seconds."""
        now = self._clock.monotonic()
        if now - self._measured_at >= MEASURE_S:
            self._measured_at = now
            for actor in self._actors.values():
                actor.measure(host.tree_memory)
        return tuple(self._snapshot(self._actors[name]) for name in sorted(self._actors))

    def log_lines(self, name: str) -> list[LogLine]:
        """Return the kept lines of a model's log. Raises NotFound."""
        return self._actor(name).ring.lines()

    def follow_log(self, name: str) -> AbstractContextManager[AsyncIterator[LogLine]]:
        """Follow a model's log from now on. Raises NotFound."""
        return self._actor(name).ring.follow()

    async def settled(self) -> None:
        """Wait until no model is on its way any more: each is READY, FAILED or STOPPED."""
        for actor in self._actors.values():
            # A FAILED model that is wanted has just been asked to try again.
            now = not (actor.wanted and actor.status.state is State.FAILED)
            await actor.until(partial(_settled, actor), now=now)

    # --- asking ---------------------------------------------------------------------------------------------

    def open(
        self, name: str, task: Task, identity: Identity, priority: Priority = Priority.INTERACTIVE
    ) -> Stream:
        """Give a context manager in which the task runs. Raises NotFound now; refusals come on entering."""
        return Stream(self._actor(name), task, identity, priority)

    async def load(self, name: str) -> Status:
        """Bring a model up; returns when it is READY. Raises NotFound, ModelFailed, ModelUnavailable."""
        actor = self._actor(name)
        up = actor.wanted and actor.status.state is State.READY
        actor.want()
        return self._up(await actor.until(partial(_settled, actor), now=up))

    async def restart(self, name: str) -> Status:
        """Stop and start a model; returns when it is READY again. Raises as `load` does."""
        actor = self._actor(name)
        run = actor.status.run_id
        actor.restart()
        return self._up(
            await actor.until(
                lambda status: (
                    _settled(actor, status) and (status.state is not State.READY or status.run_id != run)
                ),
                now=False,
            )
        )

    async def unload(self, name: str) -> Status:
        """Bring a model down; returns when its worker is gone. Raises NotFound."""
        actor = self._actor(name)
        actor.unwant()
        await actor.until(lambda status: status.state in (State.STOPPED, State.FAILED))
        return self.status(name)

    def _up(self, status: Status) -> Status:
        if status.state is State.READY:
            return self.status(status.name)
        if status.state is State.FAILED:
            raise ModelFailed(f"model {status.name!r} failed: {status.message}", param="model")
        raise ModelUnavailable(f"model {status.name!r} was stopped before it was ready", param="model")

    def _actor(self, name: str) -> Actor:
        try:
            return self._actors[name]
        except KeyError:
            raise NotFound(
                f"there is no model {name!r} here; GET /v1/models lists those there are",
                code="model_not_found",
                param="model",
            ) from None

    @staticmethod
    def _snapshot(actor: Actor) -> Status:
        return replace(actor.status, in_flight=actor.tickets.in_flight, queued=actor.tickets.queued)

"""One request's way: a place in the queue, a slot, a call, and at most one silent second try.

A worker that dies before anything was delivered costs the request nothing but time: it goes back to the queue
once. After the first event it gets the error, since what was said cannot be unsaid.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from modeld.errors import ModelUnavailable, WorkerDied
from modeld.ids import Identity
from modeld.protocol.channel import OpenCall
from modeld.protocol.tasks import Event, Task
from modeld.supervisor.admission import GaveWay, Priority
from modeld.supervisor.deployment import Deployment
from modeld.supervisor.replica import CANCEL_LIMIT_S, Replica
from modeld.supervisor.tickets import Ticket
from modeld.supervisor.worker import Worker
from modeld.supervisor.world import World

RETRY_AFTER_S = 5.0
"""What a caller is told to wait who has waited in vain."""


class Stream:
    """An open request; a context manager that ends it. One reader."""

    def __init__(
        self,
        deployment: Deployment,
        world: World,
        task: Task,
        identity: Identity,
        priority: Priority,
        affinity: int | None = None,
        keep_alive: float | None = None,
        yields: bool = False,
    ) -> None:
        """`keep_alive`: what the request says of it in seconds, None when it does not. `yields`: it gives
        its slot to an interactive request that waits for one.
        """
        self._deployment = deployment
        self._world = world
        self._task = task
        self._identity = identity
        self._priority = priority
        self._affinity = affinity
        self._keep_alive = keep_alive
        self._ticket: Ticket | None = None
        self._call: OpenCall | None = None
        self._replica: Replica | None = None
        self._worker: Worker | None = None
        self._yields = yields
        self._gave_way = False
        self._delivered = False
        self._retried = False

    def __enter__(self) -> Stream:
        """Ask for admission. Raises Overloaded, ModelFailed or ModelUnavailable."""
        self._ticket = self._enter(self._deployment)
        self._deployment.keep_alive(self._keep_alive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel a call that is not over; its slot is given back when the worker has ended it."""
        self._leave()

    async def __aenter__(self) -> Stream:
        """Ask for admission as `__enter__` does; a request let in at once is on its way when this returns."""
        self.__enter__()
        try:
            if self._ticket is not None and self._ticket.granted.done():
                with suppress(WorkerDied):  # it has just died: `take` will go its way about that
                    self._begin(self._ticket)
                await asyncio.sleep(0)  # lets the event loop write
        except BaseException:
            self._leave()  # nobody leaves a context that was never entered
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do as `__exit__`; nothing is waited for."""
        self._leave()

    async def take(self, timeout: float | None) -> list[Event] | None:
        """Return events; [] when none came within `timeout` seconds; None at the end.

        Raises the ModeldError the request ended with.
        """
        try:
            if self._call is None and not await self._admitted(timeout):
                return []
            assert self._call is not None
            events = await self._call.take(timeout)
        except WorkerDied as death:
            self._again(death)
            return []
        if events:
            self._delivered = True
        return events

    async def admitted(self) -> None:
        """Wait until the request has a slot. Raises the ModeldError it ended with instead."""
        while self._call is None:
            try:
                await self._admitted(None)
            except WorkerDied as death:
                self._again(death)

    def _again(self, death: WorkerDied) -> None:
        """Go back to the queue after the worker's death; raises it when that cannot be."""
        if self._delivered or self._retried:
            raise death
        self._retried = True
        before = self._ticket
        assert before is not None
        self._leave()
        # The queue may have passed to the deployment that replaces the first, as may the model.
        home = before.home if isinstance(before.home, Deployment) else self._deployment
        while home.successor is not None:
            home = home.successor
        self._ticket = self._enter(home, before.seq)

    def _enter(self, home: Deployment, seq: int | None = None) -> Ticket:
        give_way = self._give_way if self._yields else None
        return home.enter(self._priority, self._affinity, seq, give_way)

    def _give_way(self) -> None:
        self._gave_way = True
        if self._call is not None:
            self._call.abort(self._cut_off())

    def _cut_off(self) -> GaveWay:
        return GaveWay(f"an interactive request needs the slot of model {self._deployment.spec.name!r}")

    async def _admitted(self, timeout: float | None) -> bool:
        ticket = self._ticket
        assert ticket is not None
        if not ticket.granted.done():
            left = self._patience(ticket)
            if left is not None and (timeout is None or left < timeout):
                timeout = left
            await asyncio.wait({ticket.granted}, timeout=timeout)
            if not ticket.granted.done():
                if left is not None and self._patience(ticket) == 0:
                    raise ModelUnavailable(
                        f"the request waited {self._world.queue_timeout_s:g} s for model "
                        f"{self._deployment.spec.name!r} and got no slot: {self._deployment.status.message}",
                        code="queue_timeout",
                        param="model",
                        retry_after=RETRY_AFTER_S,
                    )
                return False
        ticket.granted.result()
        self._begin(ticket)
        return True

    def _patience(self, ticket: Ticket) -> float | None:
        """Return the seconds the request may still wait, None for any number."""
        limit = self._world.queue_timeout_s
        if limit is None:
            return None
        return max(ticket.waited_since + limit - self._world.clock.monotonic(), 0.0)

    def _begin(self, ticket: Ticket) -> None:
        if self._gave_way:
            raise self._cut_off()
        replica = ticket.replica
        assert replica is not None
        self._replica = replica
        self._worker = replica.worker()
        self._call = self._worker.call(self._task, self._identity)
        # The slot is the engine's: it is free when the worker is done, however slowly its events are read.
        self._call.over.add_done_callback(lambda _: ticket.close())

    def _leave(self) -> None:
        ticket, self._ticket = self._ticket, None
        call, self._call = self._call, None
        if call is not None and not call.over.done():
            call.cancel()
            assert self._replica is not None
            report = self._replica.report_hung
            hung = asyncio.get_running_loop().call_later(CANCEL_LIMIT_S, report, self._worker)
            call.over.add_done_callback(lambda _: hung.cancel())
        elif ticket is not None:
            ticket.close()

"""The one writer of the memory ledger: who was promised what, who waits for it, and when to decide anew.

Decisions are `scheduler.plan`'s; here are the facts of claims and leases it decides on, and the carrying out.
What the machine shows is `observation`'s. Memory of a replica that has stopped is given to nobody before
it is seen free; after RETURN_S it is left to the looks, which then show it as used by somebody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from modeld.clock import Clock
from modeld.errors import LoadFailed
from modeld.hardware.machine import HOST, Condition, Device, Machine, Probe
from modeld.supervisor.observation import FRESH_S, Charge, Limits, Measured, Observation
from modeld.supervisor.scheduling import scheduler
from modeld.supervisor.scheduling.placement import (
    Demand,
    Found,
    Holding,
    Never,
    Phase,
    Refusal,
    Space,
    find,
    gib,
)
from modeld.supervisor.scheduling.scheduler import OVERTAKES, Claim, Plan, View
from modeld.telemetry.metrics import EvictionReason

_log = logging.getLogger("modeld.supervisor")

CALM_S = 60.0
"""Seconds between looks at GPUs that serve when nobody waits for memory; after as long without any worker
there the driver is let go.
"""

RETURN_S = 5.0
"""Seconds within which the memory of an ended worker must be seen free."""

RETURN_POLL_S = 0.05
"""Seconds between looks for it."""

RETURNED_SHARE = 0.95
"""Part of what a worker's processes held that must be free again."""

MARGIN = 0.1
"""Share added to a measured size: engines grow by about as much on their first prompt."""

SIZING_S = 5.0
"""Seconds for which the size of one model may hold up the loads of the others."""

QUIET_S = 30.0
"""Seconds that every loaded model must have been idle before one is evicted for jobs: who reads an answer
will ask again.
"""

PATIENCE_S = 300.0
"""Seconds after which jobs that wait for memory wait no longer for that: the bound on their starvation."""

_SEEN = (Never.OTHERS, Never.DEVICE)
"""Refusals that rest on a look at the machine."""


@dataclass(frozen=True)
class Standing:
    """How urgent a claim is; see `scheduler.Claim`."""

    active: bool
    since: int
    priority: int
    forced: bool = False
    patient: bool = False
    """Only calls wait that make way for others: it sends nobody away that people have just used."""


@dataclass(frozen=True)
class Usage:
    """How much a replica that holds memory is used; see `placement.Holding`."""

    in_flight: int
    idle_s: float
    pinned: bool
    priority: int
    reload_s: float


class Claimant(Protocol):
    """A replica, as the ledger sees it."""

    key: str

    @property
    def model(self) -> str:
        """Its model's name."""
        ...

    @property
    def pid(self) -> int | None:
        """Its worker's process id."""
        ...

    def standing(self) -> Standing:
        """Say how urgent its claim is now."""
        ...

    def usage(self) -> Usage:
        """Say how much it is used now."""
        ...

    def explain(self, cause: str, message: str) -> None:
        """Take note of why its claim waits: for memory, or (cause "turn") for other loads to end."""
        ...

    def refuse(self, refusal: Refusal) -> None:
        """Take note that its claim's waiting cannot end by itself."""
        ...

    def evict(self, reason: str) -> None:
        """Stop, and give the memory back; returns at once, and no request is let in from now on."""
        ...

    def make_way(self) -> None:
        """Cut off the calls that make way for others: somebody waits for its memory."""
        ...


@dataclass(eq=False)
class Lease:
    """Memory promised to a replica: bytes by device. Only `Memory` changes it."""

    owner: Claimant
    devices: Mapping[str, int]
    free_before: Mapping[str, int]
    """Free bytes by device when the promise was made."""
    phase: Phase = Phase.LOADING
    held: Mapping[str, int] = field(default_factory=dict)
    """What counts now: the promise, and after loading the measurement."""
    explicit: bool = False
    exclusive: bool = False
    """Nothing else goes on its GPUs."""


@dataclass(eq=False)
class _Waiting:
    owner: Claimant
    demand: Demand
    promised: asyncio.Future[Lease]
    placed: float
    """Monotonic time of the claim."""
    since: int = 0
    victims: frozenset[str] = frozenset()
    overtaken: int = 0
    paid: bool = False
    """Somebody has been sent away for it."""
    patient: bool = True
    """As in `Standing`; also while nobody waits for it at all."""
    said: str | None = None
    """Why it waits, as its owner was told last."""


class Memory:
    """Claims and leases, and the loop that decides; run `run` beside whatever uses it."""

    def __init__(
        self,
        probe: Probe,
        clock: Clock,
        limits: Limits,
        *,
        cores: int = 1,
        reopened: Callable[[], None] = lambda: None,
        evicted: Callable[[str, EvictionReason], None] = lambda model, reason: None,
        overtook: Callable[[str], None] = lambda model: None,
    ) -> None:
        """Give `reopened` to be told after each decision: who was closed may be open again.

        `evicted` and `overtook` are told of each eviction and overtaking, for the metrics.
        """
        self._seen = Observation(probe, clock, limits)
        self._clock = clock
        self._cores = cores
        self._reopened = reopened
        self._evicted = evicted
        self._overtook = overtook
        self._claims: dict[str, _Waiting] = {}
        self._leases: dict[str, Lease] = {}
        self._sizing: dict[str, float] = {}
        self._dirty = asyncio.Event()

    # --- asking ---------------------------------------------------------------------------------------------

    def place(self, owner: Claimant, demand: Demand) -> Coroutine[Any, Any, Lease]:
        """Claim now; awaiting what is returned waits until the demand is promised.

        That raises LoadFailed (permanent) when the demand can never fit. Cancelling withdraws the claim.
        """
        now = self._clock.monotonic()
        waiting = _Waiting(owner, demand, asyncio.get_running_loop().create_future(), now)
        standing = owner.standing()
        if standing.active and not standing.patient:
            # The decision takes a look at the machine first; what others do meanwhile counts already.
            waiting.since = standing.since
            found = self.would(demand)
            waiting.victims = found.victims if isinstance(found, Found) else frozenset()
        self._claims[owner.key] = waiting
        self.changed()
        return self._promised(waiting)

    async def _promised(self, waiting: _Waiting) -> Lease:
        try:
            return await waiting.promised
        except asyncio.CancelledError:
            done = waiting.promised.done() and not waiting.promised.cancelled()
            if done and waiting.promised.exception() is None:
                self.drop(waiting.promised.result())
            raise
        finally:
            if self._claims.get(waiting.owner.key) is waiting:
                del self._claims[waiting.owner.key]
                self.changed()  # who was held up by this claim goes on

    def loaded(self, lease: Lease, *, explicit: bool) -> None:
        """The replica serves, and has been measured: from now on that counts and not the promise.

        `explicit`: the promise was the owner's own figure; it stands, unless more was measured.
        """
        lease.phase = Phase.SERVING
        lease.explicit = explicit
        self._charge(lease)
        self.changed()

    def leaving(self, lease: Lease) -> None:
        """The replica has been told to stop."""
        lease.phase = Phase.LEAVING

    async def returned(self, lease: Lease) -> None:
        """Wait, RETURN_S seconds at most, until the memory of an ended worker is seen free."""
        lease.phase = Phase.LEAVING
        pids = set(self._seen.measured.get(lease.owner.key, Measured()).pids)
        awaited = {
            device.id: _Taken(device, lease.held[device.id], lease.free_before.get(device.id, 0), pids)
            for device in self.machine.devices
            # The host's memory is free when the processes are gone, and they are.
            if device.id != HOST and lease.held.get(device.id)
        }
        if not any(taken.size for taken in awaited.values()):
            return
        deadline = self._clock.monotonic() + RETURN_S
        while True:
            await self.look(fresh=True)
            stuck = [
                f"GPU {device.index} still shows {gib(left)} of it in use"
                for device in self.machine.devices
                if device.id in awaited and (left := awaited[device.id].left(device))
            ]
            if not stuck:
                return
            if self._clock.monotonic() >= deadline:
                _log.warning("after the end of %s, %s", lease.owner.model, "; ".join(stuck))
                return
            await asyncio.sleep(RETURN_POLL_S)

    def drop(self, lease: Lease) -> None:
        """Take the lease out of the ledger."""
        if self._leases.get(lease.owner.key) is lease:
            del self._leases[lease.owner.key]
            self._seen.forget(lease.owner.key)
            self.changed()

    def changed(self) -> None:
        """Decide anew, soon."""
        self._dirty.set()

    def sizing(self, key: str) -> None:
        """A replica's size is being worked out: others should not load before the order is known."""
        self._sizing[key] = self._clock.monotonic() + SIZING_S

    def sized(self, key: str) -> None:
        """Its size is known, or will take long to be."""
        if self._sizing.pop(key, None) is not None:
            self.changed()

    def fits(self, demand: Demand) -> bool:
        """Say whether a demand could be placed right now, without anybody's leaving."""
        found = find(demand, self.spaces(), tuple(self._holdings()), evict=False)
        return isinstance(found, Found) and not found.victims

    def would(self, demand: Demand) -> Found | Refusal:
        """Say where a demand would go, and who would leave for it."""
        return find(demand, self.spaces(), tuple(self._holdings()), evict=True)

    def make_room(self, owner: Claimant, lease: Lease) -> None:
        """Evict every idle replica that holds memory where `lease` does: its owner ran out of memory."""
        for other in list(self._leases.values()):
            usage = other.owner.usage()
            shares = any(other.held.get(device) for device in lease.devices)
            if other is lease or other.phase is not Phase.SERVING or usage.in_flight or usage.pinned:
                continue
            if shares:
                self._evict(other, f"{owner.model} ran out of memory while loading", "out_of_memory")

    # --- fairness -------------------------------------------------------------------------------------------

    @property
    def contended(self) -> bool:
        """Whether anybody waits for memory: on the hot path nothing else is asked."""
        return bool(self._claims)

    def closed(self, key: str, seq: int, *, makes_way: bool = False) -> bool:
        """Say whether a replica may not take a request with this number: it has overtaken enough.

        One that `makes_way` overtakes nobody but its like.
        """
        return any(
            key in waiting.victims
            and seq > waiting.since
            and (waiting.overtaken >= OVERTAKES or (makes_way and not waiting.patient))
            for waiting in self._claims.values()
        )

    def granted(self, key: str, seq: int) -> None:
        """A replica took a request with this number."""
        for waiting in self._claims.values():
            if key in waiting.victims and seq > waiting.since:
                waiting.overtaken += 1
                self._overtook(waiting.owner.model)

    # --- deciding -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Decide whenever something changed, and look again at the machine while anybody waits."""
        while True:
            try:
                async with asyncio.timeout(self._patience()):
                    await self._dirty.wait()
            except TimeoutError:
                if not self._claims:
                    await self._watch_over()
            self._dirty.clear()
            if self._claims:
                await self.look()
                plan = scheduler.plan(self._view())
                if any(refusal.never in _SEEN for refusal in plan.refusals.values()):
                    # Nobody is refused for what a look a moment ago showed.
                    await self.look(fresh=True)
                    plan = scheduler.plan(self._view())
                self._carry_out(plan)
            self._reopened()

    def _patience(self) -> float | None:
        """Return the seconds after which to look without being asked; None for never."""
        if self._claims:
            return FRESH_S
        return CALM_S if self.machine.gpus and not self._seen.resting else None

    async def _watch_over(self) -> None:
        """Look after GPUs that serve; let go of the driver when none does."""
        if any(id_ != HOST for lease in self._leases.values() for id_ in lease.held):
            await self.look()
        else:
            self._seen.rest()

    def _carry_out(self, plan: Plan) -> None:
        for start in plan.starts:
            waiting = self._claims.pop(start.replica)
            free = {device.id: device.free for device in self.machine.devices}
            whole = bool(waiting.demand.gpus)
            lease = Lease(waiting.owner, dict(start.devices), free, held=dict(start.devices), exclusive=whole)
            self._leases[start.replica] = lease
            waiting.promised.set_result(lease)
        for eviction in plan.evictions:
            lease = self._leases[eviction.replica]
            busy = lease.owner.usage().in_flight > 0
            self._claims[eviction.claimant].paid = True
            self._evict(lease, eviction.reason, "forced" if busy else "memory")
        for key, waiting in list(self._claims.items()):
            if waiting.promised.done():
                continue
            waiting.victims = plan.victims.get(key, frozenset())
            if not waiting.patient:
                for victim in waiting.victims:
                    if (holder := self._leases.get(victim)) is not None:
                        holder.owner.make_way()
            refusal = plan.refusals.get(key)
            if refusal is not None and refusal.never is Never.EVER:
                self._claims.pop(key)
                waiting.promised.set_exception(
                    LoadFailed(refusal.message, code="does_not_fit", permanent=True)
                )
                continue
            words = plan.waits.get(key) or (refusal.message if refusal else "")
            if words != waiting.said:  # a hundred may wait, most of them for the same as before
                waiting.said = words
                turn = words == scheduler.UNSIZED or (refusal is None and self.fits(waiting.demand))
                waiting.owner.explain("turn" if turn else "memory", words)
            if refusal is not None and refusal.never is not Never.NO:
                waiting.owner.refuse(refusal)

    def _evict(self, lease: Lease, reason: str, kind: EvictionReason) -> None:
        lease.phase = Phase.LEAVING
        lease.owner.evict(reason)
        self._evicted(lease.owner.model, kind)

    def _view(self) -> View:
        now = self._clock.monotonic()
        claims = []
        for key, waiting in self._claims.items():
            if waiting.promised.done():
                continue  # withdrawn; its owner takes it away when it is its turn
            standing = waiting.owner.standing()
            active = standing.active and (not standing.patient or self._ripe(waiting, now))
            waiting.patient = standing.patient or not standing.active
            if not active or waiting.since != standing.since:
                waiting.since = standing.since
                waiting.overtaken = 0
            claims.append(
                Claim(
                    key,
                    waiting.owner.model,
                    waiting.demand,
                    active,
                    standing.since,
                    standing.priority,
                    standing.forced,
                    waiting.victims,
                    waiting.overtaken,
                    waiting.paid,
                )
            )
        return View(
            self.spaces(),
            tuple(self._holdings()),
            tuple(claims),
            self._cores,
            any(deadline > now for deadline in self._sizing.values()),
        )

    def _ripe(self, waiting: _Waiting, now: float) -> bool:
        """Say whether jobs alone may send models away: none is in use, or they have waited long enough."""
        if now - waiting.placed >= PATIENCE_S:
            return True
        usages = (
            lease.owner.usage()
            for lease in self._leases.values()
            if lease.phase is Phase.SERVING and lease.owner.model != waiting.owner.model
        )
        return all(usage.pinned or (not usage.in_flight and usage.idle_s >= QUIET_S) for usage in usages)

    def _holdings(self) -> Iterator[Holding]:
        for key, lease in self._leases.items():
            usage = lease.owner.usage()
            yield Holding(
                key,
                lease.owner.model,
                lease.held,
                lease.phase,
                usage.in_flight,
                usage.idle_s,
                usage.pinned,
                usage.priority,
                usage.reload_s,
                lease.exclusive,
            )

    # --- looking --------------------------------------------------------------------------------------------

    @property
    def machine(self) -> Machine:
        """The last look at the machine."""
        return self._seen.machine

    async def look(self, *, fresh: bool = False) -> Machine:
        """Look at the machine and the workers, unless the last look is young; see `Observation.look`."""
        if await self._seen.look(self._pids, fresh=fresh):
            for lease in self._leases.values():
                self._charge(lease)
        return self.machine

    async def measure(self, owner: Claimant) -> Measured:
        """Return the most that a replica's worker has been seen to take, with a look at it now."""
        await self.look(fresh=True)
        return self._seen.peaks.get(owner.key, Measured())

    def measured(self, key: str) -> Measured | None:
        """Return the last measurement of a replica."""
        return self._seen.measured.get(key)

    def lease(self, key: str) -> Lease | None:
        """Return what a replica was promised."""
        return self._leases.get(key)

    def held(self, device: str) -> dict[str, int]:
        """Return the bytes that count as held on a device, by replica."""
        return {key: size for key, lease in self._leases.items() if (size := lease.held.get(device, 0))}

    def spaces(self) -> tuple[Space, ...]:
        """Return every device as the scheduler sees it."""
        return self._seen.spaces(Charge(lease.held, lease.phase) for lease in self._leases.values())

    def _pids(self) -> dict[str, int]:
        return {key: pid for key, lease in self._leases.items() if (pid := lease.owner.pid) is not None}

    def _charge(self, lease: Lease) -> None:
        """Count a loaded replica for the most it was seen to take, but for its owner's own figure."""
        measured = self._seen.peaks.get(lease.owner.key)
        if lease.phase is not Phase.SERVING or measured is None:
            return
        held = dict(lease.devices)
        for device, promised in lease.devices.items():
            size = measured.ram if device == HOST else measured.gpus.get(device, 0)
            if size:  # 0: the driver does not tell, and the promise stands
                held[device] = max(promised, size) if lease.explicit else int(size * (1 + MARGIN))
        lease.held = held


class _Taken:
    """What an ended worker had taken of a device: `size` bytes."""

    def __init__(self, device: Device, held: int, free_before: int, pids: set[int]) -> None:
        self._pids = pids
        self._free = device.free
        processes = device.processes or {}
        self._told = any(pid in pids for pid in processes)
        if self._told:
            self.size = sum(size for pid, size in processes.items() if pid in pids)
        else:
            # The driver does not tell whose memory it is: no more comes back than had gone.
            self.size = min(held, max(free_before - device.free, 0))

    def left(self, now: Device) -> int:
        """Return the bytes that are not free yet, 0 when as good as all are."""
        if now.condition is not Condition.OK:
            return 0
        if self._told:
            left = sum(size for pid, size in (now.processes or {}).items() if pid in self._pids)
        else:
            left = self.size - max(now.free - self._free, 0)
        return left if left > (1 - RETURNED_SHARE) * self.size else 0

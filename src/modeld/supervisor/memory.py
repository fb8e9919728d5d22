"""The one writer of the memory ledger: who was promised what, who waits for it, and when to decide anew.

Decisions are `scheduler.plan`'s. Here are the facts it decides on (looks at the machine, in a thread, never
more often than needed) and the carrying out. Memory of a replica that has stopped is given to nobody before
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
from modeld.hardware import host
from modeld.hardware.machine import HOST, Condition, Device, Kind, Machine, Probe
from modeld.supervisor import scheduler
from modeld.supervisor.placement import Demand, Found, Holding, Never, Phase, Refusal, Space, find, gib
from modeld.supervisor.scheduler import OVERTAKES, Claim, Plan, View
from modeld.telemetry.metrics import EvictionReason

_log = logging.getLogger("modeld.supervisor")

FRESH_S = 1.0
"""Seconds a look at the machine stays good for a decision; also the pace of looks while somebody waits."""

CALM_S = 60.0
"""Seconds between looks at GPUs that serve when nobody waits for memory; after as long without any worker
there the driver is let go.
"""

LOOK_LIMIT_S = 10.0
"""Seconds a look may take: a driver that hangs must not hang the models that are well."""

RETURN_S = 5.0
"""Seconds within which the memory of an ended worker must be seen free."""

RETURN_POLL_S = 0.05
"""Seconds between looks for it."""

RETURNED_SHARE = 0.95
"""Part of what a worker's processes held that must be free again."""

MARGIN = 0.05
"""Added to a measured size: engines still grow a little after they are loaded."""

SIZING_S = 5.0
"""Seconds for which the size of one model may hold up the loads of the others."""

_SEEN = (Never.OTHERS, Never.DEVICE)
"""Refusals that rest on a look at the machine."""

WORTH_NAMING = 64 << 20
"""Bytes of other programs that are worth a word in a refusal."""


@dataclass(frozen=True)
class Limits:
    """The owner's limits. `ram`, and `vram` of each GPU: bytes that models may take in all, None for what
    there is. `headroom`: share of a device that is never given away; the system lives there.
    """

    ram: int | None = None
    vram: int | None = None
    headroom: float = 0.1


@dataclass(frozen=True)
class Standing:
    """How urgent a claim is; see `scheduler.Claim`."""

    active: bool
    since: int
    priority: int
    forced: bool = False


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


@dataclass(eq=False)
class Lease:
    """Memory promised to a replica: bytes by device. Only `Memory` changes it."""

    owner: Claimant
    devices: Mapping[str, int]
    phase: Phase = Phase.LOADING
    held: Mapping[str, int] = field(default_factory=dict)
    """What counts now: the promise, and after loading the measurement."""


@dataclass(frozen=True)
class Measured:
    """A worker's process tree: its pids, resident bytes, and bytes on each GPU where the driver tells."""

    pids: tuple[int, ...]
    ram: int
    gpus: Mapping[str, int]


@dataclass(eq=False)
class _Waiting:
    owner: Claimant
    demand: Demand
    promised: asyncio.Future[Lease]
    since: int = 0
    victims: frozenset[str] = frozenset()
    overtaken: int = 0


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
        self._probe = probe
        self._clock = clock
        self._limits = limits
        self._cores = cores
        self._reopened = reopened
        self._evicted = evicted
        self._overtook = overtook
        self._claims: dict[str, _Waiting] = {}
        self._leases: dict[str, Lease] = {}
        self._sizing: dict[str, float] = {}
        self._dirty = asyncio.Event()
        self._looking: asyncio.Lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._resting = False
        self.machine = Machine(())
        self._measured: dict[str, Measured] = {}

    # --- asking ---------------------------------------------------------------------------------------------

    def place(self, owner: Claimant, demand: Demand) -> Coroutine[Any, Any, Lease]:
        """Claim now; awaiting what is returned waits until the demand is promised.

        That raises LoadFailed (permanent) when the demand can never fit. Cancelling withdraws the claim.
        """
        waiting = _Waiting(owner, demand, asyncio.get_running_loop().create_future())
        standing = owner.standing()
        if standing.active:
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
            if waiting.promised.done() and not waiting.promised.cancelled():
                self.drop(waiting.promised.result())
            raise
        finally:
            if self._claims.get(waiting.owner.key) is waiting:
                del self._claims[waiting.owner.key]
                self.changed()  # who was held up by this claim goes on

    def loaded(self, lease: Lease, measured: Measured, *, explicit: bool) -> None:
        """The replica serves: what was measured replaces what was promised, but for the owner's figure."""
        lease.phase = Phase.SERVING
        held = dict(lease.devices)
        sizes = {HOST: measured.ram, **measured.gpus}
        for device in held:
            size = sizes.get(device)
            if size is None or (device != HOST and not measured.gpus):
                continue  # this driver does not tell: the promise stands
            counted = int(size * (1 + MARGIN))
            held[device] = max(held[device], size) if explicit else counted
        lease.held = held
        self.changed()

    def leaving(self, lease: Lease) -> None:
        """The replica has been told to stop."""
        lease.phase = Phase.LEAVING

    async def returned(self, lease: Lease) -> None:
        """Wait, RETURN_S seconds at most, until the memory of an ended worker is seen free."""
        lease.phase = Phase.LEAVING
        gpus = {id_: size for id_, size in lease.held.items() if id_ != HOST and size}
        if not gpus:
            return  # the host's memory is free when the processes are gone, and they are
        pids = set(self._measured[lease.owner.key].pids) if lease.owner.key in self._measured else set()
        before = {device.id: device for device in self.machine.devices}
        deadline = self._clock.monotonic() + RETURN_S
        while stuck := [words for words in self._unreturned(gpus, pids, before)]:
            if self._clock.monotonic() >= deadline:
                _log.warning("after the end of %s, %s", lease.owner.model, "; ".join(stuck))
                return
            await asyncio.sleep(RETURN_POLL_S)
            await self.look(fresh=True)

    def drop(self, lease: Lease) -> None:
        """Take the lease out of the ledger."""
        if self._leases.get(lease.owner.key) is lease:
            del self._leases[lease.owner.key]
            self._measured.pop(lease.owner.key, None)
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

    def closed(self, key: str, seq: int) -> bool:
        """Say whether a replica may not take a request with this number: it has overtaken enough."""
        return any(
            key in waiting.victims and seq > waiting.since and waiting.overtaken >= OVERTAKES
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
        return CALM_S if self.machine.gpus and not self._resting else None

    async def _watch_over(self) -> None:
        """Look after GPUs that serve; let go of the driver when none does."""
        if any(id_ != HOST for lease in self._leases.values() for id_ in lease.held):
            await self.look()
        else:
            self._resting = True
            self._probe.rest()

    def _carry_out(self, plan: Plan) -> None:
        for start in plan.starts:
            waiting = self._claims.pop(start.replica)
            lease = Lease(waiting.owner, dict(start.devices), held=dict(start.devices))
            self._leases[start.replica] = lease
            waiting.promised.set_result(lease)
        for eviction in plan.evictions:
            lease = self._leases[eviction.replica]
            busy = lease.owner.usage().in_flight > 0
            self._evict(lease, eviction.reason, "forced" if busy else "memory")
        for key, waiting in list(self._claims.items()):
            if waiting.promised.done():
                continue
            waiting.victims = plan.victims.get(key, frozenset())
            refusal = plan.refusals.get(key)
            if refusal is not None and refusal.never is Never.EVER:
                self._claims.pop(key)
                waiting.promised.set_exception(
                    LoadFailed(refusal.message, code="does_not_fit", permanent=True)
                )
                continue
            cause = "turn" if refusal is None and self.fits(waiting.demand) else "memory"
            waiting.owner.explain(cause, plan.waits.get(key) or (refusal.message if refusal else ""))
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
            if not standing.active or waiting.since != standing.since:
                waiting.since = standing.since
                waiting.overtaken = 0
            claims.append(
                Claim(
                    key,
                    waiting.owner.model,
                    waiting.demand,
                    standing.active,
                    standing.since,
                    standing.priority,
                    standing.forced,
                    waiting.victims,
                )
            )
        return View(
            self.spaces(),
            tuple(self._holdings()),
            tuple(claims),
            self._cores,
            any(deadline > now for deadline in self._sizing.values()),
        )

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
            )

    # --- looking --------------------------------------------------------------------------------------------

    async def look(self, *, fresh: bool = False) -> Machine:
        """Look at the machine, unless the last look is FRESH_S seconds young; return what is known."""
        asked = self._clock.monotonic()
        async with self._looking:
            if self._looked_at >= asked or (not fresh and asked - self._looked_at < FRESH_S):
                return self.machine
            # When it began: what happened during a look may or may not be in it.
            self._looked_at = self._clock.monotonic()
            self._resting = False
            pids = {key: pid for key, lease in self._leases.items() if (pid := lease.owner.pid) is not None}
            try:
                async with asyncio.timeout(LOOK_LIMIT_S):
                    machine, measured = await asyncio.to_thread(_observe, self._probe, pids)
            except TimeoutError:
                _log.warning(
                    "looking at the machine took over %g s; going on with the last look", LOOK_LIMIT_S
                )
            else:
                _tell_changes(self.machine, machine)
                self.machine = machine
                self._measured |= {key: found for key, found in measured.items() if key in self._leases}
            return self.machine

    async def measure(self, owner: Claimant) -> Measured:
        """Return what a replica's worker takes now."""
        await self.look(fresh=True)
        return self._measured.get(owner.key) or Measured((), 0, {})

    def measured(self, key: str) -> Measured | None:
        """Return the last measurement of a replica."""
        return self._measured.get(key)

    def lease(self, key: str) -> Lease | None:
        """Return what a replica was promised."""
        return self._leases.get(key)

    def held(self, device: str) -> dict[str, int]:
        """Return the bytes that count as held on a device, by replica."""
        return {key: size for key, lease in self._leases.items() if (size := lease.held.get(device, 0))}

    def spaces(self) -> tuple[Space, ...]:
        """Return every device as the scheduler sees it."""
        return tuple(self._space(device) for device in self.machine.devices)

    def _space(self, device: Device) -> Space:
        on_gpu = device.kind is Kind.GPU
        label = f"GPU {device.index}" if on_gpu else "this machine"
        room = int(device.total * (1 - self._limits.headroom))
        foreign, words = self._others(device)
        budget = self._limits.vram if on_gpu else self._limits.ram
        usable = max(room - foreign, 0)
        if budget is not None and budget <= usable:
            usable, words = budget, ""  # others use some, and it changes nothing
        ok = device.condition is Condition.OK
        limit = room if budget is None else min(room, budget)
        return Space(
            device.id, device.kind, label, device.total, usable, words, ok, device.message, limit=limit
        )

    def _others(self, device: Device) -> tuple[int, str]:
        """Return the bytes that other programs use on a device, and words for them."""
        used = max(device.total - device.free, 0)
        ours = 0
        leaving = 0
        named: list[str] = []
        if device.kind is Kind.GPU:
            if device.processes is not None:
                own = {pid for found in self._measured.values() for pid in found.pids}
                ours = sum(size for pid, size in device.processes.items() if pid in own)
                named = [
                    f"pid {pid}: {gib(size)}"
                    for pid, size in sorted(device.processes.items(), key=lambda item: -item[1])[:3]
                    if pid not in own
                ]
            else:
                ours = sum(lease.held.get(device.id, 0) for lease in self._leases.values())
            leaving = sum(
                lease.held.get(device.id, 0)
                for lease in self._leases.values()
                if lease.phase is Phase.LEAVING and device.processes is not None
            )
        else:
            ours = sum(found.ram for found in self._measured.values())
        foreign = max(used - ours - leaving, 0)
        if foreign < WORTH_NAMING:
            return foreign, ""
        who = f" ({', '.join(named)})" if named else ""
        return foreign, f"{gib(foreign)} used by other programs{who}"

    def _unreturned(
        self, gpus: Mapping[str, int], pids: set[int], before: Mapping[str, Device]
    ) -> Iterator[str]:
        """Name the devices that do not show an ended worker's memory free."""
        for device in self.machine.devices:
            size = gpus.get(device.id)
            if size is None or device.condition is not Condition.OK:
                continue
            then = before[device.id].free if device.id in before else 0
            if device.processes is not None:
                still = sum(held for pid, held in device.processes.items() if pid in pids)
            else:
                still = max(int(size * RETURNED_SHARE) - max(device.free - then, 0), 0)
            if still > (1 - RETURNED_SHARE) * size:
                yield f"GPU {device.index} still shows {gib(still)} of it in use"


def _tell_changes(before: Machine, now: Machine) -> None:
    """Log devices whose condition has changed."""
    known = {device.id: device.condition for device in before.devices}
    for device in now.devices:
        was = known.get(device.id, Condition.OK)
        if device.condition is not was:
            words = device.message or f"it is {device.condition} again"
            level = logging.INFO if device.condition is Condition.OK else logging.ERROR
            _log.log(level, "%s: %s", device.name, words)


def _observe(probe: Probe, pids: Mapping[str, int]) -> tuple[Machine, dict[str, Measured]]:
    """Look, in a thread."""
    machine = probe.look()
    measured = {}
    for key, pid in pids.items():
        tree = host.tree_pids(pid)
        gpus = {
            device.id: sum(size for held, size in device.processes.items() if held in tree)
            for device in machine.devices
            if device.processes is not None
        }
        measured[key] = Measured(tree, host.tree_memory(pid), gpus)
    return machine, measured

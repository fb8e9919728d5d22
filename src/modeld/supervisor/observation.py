"""What the machine shows: looks in a thread, never more often than needed, and what models may use of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from modeld.clock import Clock
from modeld.hardware import host
from modeld.hardware.machine import Condition, Device, Kind, Machine, Probe
from modeld.supervisor.scheduling.placement import Phase, Space, gib

_log = logging.getLogger("modeld.supervisor")

FRESH_S = 1.0
"""Seconds a look at the machine stays good for a decision; also the pace of looks while somebody waits."""

LOOK_LIMIT_S = 10.0
"""Seconds a look may take: a driver that hangs must not hang the models that are well."""

WORTH_NAMING = 64 << 20
"""Bytes of other programs that are worth a word in a refusal."""

NAMED = 3
"""Processes of other programs that a refusal names, the largest first."""


@dataclass(frozen=True)
class Limits:
    """The owner's limits. `ram`, and `vram` of each GPU: bytes that models may take in all, None for what
    there is. `headroom`: share of a device that is never given away; the system lives there.
    """

    ram: int | None = None
    vram: int | None = None
    headroom: float = 0.1


@dataclass(frozen=True)
class Measured:
    """A worker's process tree: its pids, resident bytes, and bytes on each GPU where the driver tells."""

    pids: tuple[int, ...] = ()
    ram: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)

    def larger(self, other: Measured) -> Measured:
        """Return the larger of both in every memory, with this one's pids."""
        gpus = {id_: max(self.gpus.get(id_, 0), other.gpus.get(id_, 0)) for id_ in {*self.gpus, *other.gpus}}
        return Measured(self.pids, max(self.ram, other.ram), gpus)


@dataclass(frozen=True)
class Charge:
    """What a replica counts for on each device."""

    held: Mapping[str, int]
    phase: Phase


class Observation:
    """The last look at the machine and at the workers, by replica key."""

    def __init__(self, probe: Probe, clock: Clock, limits: Limits) -> None:
        self.machine = Machine(())
        self.measured: dict[str, Measured] = {}
        self.peaks: dict[str, Measured] = {}
        self.resting = False
        self._probe = probe
        self._clock = clock
        self._limits = limits
        self._turn = asyncio.Lock()
        self._began = float("-inf")

    async def look(self, pids: Callable[[], Mapping[str, int]], *, fresh: bool = False) -> bool:
        """Look at the machine and the workers (`pids`: key → pid), unless the last look is FRESH_S seconds
        young; with `fresh` unless it began after this call. Return whether there is something new.
        """
        asked = self._clock.monotonic()
        async with self._turn:
            if self._began >= asked or (not fresh and asked - self._began < FRESH_S):
                return False
            # When it began: what happened during a look may or may not be in it.
            self._began = self._clock.monotonic()
            self.resting = False
            try:
                async with asyncio.timeout(LOOK_LIMIT_S):
                    machine, measured = await asyncio.to_thread(_observe, self._probe, pids())
            except TimeoutError:
                _log.warning("a look at the machine took over %g s; the last one stands", LOOK_LIMIT_S)
                return False
            except Exception:  # a defect of the probe must not end the daemon: models serve without it
                _log.exception("a look at the machine failed; the last one stands")
                return False
            _tell_changes(self.machine, machine)
            self.machine = machine
            for key in measured.keys() & pids().keys():
                self.measured[key] = found = measured[key]
                self.peaks[key] = found.larger(self.peaks.get(key, found))
            return True

    def forget(self, key: str) -> None:
        """A replica holds nothing any more."""
        self.measured.pop(key, None)
        self.peaks.pop(key, None)

    def rest(self) -> None:
        """Let go of the driver until the next look."""
        self.resting = True
        self._probe.rest()

    def spaces(self, charges: Iterable[Charge]) -> tuple[Space, ...]:
        """Return every device as the scheduler sees it, given what replicas count for."""
        charges = tuple(charges)
        return tuple(self._space(device, charges) for device in self.machine.devices)

    def _space(self, device: Device, charges: tuple[Charge, ...]) -> Space:
        on_gpu = device.kind is Kind.GPU
        budget = self._limits.vram if on_gpu else self._limits.ram
        room = int(device.total * (1 - self._limits.headroom))
        limit = room if budget is None else min(room, budget)
        foreign, words = self._others(device, charges)
        usable = max(room - foreign, 0)
        if usable >= limit:
            usable, words = limit, ""  # others use some, and it changes nothing
        return Space(
            device.id,
            device.kind,
            f"GPU {device.index}" if on_gpu else "this machine",
            device.total,
            usable,
            words,
            device.condition is Condition.OK,
            device.message,
            limit=limit,
        )

    def _others(self, device: Device, charges: tuple[Charge, ...]) -> tuple[int, str]:
        """Return the bytes that other programs use on a device, and words for them."""
        used = max(device.total - device.free, 0)
        named: list[str] = []
        if device.kind is not Kind.GPU:
            ours = sum(found.ram for found in self.measured.values())
        else:
            own = {pid for found in self.measured.values() for pid in found.pids}
            processes = device.processes or {}
            told = any(pid in own for pid in processes)
            ours = sum(size for pid, size in processes.items() if pid in own)
            held = {phase: 0 for phase in Phase}
            for charge in charges:
                held[charge.phase] += charge.held.get(device.id, 0)
            # What an ended worker held is on its way back, and nobody else's.
            ours += held[Phase.LEAVING]
            if not told:
                # The driver does not tell, or tells the pids of another namespace (a container).
                ours = sum(held.values())
            named = [
                f"pid {pid}: {gib(size)}"
                for pid, size in sorted(processes.items(), key=lambda item: -item[1])
                if pid not in own
            ][:NAMED]
        foreign = max(used - ours, 0)
        if foreign < WORTH_NAMING:
            return foreign, ""
        who = f" ({', '.join(named)})" if named else ""
        return foreign, f"{gib(foreign)} used by other programs{who}"


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

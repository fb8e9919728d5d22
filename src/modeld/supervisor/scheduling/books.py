"""The working ledger of one decision: what is held, what may be started now, what is spoken for. Pure.

Devices are numbered here (0, 1, …, in the order of their labels), because a decision looks at every device
for every claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from modeld.hardware.machine import Kind
from modeld.supervisor.scheduling.demand import Demand, Holding, Never, Phase, Space

LOADING, SERVING, LEAVING = Phase.LOADING, Phase.SERVING, Phase.LEAVING  # an enum's lookup costs


class Entry:
    """One replica in the books. `going`: it leaves in any case. `claimed`: a claim counts on it."""

    __slots__ = ("claimed", "going", "held", "holding", "key", "model", "phase", "weight")

    def __init__(self, holding: Holding, held: Mapping[int, int]) -> None:
        self.holding = holding
        self.key = holding.replica
        self.model = holding.model
        self.phase = holding.phase
        self.held = held
        self.going = holding.phase is LEAVING
        self.claimed = False
        self.weight = (1 + holding.reload_s) / (1 + holding.idle_s)
        """What its going costs: its load, the less the longer nobody asked for it."""

    @property
    def fixed(self) -> bool:
        """Whether nobody may send it away."""
        return self.holding.pinned and self.phase is not LEAVING


class Books:
    """Bytes by device.

    `free`: what nobody holds now. `room`: the part of it that can be taken now without delaying a claim that
    waits. `spoken`: what waiting claims will take. `pinned`: what nobody may send away; `movable`: what
    others hold, those that leave included; `going`: what those who leave hold.
    """

    def __init__(self, spaces: Iterable[Space], holdings: Iterable[Holding]) -> None:
        self.spaces = sorted(spaces, key=lambda space: (len(space.label), space.label, space.id))
        numbers = {space.id: at for at, space in enumerate(self.spaces)}
        self.numbers = numbers
        count = len(self.spaces)
        self.usable = [max(space.usable, 0) for space in self.spaces]
        self.is_gpu = [space.kind is Kind.GPU for space in self.spaces]
        self.gpus = [at for at, space in enumerate(self.spaces) if space.kind is Kind.GPU]
        self.good_gpus = [at for at in self.gpus if self.spaces[at].ok]
        hosts = [at for at, space in enumerate(self.spaces) if space.kind is not Kind.GPU]
        self.host = next(iter(hosts), None)
        self.unified = self.host is not None and self.spaces[self.host].kind is Kind.UNIFIED
        self.on: list[list[Entry]] = [[] for _ in range(count)]
        self.pinned = [0] * count
        self.movable = [0] * count
        self.going = [0] * count
        self.entries: list[Entry] = []
        self.free = list(self.usable)
        for holding in sorted(holdings, key=lambda holding: holding.replica):
            self._enter(holding, {numbers[id_]: size for id_, size in holding.held.items() if id_ in numbers})
        self.room = list(self.free)
        self.spoken = [0] * count
        self._later = list(self.free)
        self.speakers: list[list[tuple[str, int]]] = [[] for _ in range(count)]
        """The claims that wait for a place on each device: model and bytes."""
        self.words: dict[int, str] = {}
        """What is said of a device in refusals, until it changes."""
        self.sayings: dict[tuple[Never, ...], str] = {}
        """What is said of all GPUs together, by what can be hoped of each; until one changes."""

    def sure(self, at: int) -> int:
        """Return what is free on a device and not spoken for; below zero when waiting claims want more."""
        return self.free[at] - self.spoken[at]

    def gpu_bytes(self, demand: Demand, at: int) -> int:
        """Return what a demand for a part of one GPU takes of this one."""
        return math.ceil(demand.share * self.spaces[at].total) if demand.share else demand.vram

    def host_bytes(self, demand: Demand) -> int:
        """Return what a demand takes of the host; on unified memory, its GPU part too.

        A "whole GPU" cannot be parted from the rest of unified memory: there it is counted in bytes, and
        takes everything only when nobody knows how many.
        """
        if not self.unified or self.host is None:
            return demand.ram
        if demand.gpus and not demand.vram:
            return max(self.usable[self.host], demand.ram)
        return demand.ram + self.gpu_bytes(demand, self.host)

    def _enter(self, holding: Holding, held: dict[int, int]) -> None:
        if holding.exclusive:
            for at in held:
                if self.is_gpu[at]:
                    held[at] = max(held[at], self.usable[at])
        entry = Entry(holding, held)
        self.entries.append(entry)
        for at, size in held.items():
            if size:
                self.on[at].append(entry)
                self.free[at] -= size
                (self.pinned if entry.fixed else self.movable)[at] += size
                if entry.going:
                    self.going[at] += size

    def send_away(self, entry: Entry) -> None:
        """Take note that a replica is told to leave."""
        entry.going = True
        for at, size in entry.held.items():
            self.going[at] += size

    def start(self, replica: str, model: str, devices: Mapping[int, int], *, exclusive: bool) -> None:
        """Enter a replica that is started now."""
        ids = {self.spaces[at].id: size for at, size in devices.items()}
        for at, size in devices.items():
            self.room[at] -= size
            self._later[at] -= size
        self._changed(devices)
        self._enter(Holding(replica, model, ids, LOADING, exclusive=exclusive), dict(devices))

    def speak_for(self, model: str, devices: Mapping[int, int], leavers: Sequence[Entry]) -> None:
        """Keep a place for a claim that waits for `leavers` to go, or for its turn."""
        for entry in leavers:
            if not entry.claimed:
                entry.claimed = True
                for at, size in entry.held.items():
                    self._later[at] += size
        for at, size in devices.items():
            if size:
                self.spoken[at] += size
                self._later[at] -= size
                self.speakers[at].append((model, size))
        self._changed(devices)
        # A start may take what is over once all who leave for the claims up to here have left: at every step
        # in the line, so that the first is not delayed because a later one's leavers bring much.
        for at, later in enumerate(self._later):
            if later < self.room[at]:
                self.room[at] = later

    def _changed(self, devices: Iterable[int]) -> None:
        self.sayings.clear()
        for at in devices:
            self.words.pop(at, None)

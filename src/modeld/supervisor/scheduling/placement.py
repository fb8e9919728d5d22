"""What fits where: a place for a demand, and who must go for it. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from modeld.supervisor.scheduling.books import LOADING, Books, Entry
from modeld.supervisor.scheduling.demand import Demand, Found, Holding, Never, Phase, Refusal, Space, gib
from modeld.supervisor.scheduling.shortage import explain
from modeld.supervisor.scheduling.victims import SUM, Search, choose, cost, ranking

__all__ = [
    "Demand",
    "Found",
    "Holding",
    "Never",
    "Phase",
    "Place",
    "Refusal",
    "Space",
    "find",
    "gib",
    "search",
]

GROUPS = 512
"""Groups of GPUs that are compared at most; beyond, the cheapest GPUs are taken one by one."""


def find(
    demand: Demand,
    spaces: Sequence[Space],
    holdings: Sequence[Holding],
    *,
    evict: bool,
    forced: bool = False,
    prefer: frozenset[str] = frozenset(),
) -> Found | Refusal:
    """Return a place for a demand, or why there is none.

    `evict`: replicas that serve may be sent away for it, the idle before the busy; without it only those
    that leave anyway are waited for. `prefer`: replicas chosen before. `forced` changes nothing here: it
    tells the scheduler not to wait for the busy ones.
    """
    books = Books(spaces, holdings)
    place = search(books, Search(demand, evict=evict, prefer=prefer))
    if place is None or any(entry.phase is LOADING for entry in place.leavers):
        return explain(books, demand)
    return Found(
        {books.spaces[at].id: size for at, size in place.devices.items()},
        frozenset(entry.key for entry in place.leavers),
    )


@dataclass(frozen=True)
class Place:
    """Bytes by device number, and the replicas that must go first."""

    devices: Mapping[int, int]
    leavers: Sequence[Entry] = ()


def search(books: Books, what: Search) -> Place | None:
    """Return the best place in the books: one that is free now, else the one whose leavers cost least."""
    demand = what.demand
    if demand.ram and not _good_host(books):
        return None
    if demand.on_gpu and not books.unified:
        if demand.gpus:
            return _whole(books, what)
        if demand.spread and demand.vram > max((books.usable[at] for at in books.good_gpus), default=0):
            return _spread(books, what)
        if demand.share:
            spots = [(at, books.gpu_bytes(demand, at)) for at in books.good_gpus]
        else:
            spots = [(at, demand.vram) for at in books.good_gpus]
        return _cheapest(books, what, spots, demand.ram)
    if not _good_host(books) or demand.gpus > 1:
        return None
    assert books.host is not None
    return _cheapest(books, what, [(books.host, books.host_bytes(demand))], 0)


def _good_host(books: Books) -> bool:
    return books.host is not None and books.spaces[books.host].ok


# --- one device, or one and the host -----------------------------------------------------------------------


def _cheapest(books: Books, what: Search, spots: Sequence[tuple[int, int]], ram: int) -> Place | None:
    """Choose between devices, given with the bytes on each; `ram` is needed of the host beside them."""
    room, shun = books.room, what.shun
    host = {books.host: ram} if ram and books.host is not None else {}
    beside = {at: size - books.sure(at) for at, size in host.items() if size > room[at]}
    if not beside:
        free = [(at in shun, room[at] - size, at, size) for at, size in spots if size <= room[at] or not size]
        if free:
            _, _, at, size = min(free)
            return Place({at: size} | host)
    reach = books.movable if what.evict else books.going
    if any(size > reach[at] for at, size in beside.items()):
        return None
    places = []
    for at, size in spots:
        lacking = 0 if size <= room[at] else size - books.sure(at)
        if lacking > reach[at] or size > books.usable[at]:
            continue
        leavers = choose(books, what, {at: lacking} | beside)
        if leavers is not None:
            left = books.sure(at) + sum(entry.held.get(at, 0) for entry in leavers) - size
            places.append((cost(what, leavers), left, at, Place({at: size} | host, leavers)))
    return min(places, key=lambda option: option[:3])[3] if places else None


def _short(books: Books, at: int, size: int) -> int:
    """Return the bytes that must still come free on a device."""
    return 0 if not size or size <= books.room[at] else size - books.sure(at)


# --- several GPUs -------------------------------------------------------------------------------------------


def _groups(gpus: Sequence[int], size: int) -> Iterable[tuple[int, ...]]:
    """Give the groups of so many GPUs; of too many groups only that of the first GPUs."""
    if math.comb(len(gpus), size) <= GROUPS:
        return itertools.combinations(sorted(gpus), size)
    return [tuple(sorted(gpus[:size]))]


def _whole(books: Books, what: Search) -> Place | None:
    """Find so many GPUs that are empty, or can be made so; engines part a model evenly between them."""
    demand = what.demand
    each = max(math.ceil(demand.vram / demand.gpus), 1)
    ranks = {}
    for at in books.good_gpus:
        ranked = [ranking(what, entry) for entry in books.on[at]]
        if books.usable[at] >= each and not books.spoken[at] and all(ranked):
            ranks[at] = max((rank[:3] for rank in ranked if rank), default=(-1, False, 0))
    gpus = sorted(ranks, key=lambda at: (ranks[at], books.usable[at], at))
    places = []
    for group in _groups(gpus, demand.gpus):
        leavers = list({entry.key: entry for at in group for entry in books.on[at]}.values())
        devices = {at: books.usable[at] for at in group}
        if demand.ram and books.host is not None:
            devices[books.host] = demand.ram
            short = _short(books, books.host, demand.ram)
            short -= sum(entry.held.get(books.host, 0) for entry in leavers)
            more = choose(books, what, {books.host: short}, leaving=leavers)
            if more is None:
                continue
            leavers += more
        size = sum(books.usable[at] for at in group)
        places.append((cost(what, leavers), size, group, Place(devices, leavers)))
    return min(places, key=lambda option: (bool(option[3].leavers), *option[:3]))[3] if places else None


def _spread(books: Books, what: Search) -> Place | None:
    """Find the fewest GPUs that hold it together, free ones if there are enough, and part it among them."""
    demand = what.demand
    host = {books.host: demand.ram} if demand.ram and books.host is not None else {}
    largest = sorted(books.good_gpus, key=lambda at: (-books.usable[at], at))
    sums = list(itertools.accumulate(books.usable[at] for at in largest))
    sizes = [size for size, total in enumerate(sums, 1) if total >= demand.vram]
    if all(size <= books.room[at] for at, size in host.items()):
        roomy = sorted((at for at in largest if books.room[at] > 0), key=lambda at: (-books.room[at], at))
        for size in sizes:
            free = [(sum(books.room[at] for at in group), group) for group in _groups(roomy, size)]
            if fitting := [(total, group) for total, group in free if total >= demand.vram]:
                room = {at: books.room[at] for at in min(fitting)[1]}
                return Place(_parted(demand.vram, room) | host)
    for size in sizes:
        places = []
        for group in _groups(largest, size):
            short = {at: _short(books, at, need) for at, need in host.items()}
            short |= {at: -books.sure(at) for at in group}
            short[SUM] = demand.vram - sum(books.sure(at) for at in group)
            leavers = choose(books, what, short, group=group)
            if leavers is not None:
                room = {at: books.sure(at) + sum(e.held.get(at, 0) for e in leavers) for at in group}
                place = Place(_parted(demand.vram, room) | host, leavers)
                places.append((cost(what, leavers), sum(room.values()), group, place))
        if places:
            return min(places, key=lambda option: option[:3])[3]
    return None


def _parted(size: int, room: Mapping[int, int]) -> dict[int, int]:
    """Part bytes among devices in proportion to their room."""
    total = sum(room.values())
    parts = {at: size * space // total for at, space in room.items()}
    rest = size - sum(parts.values())
    for at, space in room.items():
        more = min(rest, space - parts[at])
        parts[at] += more
        rest -= more
    return parts

"""Who must go so that a claim gets its memory: nobody in vain, and those who are missed least. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modeld.supervisor.scheduling.books import LOADING, Books, Entry
from modeld.supervisor.scheduling.demand import Demand

SUM = -1
"""Stands for a group of GPUs together, where a device's number is expected."""

_NOW, _IDLE, _CLAIMED, _KEPT, _BUSY, _COMING = range(6)
"""How gladly a replica is sent away: it goes anyway; nobody uses it; another claim waits for its requests to
end; this claim does already; it is busy; it is still loading.
"""


@dataclass(frozen=True)
class Search:
    """What is looked for. `model`: whose replicas are not sent away for one another. `shun`: devices that
    are taken only when no other will do.
    """

    demand: Demand
    evict: bool = False
    prefer: frozenset[str] = frozenset()
    model: str | None = None
    shun: Collection[int] = ()


_Rank = tuple[int, bool, int, float, str]
"""Orders candidates, the first to go first: how gladly, kept or not, priority, cost, key."""


def ranking(what: Search, entry: Entry) -> _Rank | None:
    """Return a replica's rank among those that may go; None for one that must not."""
    holding = entry.holding
    if entry.going:
        return (_NOW, False, 0, 0.0, entry.key)
    if not what.evict or holding.pinned or entry.model == what.model:
        return None
    kept = entry.key in what.prefer
    if entry.phase is LOADING:
        how = _COMING
    elif not holding.in_flight:
        how = _IDLE
    elif entry.claimed:
        how = _CLAIMED
    else:
        how = _KEPT if kept else _BUSY
    return (how, not kept, holding.priority, entry.weight, entry.key)


def _ranked(what: Search, entries: Iterable[Entry]) -> Iterator[tuple[_Rank, Entry]]:
    for entry in entries:
        rank = ranking(what, entry)
        if rank is not None:
            yield rank, entry


def cost(what: Search, leavers: Iterable[Entry]) -> tuple[tuple[int, int], float, int]:
    """Return what a set's going costs: its worst member, then all that must be loaded again."""
    ranks = [rank for rank, _ in _ranked(what, leavers) if rank[0] is not _NOW]
    worst = max(((rank[0], rank[2]) for rank in ranks), default=(_NOW, 0))
    return worst, sum(rank[3] for rank in ranks), len(ranks)


def choose(
    books: Books,
    what: Search,
    short: Mapping[int, int],
    *,
    group: Sequence[int] = (),
    leaving: Collection[Entry] = (),
) -> list[Entry] | None:
    """Choose who goes so that the bytes in `short` come free; None when all together are not enough.

    Nobody in the answer could stay. `group`: the devices that `SUM` is the sum of. `leaving`: those that go
    already and count no more.
    """
    lacking = {at: size for at, size in short.items() if size > 0}
    if not lacking:
        return []
    reach = books.movable if what.evict else books.going
    for at, size in lacking.items():
        if size > (sum(reach[one] for one in group) if at == SUM else reach[at]):
            return None
    devices = {at for at in lacking if at != SUM}.union(group)
    seen = {entry.key: entry for at in devices for entry in books.on[at]}
    for entry in leaving:
        seen.pop(entry.key, None)
    ranked = sorted(_ranked(what, seen.values()), key=lambda pair: pair[0])
    chosen = _cover(lacking, [entry for _, entry in ranked], group)
    if chosen is None or len(chosen) < 2:
        return chosen
    (worst, weight, count) = cost(what, chosen)
    if count < 2:
        return chosen
    # One replica in place of several, when its load costs less than theirs together.
    going = [entry for rank, entry in ranked if rank[0] is _NOW]
    singles = sorted(
        (rank[3], rank[4], entry)
        for rank, entry in ranked
        if rank[0] > _NOW and (rank[0], rank[2]) <= worst and rank[3] < weight
    )
    for _, _, entry in singles:
        alone = _cover(lacking, [*going, entry], group)
        if alone is not None:
            return alone
    return chosen


def _cover(
    lacking: Mapping[int, int], candidates: Iterable[Entry], group: Sequence[int]
) -> list[Entry] | None:
    """Take candidates in order until nothing lacks, then let stay whoever is not needed, the last first."""
    left = dict(lacking)
    taken: list[tuple[Entry, list[tuple[int, int]]]] = []
    for entry in candidates:
        gains = []
        useful = False
        for at, lack in left.items():
            gain = sum(entry.held.get(one, 0) for one in group) if at == SUM else entry.held.get(at, 0)
            if gain:
                gains.append((at, gain))
                useful = useful or lack > 0
        if not useful:
            continue
        taken.append((entry, gains))
        for at, gain in gains:
            left[at] -= gain
        if max(left.values()) <= 0:
            break
    else:
        return None
    needed = []
    for entry, gains in reversed(taken):
        if all(left[at] + gain <= 0 for at, gain in gains):
            for at, gain in gains:
                left[at] += gain
        else:
            needed.append(entry)
    return needed[::-1]

"""Why a demand has no place: one sentence with the numbers and the holders, and if waiting helps. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from modeld.supervisor.scheduling.books import Books
from modeld.supervisor.scheduling.demand import Demand, Never, Refusal, Space, gib

NAMED = 3
"""Holders and devices that are named one by one; of more, only how many."""

_NO = Never.NO  # an enum's lookup costs

_HOPE = (Never.NO, Never.PINNED, Never.OTHERS, Never.DEVICE, Never.EVER)
"""From the most hopeful to the least."""


def explain(books: Books, demand: Demand) -> Refusal:
    """Return the refusal of a demand that has no place in the books."""
    if not demand.on_gpu or books.unified:
        return _on_host(books, demand)
    if not books.gpus:
        return Refusal("needs a GPU, and this machine shows none", Never.DEVICE)
    refusal = _on_group(books, demand) if demand.gpus else _on_one(books, demand)
    if not demand.ram or books.host is None or demand.ram <= books.room[books.host]:
        return refusal
    host = _on_host(books, Demand(ram=demand.ram))
    enough = not demand.gpus and any(books.gpu_bytes(demand, at) <= books.room[at] for at in books.good_gpus)
    return host if enough or _HOPE.index(host.never) > _HOPE.index(refusal.never) else refusal


def hope(books: Books, at: int, size: int) -> Never:
    """Say what stands between a device and holding so many bytes."""
    space = books.spaces[at]
    if not space.ok:
        return Never.EVER if space.total and size > space.total else Never.DEVICE
    if size <= books.usable[at] - books.pinned[at]:
        return _NO
    if size > (space.usable if space.limit is None else space.limit):
        return Never.EVER
    return Never.OTHERS if size > books.usable[at] else Never.PINNED


def _on_host(books: Books, demand: Demand) -> Refusal:
    """Explain for the host's memory, or for unified memory."""
    if books.host is None:
        return Refusal("needs memory, and this machine's is not known", Never.DEVICE)
    if demand.gpus > 1:
        return Refusal(f"needs {demand.gpus} whole GPUs, and this machine has 1", Never.EVER)
    size = books.host_bytes(demand)
    never = hope(books, books.host, size)
    return Refusal(_sentence(books, books.host, size, never, ""), never)


def _on_one(books: Books, demand: Demand) -> Refusal:
    """Explain for a part of one GPU, or for GPUs that share one model."""
    nevers = {at: hope(books, at, books.gpu_bytes(demand, at)) for at in books.gpus}
    if demand.spread and all(nevers[at] in (Never.EVER, Never.OTHERS) for at in books.good_gpus):
        return _on_all(books, demand.vram)
    best = min(nevers.values(), key=_HOPE.index)
    told = tuple(nevers.values())
    if (words := books.sayings.get(told)) is None:
        words = books.sayings[told] = _of_each(books, nevers, best)
    if best is Never.DEVICE:
        return Refusal(words, best)
    where = " on one GPU; " if len(told) > 1 or best in (Never.EVER, Never.OTHERS) else ", "
    # A share is one of each GPU's own size: it is told of the one that could give it first.
    first = min(nevers, key=lambda at: (_HOPE.index(nevers[at]), at))
    return Refusal(f"needs {gib(books.gpu_bytes(demand, first))}{where}{words}", best)


def _of_each(books: Books, nevers: Mapping[int, Never], best: Never) -> str:
    """Say what each GPU has or can give, the most hopeful first."""
    by_hope = sorted(nevers, key=lambda at: (_HOPE.index(nevers[at]), -books.free[at], at))
    if best is Never.DEVICE:
        by_hope = [at for at in by_hope if nevers[at] is best]  # the others are too small
    clauses = [_clause(books, at, nevers[at]) for at in by_hope[:NAMED]]
    if len(by_hope) > NAMED:
        more = len(by_hope) - NAMED
        clauses.append(f"{more} more GPU{'s have' if more > 1 else ' has'} no more")
    return "; ".join(clauses)


def _on_all(books: Books, size: int) -> Refusal:
    """Explain for a model that is parted among all GPUs."""
    good = [books.spaces[at] for at in books.good_gpus]
    pinned = sum(books.pinned[at] for at in books.good_gpus)
    usable = sum(books.usable[at] for at in books.good_gpus)
    if size <= usable:
        never = Never.PINNED if size > usable - pinned else Never.NO
        clauses = [_clause(books, at, never) for at in books.good_gpus[:NAMED]]
        return Refusal(f"needs {gib(size)} on GPUs together; {'; '.join(clauses)}", never)
    if size <= sum(space.usable if space.limit is None else space.limit for space in good):
        never = Never.OTHERS
    elif len(good) < len(books.gpus) and size <= sum(books.spaces[at].total or size for at in books.gpus):
        never = Never.DEVICE
    else:
        never = Never.EVER
    clauses = [
        _clause(books, at, never if books.spaces[at].ok else Never.DEVICE) for at in books.gpus[:NAMED]
    ]
    return Refusal(
        f"needs {gib(size)} on GPUs together, which can give {gib(usable)} in all; {'; '.join(clauses)}",
        never,
    )


def _on_group(books: Books, demand: Demand) -> Refusal:
    """Explain for whole GPUs."""
    wanted = f"needs {demand.gpus} whole GPU{'s' if demand.gpus > 1 else ''}"
    if demand.gpus > len(books.gpus):
        return Refusal(f"{wanted}, and this machine has {len(books.gpus)}", Never.EVER)
    each = max(math.ceil(demand.vram / demand.gpus), 1)
    nevers = {}
    for at in books.gpus:
        never = hope(books, at, each)
        if never is Never.NO and any(entry.fixed for entry in books.on[at]):
            never = Never.PINNED
        nevers[at] = never
    by_hope = sorted(books.gpus, key=lambda at: (_HOPE.index(nevers[at]), bool(books.on[at]), at))
    # As hopeless as the last GPU that the group cannot do without.
    never = nevers[by_hope[demand.gpus - 1]]
    if demand.vram:
        wanted += f" of {gib(each)} each" if demand.gpus > 1 else f" of {gib(each)}"
    lacking = [at for at in by_hope if books.on[at] or books.spoken[at] or nevers[at] is not Never.NO]
    clauses = [_clause(books, at, nevers[at]) for at in lacking[:NAMED]]
    if len(lacking) > NAMED:
        more = len(lacking) - NAMED
        clauses.append(f"{more} more {'are' if more > 1 else 'is'} not empty either")
    empty = len(books.gpus) - len(lacking)
    return Refusal(f"{wanted}, {empty} of {len(books.gpus)} empty; {'; '.join(clauses)}", never)


# --- words --------------------------------------------------------------------------------------------------


def _sentence(books: Books, at: int, size: int, never: Never, where: str) -> str:
    if never is Never.DEVICE:
        return _unusable(books.spaces[at])
    if never in (Never.EVER, Never.OTHERS):
        return f"needs {gib(size)}{where}; {_clause(books, at, never)}"
    return f"needs {gib(size)}, {_clause(books, at, never)}"


def _unusable(space: Space) -> str:
    return f"{space.label} cannot be used now: {space.message or 'it does not answer'}"


def _clause(books: Books, at: int, never: Never) -> str:
    """Say what one device has, or can give."""
    space = books.spaces[at]
    if never is Never.DEVICE or not space.ok:
        return _unusable(space)
    if never in (Never.EVER, Never.OTHERS):
        limit = space.usable if space.limit is None else space.limit
        if never is Never.EVER:
            return f"{space.label} can give {gib(limit)} in all"
        others = f" ({space.others})" if space.others else ""
        return f"{space.label} can give {gib(books.usable[at])} in all{others}"
    if at not in books.words:
        books.words[at] = ", ".join(
            [f"{gib(max(books.free[at], 0))} free on {space.label}", *_holders(books, at)]
        )
    return books.words[at]


def _holders(books: Books, at: int) -> list[str]:
    """Name who holds a device's memory, pinned ones first, then the largest."""
    held = sorted(books.on[at], key=lambda entry: (not entry.fixed, -entry.held[at], entry.model, entry.key))
    words = [
        f"{gib(entry.held[at])} held by {'pinned ' if entry.fixed else ''}{entry.model}"
        for entry in held[:NAMED]
    ]
    if len(held) > NAMED:
        rest = sum(entry.held[at] for entry in held[NAMED:])
        words.append(f"{gib(rest)} held by {len(held) - NAMED} more")
    words += [f"{gib(size)} kept for {model}" for model, size in books.speakers[at][:NAMED]]
    return words

"""Machines, replicas and claims for the tests of placement: small numbers, so that sizes often just fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from hypothesis import strategies as st

from modeld.hardware.machine import Kind
from modeld.supervisor.scheduling.demand import Demand, Holding, Phase, Space
from modeld.supervisor.scheduling.scheduler import Claim, View

GIB = 1 << 30


def host(total: int, usable: int | None = None, kind: Kind = Kind.HOST) -> Space:
    """Return the host's memory."""
    usable = total if usable is None else usable
    return Space("host", kind, "this machine", total, usable, limit=usable)


def gpu(index: int, total: int, usable: int | None = None, **more: object) -> Space:
    """Return a GPU."""
    usable = total if usable is None else usable
    facts = {"limit": usable} | more
    return Space(f"GPU-{index}", Kind.GPU, f"GPU {index}", total, usable, **facts)  # type: ignore[arg-type]


@st.composite
def machines(draw: st.DrawFn) -> tuple[Space, ...]:
    """Draw a machine: a host and up to four GPUs, some of them partly used by others, or lost; or a Mac."""
    size = st.integers(1, 24)
    if draw(st.integers(0, 9)) == 0:
        total = draw(size)
        return (host(total, draw(st.integers(0, total)), Kind.UNIFIED),)
    spaces = [host(draw(size))]
    for index in range(draw(st.integers(0, 4))):
        total = draw(size)
        limit = draw(st.integers(0, total))
        usable = draw(st.integers(0, limit))
        lost = draw(st.integers(0, 9)) == 0
        others = "1 B used by other programs" if usable < limit else ""
        spaces.append(
            gpu(index, total, usable, limit=limit, others=others, ok=not lost, message="lost" if lost else "")
        )
    return tuple(spaces)


@st.composite
def demands(draw: st.DrawFn, most: int = 16) -> Demand:
    """Draw a demand of any shape."""
    ram = draw(st.integers(0, most))
    match draw(st.integers(0, 5)):
        case 0 | 1:
            return Demand(ram=ram)
        case 2 | 3:
            return Demand(ram=ram // 4, vram=draw(st.integers(1, most)), spread=draw(st.booleans()))
        case 4:
            return Demand(ram=ram // 4, gpus=draw(st.integers(1, 3)), vram=draw(st.integers(0, most)))
        case _:
            return Demand(share=draw(st.sampled_from([0.1, 0.25, 0.5, 0.9])))


@st.composite
def holdings(draw: st.DrawFn, spaces: tuple[Space, ...], *, over: bool = False) -> tuple[Holding, ...]:
    """Draw who holds memory; together no more than is usable, unless `over`."""
    free = {space.id: space.usable for space in spaces}
    found = []
    for number in range(draw(st.integers(0, 6))):
        held = {}
        for id_ in draw(st.sets(st.sampled_from(sorted(free)), min_size=1, max_size=2)):
            size = draw(st.integers(0, 12))
            held[id_] = size if over else min(size, free[id_])
            free[id_] -= held[id_]
        phase = draw(
            st.sampled_from([Phase.SERVING, Phase.SERVING, Phase.SERVING, Phase.LOADING, Phase.LEAVING])
        )
        in_flight = draw(st.integers(0, 2)) if phase is Phase.SERVING else 0
        found.append(
            Holding(
                f"r{number}",
                f"held{draw(st.integers(0, 3))}",
                held,
                phase,
                in_flight,
                0.0 if in_flight else draw(st.floats(0, 1000)),
                draw(st.integers(0, 5)) == 0,
                draw(st.integers(0, 1)),
                draw(st.floats(0, 100)),
            )
        )
    return tuple(found)


@st.composite
def views(draw: st.DrawFn) -> View:
    """Draw everything a decision rests on."""
    spaces = draw(machines())
    held = draw(holdings(spaces, over=draw(st.integers(0, 9)) == 0))
    keys = [holding.replica for holding in held]
    claims = []
    for number in range(draw(st.integers(0, 6))):
        active = draw(st.booleans())
        victims = draw(st.sets(st.sampled_from(keys), max_size=2)) if keys and active else set()
        claims.append(
            Claim(
                f"c{number}",
                draw(st.sampled_from([f"model{number}", "held0"])),
                draw(demands()),
                active,
                draw(st.integers(0, 9)),
                draw(st.integers(0, 1)),
                active and draw(st.integers(0, 5)) == 0,
                frozenset(victims),
                draw(st.sampled_from([0, 0, 0, 16])),
                draw(st.integers(0, 3)) == 0,
            )
        )
    return View(spaces, held, tuple(claims), draw(st.integers(1, 3)), draw(st.integers(0, 9)) == 0)


# --- an oracle that tries everything ------------------------------------------------------------------------


def places(demand: Demand, spaces: Iterable[Space], free: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Give every set of devices on which a demand fits into `free` bytes; whole GPUs must be wholly free."""
    known = {space.id: space for space in spaces if space.ok}
    main = next((space for space in known.values() if space.kind is not Kind.GPU), None)
    gpus = sorted(id_ for id_, space in known.items() if space.kind is Kind.GPU)
    if demand.ram and (main is None or free[main.id] < demand.ram):
        return
    beside = (main.id,) if demand.ram and main is not None else ()
    if not demand.on_gpu or (main is not None and main.kind is Kind.UNIFIED):
        if main is None or demand.gpus > 1:
            return
        need = demand.ram
        if demand.gpus and not demand.vram:
            need = max(main.usable, demand.ram)
        elif demand.on_gpu:
            need += -int(-demand.share * main.total // 1) if demand.share else demand.vram
        if not need or need <= free[main.id]:
            yield (main.id,)
        return
    if demand.gpus:
        each = max(-(-demand.vram // demand.gpus), 1)
        able = [id_ for id_ in gpus if known[id_].usable >= each and free[id_] == known[id_].usable]
        for group in itertools.combinations(able, demand.gpus):
            yield group + beside
        return
    for id_ in gpus:
        need = -int(-demand.share * known[id_].total // 1) if demand.share else demand.vram
        if need <= free[id_]:
            yield (id_, *beside)
    if demand.spread and demand.vram > max((known[id_].usable for id_ in gpus), default=0):
        for count in range(2, len(gpus) + 1):
            for group in itertools.combinations(gpus, count):
                if min(free[id_] for id_ in group) >= 0 and sum(free[id_] for id_ in group) >= demand.vram:
                    yield group + beside


def free_bytes(spaces: Iterable[Space], held: Iterable[Holding]) -> dict[str, int]:
    """Return what is free on each device; below zero when more is held than may be."""
    free = {space.id: max(space.usable, 0) for space in spaces}
    for holding in held:
        for id_, size in holding.held.items():
            free[id_] -= size
    return free

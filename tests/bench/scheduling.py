"""How long one plan of 200 models on 8 GPUs takes: `python -m tests.bench.scheduling`. It prints figures."""

from __future__ import annotations

import random
import statistics
import time

from modeld.hardware.machine import Kind
from modeld.supervisor.scheduling.demand import Demand, Holding, Phase, Space
from modeld.supervisor.scheduling.scheduler import Claim, View, plan

GIB = 1 << 30
MODELS = 200
GPUS = 8


def spaces() -> tuple[Space, ...]:
    """Return eight GPUs of 80 GiB and their host."""
    gpus = [
        Space(f"GPU-{at:08x}", Kind.GPU, f"GPU {at}", 80 * GIB, 72 * GIB, limit=72 * GIB)
        for at in range(GPUS)
    ]
    return (Space("host", Kind.HOST, "this machine", 512 * GIB, 460 * GIB, limit=460 * GIB), *gpus)


def demand(chance: random.Random) -> Demand:
    """Return what a model might need."""
    if chance.random() < 0.05:
        return Demand(ram=2 * GIB, gpus=chance.choice([1, 2, 4]))
    if chance.random() < 0.2:
        return Demand(ram=chance.randrange(1, 8) * GIB)
    return Demand(ram=GIB, vram=chance.randrange(2 * GIB, 30 * GIB))


def full(chance: random.Random) -> tuple[Holding, ...]:
    """Return a machine full of models: seven on each GPU, some busy, some pinned."""
    return tuple(
        Holding(
            f"held{at}",
            f"held{at}",
            {f"GPU-{at % GPUS:08x}": 10 * GIB, "host": GIB},
            Phase.SERVING,
            in_flight=chance.choice([0, 0, 1]),
            idle_s=chance.uniform(0, 3600),
            pinned=chance.random() < 0.05,
            reload_s=chance.uniform(2, 60),
        )
        for at in range(7 * GPUS)
    )


def claims(chance: random.Random, *, count: int, active: int) -> tuple[Claim, ...]:
    """Return claims, the first `active` of them with somebody waiting."""
    return tuple(
        Claim(f"claim{at}", f"claim{at}", demand(chance), active=at < active, since=at) for at in range(count)
    )


def measure(name: str, view: View) -> None:
    """Print the time of one plan, the median of many."""
    spent = []
    for _ in range(50):
        begun = time.perf_counter()
        plan(view)
        spent.append(time.perf_counter() - begun)
    print(f"{name:<46} best {min(spent) * 1000:6.2f} ms, median {statistics.median(spent) * 1000:6.2f} ms")


def main() -> None:
    """Print one figure for each kind of moment."""
    chance = random.Random(0)
    held = full(chance)
    room = MODELS - len(held)
    measure(
        "at start: 200 claims, an empty machine",
        View(spaces(), (), claims(chance, count=MODELS, active=0), 16),
    )
    measure(
        "56 loaded, 143 wait for room, 1 asked for",
        View(spaces(), held, claims(chance, count=room, active=1), 16),
    )
    measure(
        "56 loaded, 124 wait for room, 20 asked for",
        View(spaces(), held, claims(chance, count=room, active=20), 16),
    )
    measure(
        "56 loaded, all other 144 asked for at once",
        View(spaces(), held, claims(chance, count=room, active=room), 16),
    )
    measure(
        "one request for a model that must evict", View(spaces(), held, claims(chance, count=1, active=1), 16)
    )


if __name__ == "__main__":
    main()

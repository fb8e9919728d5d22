from __future__ import annotations

from modeld.supervisor.scheduling.placement import Demand, Holding, Never, Refusal, find
from tests.unit.supervisor.views import GIB, gpu, host


def test_a_share_is_told_of_a_gpu_that_can_be_used() -> None:
    """A GPU without memory to give, a partitioned one say, is not what a share is counted of."""
    spaces = (host(64 * GIB), gpu(0, 0, ok=False, message="MIG is on"), gpu(1, 80 * GIB))
    held = (Holding("a#0", "a", {"GPU-1": 60 * GIB}, pinned=True),)
    refusal = find(Demand(share=0.5), spaces, held, evict=True)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith("needs 40.0 GiB on one GPU; 20.0 GiB free on GPU 1, ")


def test_one_more_gpu_is_one() -> None:
    """What is not named is counted, in the singular too."""
    spaces = (host(64 * GIB), *(gpu(at, 10 * GIB) for at in range(4)))
    refusal = find(Demand(vram=20 * GIB), spaces, (), evict=True)
    assert isinstance(refusal, Refusal)
    assert refusal.never is Never.EVER
    assert refusal.message.endswith("; 1 more GPU has no more")

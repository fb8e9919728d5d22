from __future__ import annotations

import asyncio

from modeld.supervisor.memory import Memory

GIB = 1 << 30


async def test_reservations_are_kept_until_released() -> None:
    """What one model has is refused to another, and given once it is released."""
    memory = Memory(10 * GIB)
    assert memory.reserve("a", 8 * GIB) is None
    refusal = memory.reserve("b", 2 * GIB)
    assert refusal is not None
    assert refusal.ever
    memory.release("a")
    assert memory.reserve("b", 2 * GIB) is None
    assert memory.ledger.held == {"b": 2 * GIB}


async def test_a_release_before_the_waiting_begins_counts() -> None:
    """Memory freed between a refusal and the first step of waiting wakes the waiter all the same."""
    memory = Memory(10 * GIB)
    assert memory.reserve("a", 8 * GIB) is None
    assert memory.reserve("b", 8 * GIB) is not None
    freed = memory.freed()
    memory.release("a")
    async with asyncio.timeout(5):
        await freed


async def test_all_who_wait_are_woken_and_one_leaving_disturbs_nobody() -> None:
    """A release wakes every waiter; one that was cancelled before takes nobody with it."""
    memory = Memory(10 * GIB)
    leaving, first, second = memory.freed(), memory.freed(), memory.freed()
    leaving.cancel()
    await asyncio.sleep(0)
    memory.release("a")
    async with asyncio.timeout(5):
        await asyncio.gather(first, second)
    assert not memory.freed().done()

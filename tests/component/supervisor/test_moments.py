"""An order of the owner in each single moment of a model's way: after 0, 1, 2 … turns of the event loop.

In virtual time, so that a moment is the same one each time.
"""

from __future__ import annotations

import asyncio

import pytest

from modeld.supervisor.states import State
from tests.component.supervisor.conftest import Pools, held, spec, until
from tests.component.supervisor.test_traffic import FORGIVING
from tests.fakes.machine import GIB
from tests.fakes.workers import Workers

MOMENTS = range(40)
"""Turns of the loop; a load with three steps takes fewer."""


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", MOMENTS)
async def test_an_unload_at_any_moment_of_a_load_gives_the_memory_back(pools: Pools, turns: int) -> None:
    """The model is STOPPED, nothing is held for it, and the next one, which needs that memory, loads."""
    workers = Workers(load_steps=3)
    two = [spec(name, footprint=GIB, on_demand=True) for name in ("a", "b")]
    async with asyncio.timeout(60), pools(two, capacity=GIB, workers=workers) as pool:
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(pool.load("a"))
            await _turns(turns)
            group.create_task(pool.unload("a"))
            await _turns(1)
            loading.cancel()
        await until(pool, State.STOPPED, "a")
        assert held(pool) == {}
        await pool.load("b")
        assert workers.names() == ["b"]


@pytest.mark.parametrize("turns", MOMENTS)
async def test_an_unload_at_any_moment_after_a_crash_ends_in_stopped(pools: Pools, turns: int) -> None:
    """Also in the one in which the backoff ends: who waits to see the model stopped sees it."""
    workers = Workers(load_steps=3)
    async with asyncio.timeout(60), pools(spec(footprint=GIB), workers=workers, policy=FORGIVING) as pool:
        await pool.load("m")
        workers.of("m").die()
        await _turns(turns)
        await pool.unload("m")
        assert pool.status("m").state is State.STOPPED
        assert held(pool) == {}
        await pool.load("m")
        assert workers.names() == ["m"]

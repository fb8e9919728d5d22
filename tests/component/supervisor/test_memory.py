from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from modeld.errors import LoadFailed, ModelFailed
from modeld.supervisor.placement import OVERHEAD
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import Pools, actor, answer, ask, our_workers, spec, states, until
from tests.fakes.worker_link import WAIT_S, text_of

GIB = 1 << 30


async def test_a_model_that_can_never_fit_fails_with_the_numbers(pools: Pools) -> None:
    """More than the machine may ever give is FAILED at once, both sizes named, and no process is started."""
    async with pools(spec(footprint=30 * GIB), capacity=20 * GIB) as pool:
        with pytest.raises(ModelFailed, match=r"needs 30\.0 GiB"):
            await answer(ask(pool))
        status = await until(pool, State.FAILED)
        assert status.cause == "does_not_fit"
        assert status.message == "needs 30.0 GiB, this machine may give 18.0 GiB in all"
        assert our_workers() == []
        assert pool.memory.ledger.held == {}


async def test_a_model_waits_for_memory_and_goes_on_when_there_is_some(pools: Pools) -> None:
    """A model that has to wait says for how much and who holds it; unloading another lets it go on."""
    small, big = spec("small", footprint=6 * GIB, reply="at last"), spec("big", footprint=14 * GIB)
    async with pools([small, big], capacity=20 * GIB) as pool:
        await until(pool, State.READY, "big")
        status = await until(pool, State.WAITING, "small")
        assert status.cause == "memory"
        assert status.message == "needs 6.0 GiB, 4.0 GiB free, 14.0 GiB held by big"
        asking = asyncio.ensure_future(answer(ask(pool, "small")))
        await asyncio.sleep(0)
        assert pool.status("small").queued == 1
        await pool.unload("big")
        assert text_of(await asking) == "at last"
        assert states(pool, "small") == ["starting", "waiting", "starting", "loading", "ready"]
        assert pool.memory.ledger.held == {"small": 6 * GIB}


async def test_the_numbers_of_a_waiting_model_stay_true(pools: Pools) -> None:
    """When others come and go and it is still not enough, the message says what holds now."""
    specs = [spec("a", footprint=10 * GIB), spec("b", footprint=5 * GIB), spec("m", footprint=9 * GIB)]
    async with pools(specs, capacity=20 * GIB) as pool:
        await until(pool, State.READY, "a")
        await until(pool, State.READY, "b")
        await pool.unload("m")
        actor(pool).want()
        status = await until(pool, State.WAITING)
        assert status.message == "needs 9.0 GiB, 3.0 GiB free, 10.0 GiB held by a, 5.0 GiB held by b"
        await pool.unload("b")
        async with asyncio.timeout(WAIT_S):
            status = await actor(pool).until(lambda status: "held by b" not in status.message)
        assert status.state is State.WAITING
        assert status.message == "needs 9.0 GiB, 8.0 GiB free, 10.0 GiB held by a"


async def test_a_crashed_model_holds_no_memory_until_it_returns(pools: Pools) -> None:
    """During backoff the memory is free for others; the crashed model then waits for it like anybody."""
    failing = spec("failing", footprint=14 * GIB, load_crash=True)
    async with pools([failing, spec("m", footprint=14 * GIB)], capacity=20 * GIB) as pool:
        await until(pool, State.READY)
        status = await until(pool, State.WAITING, "failing")
        assert status.message == "needs 14.0 GiB, 4.0 GiB free, 14.0 GiB held by m"
        assert states(pool, "failing") == ["starting", "loading", "backoff", "starting", "waiting"]


async def test_without_a_figure_the_files_size_counts(pools: Pools, tmp_path: Path) -> None:
    """A model without a footprint of its own needs its files' bytes and the engine's overhead."""
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "weights").open("wb") as file:
        file.truncate(3 * GIB)  # sparse

    async def resolve(reference: str, report: Callable[[str, float | None], None]) -> Path:
        return tmp_path / reference

    async with pools(spec(footprint=None, reference="model"), resolve=resolve) as pool:
        await until(pool, State.READY)
        assert pool.memory.ledger.held == {"m": 3 * GIB + OVERHEAD}


async def test_files_that_cannot_be_had_fail_the_model_with_the_resolvers_words(pools: Pools) -> None:
    """A permanent failure to find the files is FAILED at once; nothing is reserved and nothing started."""

    async def resolve(reference: str, report: Callable[[str, float | None], None]) -> Path:
        report("looking", None)
        raise LoadFailed(f"there is no {reference}", code="model_file_missing", permanent=True)

    async with pools(spec(reference="hub/model"), resolve=resolve) as pool:
        status = await until(pool, State.FAILED)
        assert (status.cause, status.message) == ("model_file_missing", "there is no hub/model")
        assert states(pool) == ["starting", "failed"]
        assert pool.memory.ledger.held == {}

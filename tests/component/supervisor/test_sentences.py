"""What a model's status and refusals say, where a person would be misled by less."""

from __future__ import annotations

import asyncio
import logging

import pytest

from modeld.errors import LoadFailed, ModelUnavailable
from modeld.protocol.capabilities import Capability
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import Pools, answer, ask, read, spec, until
from tests.fakes.machine import GIB
from tests.fakes.supervision import Engines
from tests.fakes.worker_link import WAIT_S
from tests.fakes.workers import Workers


async def test_an_order_to_load_without_an_engine_ends_with_the_reason(pools: Pools) -> None:
    """Each order looks for the engine again, and says that it is missing; none waits for ever."""
    engines = Engines()
    engines.absent["fake"] = Capability(False, "there is none", "get one")
    async with pools(spec(), workers=Workers(quick=True), engines=engines) as pool:
        await pool.settled()
        for _ in range(2):
            with pytest.raises(ModelUnavailable, match="is missing: there is none; this may help: get one"):
                async with asyncio.timeout(WAIT_S):
                    await pool.load("m")
        assert pool.status("m").state is State.WAITING
        engines.absent.clear()
        async with asyncio.timeout(WAIT_S):
            assert (await pool.load("m")).state is State.READY


async def test_who_waits_for_an_unloaded_model_is_told_once(pools: Pools) -> None:
    """The refusal says that the model was unloaded, without saying it twice."""
    workers = Workers(quick=True)
    workers.gates["m"] = asyncio.Event()
    async with pools(spec(on_demand=True), workers=workers) as pool:
        with ask(pool) as stream:
            reading = asyncio.ensure_future(read(stream))
            await until(pool, State.LOADING)
            await pool.unload("m")
            with pytest.raises(ModelUnavailable) as caught:
                await reading
        assert str(caught.value) == "model 'm' was unloaded"
        assert pool.status("m").message == "unloaded"


async def test_a_keep_alive_of_zero_is_the_reason(pools: Pools) -> None:
    """A model that goes at once says why, instead of counting no seconds."""
    async with pools(spec(keep_alive_s=0.0, on_demand=True), workers=Workers(quick=True)) as pool:
        await answer(ask(pool))
        status = await until(pool, State.STOPPED)
        assert status.message == "its last request has ended, and its keep_alive is 0"


async def test_failed_replicas_are_counted_as_they_were_wanted(pools: Pools) -> None:
    """When all replicas have failed, the status says of how many."""
    from modeld.supervisor.scheduling.scaling import Scaling

    workers = Workers()
    workers.failures["m"] = [LoadFailed("torn", permanent=True)] * 2
    async with pools(spec(scaling=Scaling(2, 2, 2)), workers=workers) as pool:
        await until(pool, State.FAILED)
        async with asyncio.timeout(WAIT_S):
            while len(workers.spawned) < 2 or workers.running:
                await asyncio.sleep(0)
        assert pool.statuses()[0].message == "0 of 2 replicas are ready; torn"


async def test_an_idle_crash_of_a_model_on_demand_claims_no_request(pools: Pools) -> None:
    """A model on demand that dies unused, and whose room another takes, says nothing of who has left."""
    workers = Workers(quick=True)
    models = [spec(on_demand=True, footprint=6 * GIB), spec("other", footprint=6 * GIB)]
    async with pools(models, workers=workers) as pool:
        await until(pool, State.READY, "other")
        await answer(ask(pool))
        await until(pool, State.WAITING, "other")
        workers.of("m").die()
        await until(pool, State.READY, "other")
        status = await until(pool, State.STOPPED)
        assert (status.cause, status.message) == ("left", "nobody waits for it")


async def test_a_load_that_waits_for_sizes_is_on_its_way(pools: Pools) -> None:
    """Nobody is told that a model waits for memory before it is known what it needs."""
    async with pools([spec(f"m{n}", footprint=4 * GIB) for n in range(4)], workers=Workers()) as pool:
        await pool.settled()
        waiting = [status for status in pool.statuses() if status.state is State.WAITING]
        assert len(waiting) == 2
        assert all("needs 4.0 GiB" in status.message for status in waiting)


async def test_a_swap_is_four_lines_in_the_log(pools: Pools, caplog: pytest.LogCaptureFixture) -> None:
    """One model makes room for another: who waits for whom, who stopped, who loads, who is ready."""
    workers = Workers(quick=True)
    models = [spec(name, footprint=8 * GIB, on_demand=True) for name in "ab"]
    async with pools(models, workers=workers) as pool:
        await answer(ask(pool, "a"))
        caplog.clear()
        with caplog.at_level(logging.INFO, "modeld.supervisor"):
            await answer(ask(pool, "b"))
        lines = [(record.model, record.getMessage().split(":")[0]) for record in caplog.records]  # type: ignore[attr-defined]
        assert lines == [("b", "waiting"), ("a", "stopped"), ("b", "loading"), ("b", "ready")]

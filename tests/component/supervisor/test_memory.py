from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from modeld.errors import LoadFailed, ModeldError, ModelFailed, ModelUnavailable
from modeld.hardware.machine import HOST, Machine
from modeld.protocol.capabilities import Capability
from modeld.supervisor import memory
from modeld.supervisor.spec import Resources
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import (
    Pools,
    answer,
    ask,
    deployment,
    held,
    our_workers,
    spec,
    states,
    until,
)
from tests.fakes.machine import GIB, FakeProbe
from tests.fakes.supervision import ENGINE_OVERHEAD, Engines, Known, MemoryOfRuns, Recorder
from tests.fakes.worker_link import WAIT_S, text_of
from tests.fakes.workers import Workers


async def test_a_model_that_can_never_fit_fails_with_the_numbers(pools: Pools) -> None:
    """More than the machine may ever give is FAILED at once, both sizes named, and no process is started."""
    async with pools(spec(footprint=30 * GIB), capacity=20 * GIB) as pool:
        with pytest.raises(ModelFailed, match=r"needs 30\.0 GiB"):
            await answer(ask(pool))
        status = await until(pool, State.FAILED)
        assert status.cause == "does_not_fit"
        assert "20.0 GiB" in status.message
        assert our_workers() == []
        assert held(pool) == {}


async def test_eager_models_load_the_largest_first_and_one_that_does_not_fit_waits(pools: Pools) -> None:
    """At start the order is by size; who finds no room says who holds it, and evicts nobody."""
    workers = Workers()
    specs = [spec(name, footprint=size * GIB) for name, size in (("a", 3), ("b", 9), ("c", 6), ("d", 8))]
    async with pools(specs, capacity=20 * GIB, workers=workers) as pool:
        await pool.settled()
        assert workers.spawned == ["b", "d", "a"]
        status = pool.status("c")
        assert (status.state, status.cause) == (State.WAITING, "memory")
        assert "needs 6.0 GiB" in status.message
        assert "no room" not in status.message
        assert held(pool) == {"b": 9 * GIB, "d": 8 * GIB, "a": 3 * GIB}


async def test_large_models_load_one_at_a_time_and_small_ones_together(pools: Pools) -> None:
    """Two loads that fill a machine are never under way at once; small ones are, up to the cores."""
    workers = Workers()
    gates = workers.gates = {name: asyncio.Event() for name in ("x", "y", "s1", "s2", "s3")}
    specs = [spec("x", footprint=8 * GIB), spec("y", footprint=8 * GIB)]
    specs += [spec(name, footprint=GIB // 2) for name in ("s1", "s2", "s3")]
    async with pools(specs, capacity=20 * GIB, workers=workers) as pool:
        async with asyncio.timeout(WAIT_S):
            while len(workers.spawned) < 4:
                await asyncio.sleep(0)
        assert sorted(workers.names()) == ["s1", "s2", "s3", "x"]
        status = await until(pool, State.WAITING, "y")
        assert status.cause == "turn"
        gates["x"].set()
        await until(pool, State.LOADING, "y")
        for gate in gates.values():
            gate.set()
        await pool.settled()
        assert len(workers.running) == 5


async def test_a_waiting_model_goes_on_when_memory_returns(pools: Pools) -> None:
    """A passive model takes memory that somebody else gives back, without being asked again."""
    specs = [spec("big", footprint=14 * GIB), spec("small", footprint=10 * GIB)]
    async with pools(specs, capacity=20 * GIB, workers=Workers(quick=True)) as pool:
        await until(pool, State.READY, "big")
        await until(pool, State.WAITING, "small")
        await pool.unload("big")
        await until(pool, State.READY, "small")
        assert states(pool, "small") == ["starting", "waiting", "starting", "loading", "ready"]
        assert held(pool) == {"small": 10 * GIB}


async def test_a_crashed_model_holds_no_memory_until_it_returns(pools: Pools) -> None:
    """During backoff the memory is free for others; the crashed model then waits for it like anybody."""
    failing = spec("failing", footprint=14 * GIB, load_crash=True)
    async with pools([failing, spec("m", footprint=13 * GIB)], capacity=20 * GIB) as pool:
        await until(pool, State.READY)
        status = await until(pool, State.WAITING, "failing")
        assert "held by m" in status.message
        assert states(pool, "failing")[:3] == ["starting", "loading", "backoff"]


async def test_without_a_figure_the_estimate_counts_until_it_is_measured(
    pools: Pools, tmp_path: Path
) -> None:
    """A model without a figure of its owner's is promised the estimate, and then charged what it takes."""
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "weights").open("wb") as file:
        file.truncate(3 * GIB)  # sparse

    async def resolve(reference: str, report: Callable[[str, float | None], None]) -> Path:
        return tmp_path / reference

    observer, learned = Recorder(), MemoryOfRuns()
    model = spec(resources=Resources(), reference="model", fingerprint="f1", memory=32 << 20)
    async with pools(model, resolve=resolve, observer=observer, learned=learned) as pool:
        await pool.load("m")
        async with asyncio.timeout(WAIT_S):
            while not (observer.footprints and learned.known):
                await asyncio.sleep(0.01)
        ((name, expected, measured),) = observer.footprints
        assert (name, expected) == ("m", 3 * GIB + ENGINE_OVERHEAD)
        # The fake really allocates; a Python process comes on top.
        assert 32 << 20 < measured < 300 << 20
        assert held(pool) == {"m": int(measured * (1 + memory.MARGIN))}
        assert learned.known[("f1", HOST)].ram == measured
        status = pool.statuses()[0]
        assert status.footprint == 3 * GIB + ENGINE_OVERHEAD
        assert status.bytes_used >= 32 << 20


async def test_what_was_learned_replaces_the_estimate(pools: Pools) -> None:
    """A model that ran before is promised what it took then."""
    learned = MemoryOfRuns()
    await learned.learn("f1", HOST, ram=7 * GIB, vram=0, load_s=1.5)
    workers = Workers()
    workers.gates["m"] = asyncio.Event()
    model = spec(resources=Resources(), fingerprint="f1")
    async with pools(model, learned=learned, workers=workers) as pool:
        await until(pool, State.LOADING)
        assert held(pool) == {"m": 7 * GIB}


async def test_files_that_cannot_be_had_fail_the_model_with_the_resolvers_words(pools: Pools) -> None:
    """A permanent failure to find the files is FAILED at once; nothing is reserved and nothing started."""

    async def resolve(reference: str, report: Callable[[str, float | None], None]) -> Path:
        report("looking", None)
        raise LoadFailed(f"there is no {reference}", code="model_file_missing", permanent=True)

    async with pools(spec(reference="hub/model"), resolve=resolve) as pool:
        status = await until(pool, State.FAILED)
        assert (status.cause, status.message) == ("model_file_missing", "there is no hub/model")
        assert states(pool) == ["starting", "failed"]
        assert held(pool) == {}


async def test_files_that_cannot_be_had_now_are_sought_once_more(pools: Pools) -> None:
    """A passing failure is repeated once, and is no crash; then it is for whoever wants the model to ask."""
    asked = 0

    async def resolve(reference: str, report: Callable[[str, float | None], None]) -> Path:
        nonlocal asked
        asked += 1
        raise LoadFailed("the hub answers 500", code="hub_failed")

    async with pools(spec(reference="hub/model"), resolve=resolve) as pool:
        for times in (1, 2):
            status = await until(pool, State.FAILED)
            assert (asked, status.cause, status.message) == (2 * times, "hub_failed", "the hub answers 500")
            with pytest.raises(ModelFailed, match="the hub answers 500"):
                await pool.load("m")
        said = [event.message for event in pool.feed.recent() if event.state == "backoff"]
        assert [line.partition("\n")[2].partition(" in ")[0] for line in said] == ["next try"] * 3


async def test_memory_of_other_programs_refuses_at_once_with_the_numbers(pools: Pools) -> None:
    """A model on demand that other programs leave no room for is refused with that; it loads when they go."""
    probe = FakeProbe(20 * GIB)
    probe.others[HOST] = 8 * GIB
    model = spec(footprint=14 * GIB, on_demand=True, reply="hello")
    async with pools(model, probe=probe) as pool:
        with pytest.raises(ModelUnavailable, match=r"8\.0 GiB used by other programs") as caught:
            await answer(ask(pool))
        assert caught.value.code == "insufficient_memory"
        assert caught.value.retry_after == 5
        assert "needs 14.0 GiB" in str(caught.value)
        await until(pool, State.STOPPED)
        probe.others.clear()
        assert text_of(await answer(ask(pool))) == "hello"


async def test_pinned_models_are_never_evicted_and_are_named(pools: Pools) -> None:
    """When pins alone leave no room the refusal names them, and they go on serving."""
    specs = [spec("llama3", footprint=14 * GIB, pinned=True), spec("m", footprint=9 * GIB, on_demand=True)]
    async with pools(specs, capacity=20 * GIB, workers=Workers(quick=True)) as pool:
        await until(pool, State.READY, "llama3")
        with pytest.raises(ModelUnavailable, match="pinned llama3") as caught:
            await answer(ask(pool))
        assert caught.value.code == "insufficient_memory"
        assert pool.status("llama3").state is State.READY
        with pytest.raises(ModelUnavailable, match="pinned llama3"):
            await pool.load("m", force=True)


async def test_memory_that_does_not_come_back_is_waited_for_and_then_named(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model starts before the memory it counts on is seen free; if it never is, that is said."""
    monkeypatch.setattr(memory, "RETURN_S", 0.3)
    probe = FakeProbe(20 * GIB, {"GPU-a": 20 * GIB})
    workers = Workers(quick=True)
    on_gpu = Resources(vram=14 * GIB, ram=0)
    specs = [spec(name, resources=on_gpu, on_demand=True) for name in ("a", "b")]
    async with pools(specs, probe=probe, workers=workers) as pool:
        await answer(ask(pool, "a"))
        # The driver shows the dead worker's memory as somebody's for ever.
        probe.stuck["GPU-a"] = {workers.of("a").pid: 14 * GIB}
        with pytest.raises(ModelUnavailable, match=r"14\.0 GiB used by other programs"):
            await answer(ask(pool, "b"))
        assert workers.spawned == ["a"]
        probe.stuck.clear()
        await answer(ask(pool, "b"))
        assert workers.spawned == ["a", "b"]


async def test_memory_that_comes_back_late_is_waited_for(pools: Pools) -> None:
    """The next model starts when the driver shows the first one's memory free, and not before."""
    probe = FakeProbe(20 * GIB, {"GPU-a": 20 * GIB})
    workers = Workers(quick=True)
    on_gpu = Resources(vram=14 * GIB, ram=0)
    specs = [spec(name, resources=on_gpu, on_demand=True) for name in ("a", "b")]
    async with pools(specs, probe=probe, workers=workers) as pool, asyncio.timeout(WAIT_S):
        await answer(ask(pool, "a"))
        probe.stuck["GPU-a"] = {workers.of("a").pid: 14 * GIB}
        asking = asyncio.ensure_future(answer(ask(pool, "b")))
        await until(pool, State.STOPPING, "a")
        looks = probe.looks
        while probe.looks < looks + 4:
            await asyncio.sleep(0.01)
        assert workers.spawned == ["a"]
        assert pool.status("b").state is State.WAITING
        probe.stuck.clear()
        assert text_of(await asking) == "ok"
        assert workers.spawned == ["a", "b"]


async def test_a_lost_gpu_is_an_error_and_never_a_quiet_move_to_the_cpu(pools: Pools) -> None:
    """A model for a GPU that does not answer gets a 503 that says so, and loads there when it is back."""
    probe = FakeProbe(20 * GIB, {"GPU-a": 20 * GIB})
    probe.gone.add("GPU-a")
    workers = Workers(quick=True)
    model = spec(resources=Resources(vram=4 * GIB, ram=0), on_demand=True)
    async with pools(model, probe=probe, workers=workers) as pool:
        with pytest.raises(ModelUnavailable) as caught:
            await answer(ask(pool))
        assert caught.value.code == "device_unavailable"
        assert "GPU 0 does not answer" in str(caught.value)
        probe.gone.clear()
        await answer(ask(pool))
        assert workers.of("m").env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}


async def test_a_missing_engine_is_waited_for_with_the_line_that_helps(pools: Pools) -> None:
    """Without its engine a model waits, and requests are told what to install; then it comes up."""
    engines = Engines()
    engines.absent["fake"] = Capability(False, "no package fake", "pip install fake")
    async with pools(spec(), engines=engines, workers=Workers(quick=True)) as pool:
        status = await until(pool, State.WAITING)
        assert status.cause == "engine"
        assert "pip install fake" in status.message
        with pytest.raises(ModelUnavailable, match="pip install fake"):
            await answer(ask(pool))
        engines.absent.clear()
        assert text_of(await answer(ask(pool))) == "ok"


async def test_a_load_that_runs_out_of_memory_makes_room_and_tries_once_more(pools: Pools) -> None:
    """Idle models leave and the load is tried again; a second failure raises what is asked for next."""
    workers, observer, learned = Workers(quick=True), Recorder(), MemoryOfRuns()
    out = LoadFailed("cudaMalloc failed: out of memory", code="load_failed")
    specs = [
        spec("idle", footprint=4 * GIB, on_demand=True),
        spec("m", resources=Resources(), on_demand=True, fingerprint="f1"),
    ]
    await learned.learn("f1", HOST, ram=6 * GIB, vram=0, load_s=1.0)
    async with pools(specs, workers=workers, observer=observer, learned=learned) as pool:
        await pool.load("idle")
        workers.failures["m"] = [out]
        assert text_of(await answer(ask(pool))) == "ok"
        assert workers.spawned == ["idle", "m", "m"]
        assert observer.evictions == [("idle", "out_of_memory")]
        assert learned.raised == []
        await pool.unload("m")
        workers.failures["m"] = [out, out]
        assert text_of(await answer(ask(pool))) == "ok"  # after a backoff, the third try
        assert learned.raised == [("f1", int(6 * GIB * 1.25), 0)]
        assert deployment(pool).status.restarts == 1


async def test_a_configured_figure_that_is_too_small_is_named(pools: Pools) -> None:
    """Where the owner's own figure stands, running out of memory twice says that it must be raised."""
    workers, learned = Workers(), MemoryOfRuns()
    out = LoadFailed("cudaMalloc failed: out of memory", code="load_failed")
    workers.failures["m"] = [out] * 10
    model = spec(footprint=6 * GIB, on_demand=True, fingerprint="f1")
    async with pools(model, workers=workers, learned=learned) as pool:
        with pytest.raises(ModelFailed, match=r"the 6\.0 GiB of the configuration are too little"):
            await answer(ask(pool))
        assert learned.raised == []


async def test_a_store_in_trouble_keeps_no_model_from_serving(pools: Pools) -> None:
    """When nothing can be read or kept of earlier runs, models are loaded and served all the same."""

    class Broken(MemoryOfRuns):
        async def get(self, fingerprint: str, device: str) -> Known | None:
            raise ModeldError("the disk is full", code="store_failed")

        async def learn(self, fingerprint: str, device: str, *, ram: int, vram: int, load_s: float) -> Known:
            raise ModeldError("the disk is full", code="store_failed")

    model = spec(resources=Resources(), fingerprint="f1", reply="hello", on_demand=True)
    async with pools(model, learned=Broken()) as pool:
        assert text_of(await answer(ask(pool))) == "hello"
        await pool.unload("m")
        assert text_of(await answer(ask(pool))) == "hello"


async def test_a_probe_that_fails_ends_nothing(pools: Pools) -> None:
    """A look that raises leaves the last one standing; requests go on, and the next look is taken."""
    probe = FakeProbe(20 * GIB)
    workers = Workers(quick=True)
    specs = [spec(name, footprint=8 * GIB, on_demand=True) for name in ("a", "b")]
    async with pools(specs, probe=probe, workers=workers) as pool:
        await answer(ask(pool, "a"))
        look = probe.look

        def broken() -> Machine:
            raise RuntimeError("the driver went mad")

        probe.look = broken  # type: ignore[method-assign]
        await pool.devices()
        await answer(ask(pool, "b"))
        probe.look = look  # type: ignore[method-assign]
        machine, _ = await pool.devices()
        assert machine.devices[0].total == 20 * GIB
        assert workers.names() == ["a", "b"]

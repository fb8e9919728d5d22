"""Models that share a memory too small for all of them, on workers without processes."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from modeld.clock import SystemClock
from modeld.errors import ModelUnavailable
from modeld.ids import LOCAL
from modeld.supervisor.scheduling.scheduler import OVERTAKES
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State
from modeld.supervisor.stream import Stream
from tests.component.supervisor.conftest import (
    Pools,
    answer,
    ask,
    deployment,
    first,
    read,
    spec,
    states,
    until,
)
from tests.fakes.machine import GIB
from tests.fakes.supervision import Recorder
from tests.fakes.worker_link import WAIT_S, chat, text_of
from tests.fakes.workers import Workers


def on_demand(*names: str, footprint: int = 8 * GIB, **fields: Any) -> list[ModelSpec]:
    """Return models of which only one fits into ten GiB."""
    return [spec(name, footprint=footprint, on_demand=True, **fields) for name in names]


async def turns(count: int = 20) -> None:
    """Let everything that is ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_request_loads_its_model_and_sends_an_idle_one_away(pools: Pools) -> None:
    """A cold model loads for its first request, in the place of the idle one; both say why."""
    workers, observer = Workers(quick=True), Recorder()
    async with pools(on_demand("a", "b"), workers=workers, observer=observer) as pool:
        assert pool.status("a").state is State.STOPPED
        await answer(ask(pool, "a"))
        await answer(ask(pool, "b"))
        assert workers.names() == ["b"]
        status = pool.status("a")
        assert (status.state, status.cause) == (State.STOPPED, "evicted")
        assert "makes room for b" in status.message
        assert observer.evictions == [("a", "memory")]


async def test_twenty_requests_for_a_cold_model_start_one_worker(pools: Pools) -> None:
    """Loads are single-flight, and everybody who waited is answered in order."""
    workers = Workers(slots=4, quick=True)
    workers.gates["a"] = asyncio.Event()
    async with pools(on_demand("a"), workers=workers) as pool:
        asking = [asyncio.ensure_future(answer(ask(pool, "a"))) for _ in range(20)]
        await until(pool, State.LOADING, "a")
        assert pool.status("a").queued == 20
        workers.gates["a"].set()
        answers = await asyncio.gather(*asking)
        assert [text_of(events) for events in answers] == ["ok"] * 20
        assert workers.spawned == ["a"]


async def test_a_failed_load_tells_everybody_who_waited(pools: Pools) -> None:
    """If the load fails all who waited get the same error, and nobody is left behind."""
    models = on_demand("m", load_error="the file is no model")
    async with pools(models) as pool:
        asking = [asyncio.ensure_future(answer(ask(pool))) for _ in range(5)]
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert len({str(result) for result in results}) == 1
        assert "the file is no model" in str(results[0])
        assert pool.status("m").queued == 0


async def test_a_busy_model_is_never_cut_off_for_another(pools: Pools) -> None:
    """A request for a model that needs the busy one's memory waits until that one's streams are complete."""
    workers = Workers(slots=2)
    async with pools(on_demand("a", "b"), workers=workers) as pool:
        with ask(pool, "a") as long:
            waiting = asyncio.ensure_future(long.take(None))
            await until(pool, State.READY, "a")
            await turns()
            other = asyncio.ensure_future(answer(ask(pool, "b")))
            status = await until(pool, State.WAITING, "b")
            assert "waits for a, which holds 8.0 GiB and has 1 request in flight" in status.message
            assert workers.names() == ["a"]
            workers.of("a").calls[0].end("whole")
            assert await waiting
        await until(pool, State.READY, "b")
        await turns()
        workers.of("b").calls[0].end()
        assert text_of(await other) == "ok"
        assert workers.spawned == ["a", "b"]


async def test_alternating_requests_are_batched(pools: Pools) -> None:
    """A B A B A B, all at once, costs two loads, not six."""
    workers = Workers(quick=True)
    async with pools(on_demand("a", "b"), workers=workers) as pool:
        await asyncio.gather(*(answer(ask(pool, name)) for name in "ababab"))
        assert workers.spawned == ["a", "b"]


async def test_no_more_than_so_many_later_requests_overtake(pools: Pools) -> None:
    """However many requests come for the model in memory, one for another waits for OVERTAKES of them."""
    workers, observer = Workers(), Recorder()
    async with pools(on_demand("a", "b"), workers=workers, observer=observer) as pool:
        done: list[str] = []

        async def one(name: str) -> None:
            await answer(ask(pool, name))
            done.append(name)

        async def serve() -> None:
            while len(done) < 2 * OVERTAKES + 2:
                for worker in list(workers.running):
                    for call in worker.calls:
                        call.end()
                await asyncio.sleep(0)

        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            group.create_task(one("a"))
            await until(pool, State.READY, "a")
            await turns()
            group.create_task(one("b"))
            await until(pool, State.WAITING, "b")
            for _ in range(2 * OVERTAKES):
                group.create_task(one("a"))
            await turns()
            group.create_task(serve())
        assert done.index("b") == OVERTAKES + 1  # and the one that was there first
        assert observer.overtakings["b"] == OVERTAKES
        assert workers.spawned == ["a", "b", "a"]


async def test_waiters_that_leave_take_their_claim_along(pools: Pools) -> None:
    """When everybody who waited for a model has left, nobody is sent away for it."""
    workers = Workers()
    async with pools(on_demand("a", "b"), workers=workers) as pool:
        with ask(pool, "a") as busy:
            reading = asyncio.ensure_future(read(busy))
            await until(pool, State.READY, "a")
            await turns()
            with ask(pool, "b"):
                await until(pool, State.WAITING, "b")
            status = await until(pool, State.STOPPED, "b")
            assert status.cause == "left"
            workers.of("a").calls[0].end()
            await reading
        await turns()
        assert workers.spawned == ["a"]
        assert pool.status("a").state is State.READY


async def test_a_client_that_gives_up_does_not_throw_the_load_away(pools: Pools) -> None:
    """A load under way goes on when its only waiter leaves; the next one finds the model there."""
    workers = Workers(quick=True)
    workers.gates["a"] = asyncio.Event()
    async with pools(on_demand("a"), workers=workers) as pool:
        with ask(pool, "a"):
            await until(pool, State.LOADING, "a")
        workers.gates["a"].set()
        await until(pool, State.READY, "a")
        await answer(ask(pool, "a"))
        assert workers.spawned == ["a"]


async def test_a_request_in_the_tick_of_the_idle_unload_is_answered(pools: Pools) -> None:
    """Requests that race with keep-alive's end never hang, and never meet two workers."""
    workers = Workers(quick=True)
    models = on_demand("a", keep_alive_s=0.0)
    async with pools(models, workers=workers) as pool, asyncio.timeout(WAIT_S):
        for turn in range(60):
            assert text_of(await answer(ask(pool, "a"))) == "ok"
            await turns(turn)
        assert len(workers.running) <= 1


async def test_an_idle_model_is_unloaded_after_its_keep_alive(pools: Pools) -> None:
    """Without a request for that long it goes; the status says when, and the next request loads it."""
    workers, observer = Workers(quick=True), Recorder()
    async with pools(on_demand("a", keep_alive_s=0.15), workers=workers, observer=observer) as pool:
        await answer(ask(pool, "a"))
        (status,) = pool.statuses()
        assert status.idle_unload_at is not None
        status = await until(pool, State.STOPPED, "a")
        assert status.cause == "idle"
        assert observer.evictions == [("a", "idle")]
        await answer(ask(pool, "a"))
        assert workers.spawned == ["a", "a"]


@pytest.mark.parametrize("pinned", [True, False])
async def test_a_requests_keep_alive_never_unloads_a_pinned_model(pools: Pools, pinned: bool) -> None:
    """`keep_alive` 0 of a request unloads at once, but not what the owner has pinned."""
    workers = Workers(quick=True)
    async with pools(spec("a", pinned=pinned), workers=workers) as pool:
        await until(pool, State.READY, "a")
        request = pool.open("a", chat(), LOCAL, keep_alive=0.0)
        with request as stream:
            await read(stream)
        if pinned:
            # The look that would unload it finds nothing to do, now or later.
            assert deployment(pool, "a").tick() is None
            assert pool.status("a").state is State.READY
        else:
            await until(pool, State.STOPPED, "a")
            await answer(ask(pool, "a"))  # and it comes back


async def test_an_evicted_eager_model_comes_back_when_there_is_room(pools: Pools) -> None:
    """A model that should be up waits for its memory after an eviction, and takes it when it is free."""
    workers = Workers(quick=True)
    models = [spec("home", footprint=8 * GIB), *on_demand("guest", keep_alive_s=0.1)]
    async with pools(models, workers=workers) as pool:
        await until(pool, State.READY, "home")
        await answer(ask(pool, "guest"))
        status = await until(pool, State.WAITING, "home")
        assert status.cause == "memory"
        await until(pool, State.READY, "home")
        assert workers.spawned == ["home", "guest", "home"]


async def test_the_owners_load_uses_the_same_admission(pools: Pools) -> None:
    """`load` evicts the idle, waits for the busy, and only `force` cuts them off."""
    workers = Workers()
    async with pools(on_demand("a", "b"), workers=workers, drain_s=0.05) as pool:
        await pool.load("a")
        assert (await pool.load("b")).state is State.READY
        with ask(pool, "b") as busy:
            reading = asyncio.ensure_future(read(busy))
            await turns()
            workers.of("b").calls[0].say()
            await turns()
            loading = asyncio.ensure_future(pool.load("a"))
            await until(pool, State.WAITING, "a")
            await turns()
            assert workers.names() == ["b"]
            loading.cancel()
            assert (await pool.load("a", force=True)).state is State.READY
            with pytest.raises(Exception, match="was stopped"):
                await reading
        assert workers.names() == ["a"]


async def test_a_low_priority_model_goes_first(pools: Pools) -> None:
    """Among idle models the one of the lowest priority is evicted, however lately it was used."""
    workers = Workers(quick=True)
    models = [
        spec("dear", footprint=4 * GIB, on_demand=True, priority=5),
        spec("cheap", footprint=4 * GIB, on_demand=True, priority=-5),
        spec("new", footprint=4 * GIB, on_demand=True),
    ]
    async with pools(models, workers=workers) as pool:
        await answer(ask(pool, "dear"))
        await answer(ask(pool, "cheap"))
        await answer(ask(pool, "new"))
        assert workers.names() == ["dear", "new"]


async def test_nobody_is_evicted_in_vain(pools: Pools) -> None:
    """Only as many go as are needed, and none for a model that can never fit."""
    workers = Workers(quick=True)
    models = [spec(name, footprint=3 * GIB, on_demand=True) for name in ("a", "b", "c")]
    models += [
        spec("d", footprint=3 * GIB, on_demand=True),
        spec("giant", footprint=11 * GIB, on_demand=True),
    ]
    async with pools(models, workers=workers) as pool:
        for name in "abc":
            await answer(ask(pool, name))
        with pytest.raises(Exception, match=r"11\.0 GiB"):
            await answer(ask(pool, "giant"))
        assert workers.names() == ["a", "b", "c"]
        await answer(ask(pool, "d"))
        assert workers.names() == ["b", "c", "d"]


async def test_a_request_that_waits_too_long_is_refused(pools: Pools) -> None:
    """With a queue timeout a request that gets no slot in time is told so, and why."""
    workers = Workers()
    async with pools(on_demand("a", "b"), workers=workers, queue_timeout_s=1.0) as pool:
        with ask(pool, "a") as busy:
            reading = asyncio.ensure_future(read(busy))
            await until(pool, State.READY, "a")
            await turns()
            with pytest.raises(ModelUnavailable, match="waits for a, which holds") as caught:
                await answer(ask(pool, "b"))
            assert caught.value.code == "queue_timeout"
            workers.of("a").calls[0].end()
            await reading


async def test_a_thousand_requests_wait_for_a_loading_model(pools: Pools) -> None:
    """None is lost, none is answered twice, their order is kept, and waiting costs little memory."""
    workers = Workers(slots=1, quick=True)
    workers.gates["a"] = asyncio.Event()
    order: list[int] = []

    async def one(number: int, stream: Stream) -> None:
        with stream:
            await first(stream)
            order.append(number)
            await read(stream)

    async with pools(on_demand("a", max_queue=1000), workers=workers) as pool:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            asking = [asyncio.ensure_future(one(number, ask(pool, "a"))) for number in range(1000)]
            await turns()
            assert pool.status("a").queued == 1000
            waiting, _ = tracemalloc.get_traced_memory()
            assert waiting - before < 16 << 20
        finally:
            tracemalloc.stop()
        workers.gates["a"].set()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*asking)
        assert order == list(range(1000))
        assert len(workers.of("a").calls) == 1000
        status = pool.status("a")
        assert (status.in_flight, status.queued) == (0, 0)
    gc.collect()


async def test_loads_of_two_cold_models_follow_each_other(pools: Pools) -> None:
    """Two cold models asked for in the same moment, with room for one, are both answered."""
    workers = Workers(quick=True, load_steps=5)
    async with pools(on_demand("b", "c"), workers=workers) as pool, asyncio.timeout(WAIT_S):
        results = await asyncio.gather(answer(ask(pool, "b")), answer(ask(pool, "c")))
        assert [text_of(result) for result in results] == ["ok", "ok"]
        assert workers.most_loading == 1


async def test_a_worker_that_dies_while_it_drains_is_no_obstacle(pools: Pools) -> None:
    """A victim that crashes instead of stopping gives its memory all the same."""
    workers = Workers()
    async with pools(on_demand("a", "b"), workers=workers) as pool:
        with ask(pool, "a") as busy:
            reading = asyncio.ensure_future(read(busy))
            await until(pool, State.READY, "a")
            await turns()
            workers.of("a").calls[0].say()
            await turns()
            unloading = asyncio.ensure_future(pool.unload("a"))
            await until(pool, State.DRAINING, "a")
            other = asyncio.ensure_future(answer(ask(pool, "b")))
            await until(pool, State.WAITING, "b")
            workers.of("a").die()
            with pytest.raises(Exception, match="exited with code 1"):
                await reading
            await unloading
        await until(pool, State.READY, "b")
        await turns()
        workers.of("b").calls[0].end()
        assert text_of(await other) == "ok"
        assert "ready" in states(pool, "b")


async def test_the_victims_own_next_request_waits_and_is_answered(pools: Pools) -> None:
    """A request for the model that is being evicted brings it back afterwards; it is not refused."""
    workers = Workers(quick=True)
    workers.gates["b"] = asyncio.Event()
    async with pools(on_demand("a", "b"), workers=workers) as pool, asyncio.timeout(WAIT_S):
        await answer(ask(pool, "a"))
        for_b = asyncio.ensure_future(answer(ask(pool, "b")))
        await deployment(pool, "a").until(lambda status: status.cause == "evicted")
        for_a = asyncio.ensure_future(answer(ask(pool, "a")))
        await until(pool, State.LOADING, "b")
        workers.gates["b"].set()
        assert text_of(await for_b) == "ok"
        assert text_of(await for_a) == "ok"
        assert workers.spawned == ["a", "b", "a"]


class JumpingClock(SystemClock):
    """The machine's clock, with a wall that a test sets to another time."""

    def __init__(self) -> None:
        self.offset = 0.0

    def time(self) -> float:
        """Return the wall's time."""
        return SystemClock.time() + self.offset


@pytest.mark.parametrize("hours", [2, -2])
async def test_a_wall_clock_that_jumps_changes_nothing(pools: Pools, hours: int) -> None:
    """Two hours more or less on the wall unload nobody, keep nobody, and refuse nobody."""
    clock = JumpingClock()
    workers = Workers()
    models = on_demand("a", keep_alive_s=0.2) + on_demand("b", keep_alive_s=3600.0)
    async with pools(models, workers=workers, clock=clock, queue_timeout_s=60.0) as pool:
        with ask(pool, "a") as busy:
            reading = asyncio.ensure_future(read(busy))
            await until(pool, State.READY, "a")
            other = asyncio.ensure_future(answer(ask(pool, "b")))
            await until(pool, State.WAITING, "b")
            clock.offset = hours * 3600.0
            await turns()
            assert pool.status("a").state is State.READY
            assert pool.status("b").queued == 1
            workers.of("a").calls[0].end()
            assert text_of(await reading) == "ok"
        await until(pool, State.READY, "b")
        await turns()
        workers.of("b").calls[0].end()
        assert text_of(await other) == "ok"
        clock.offset = 0.0
        await turns()
        (_, status) = pool.statuses()
        assert status.state is State.READY
        # What is shown is the wall's time, an hour from now whatever it was in between.
        assert status.idle_unload_at is not None
        assert 3590 < status.idle_unload_at - SystemClock.time() <= 3600

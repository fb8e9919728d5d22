from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack

import pytest

from modeld.errors import ModelUnavailable, WorkerDied
from modeld.protocol.tasks import Event, Usage
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import (
    Pools,
    answer,
    ask,
    deployment,
    first,
    our_workers,
    read,
    read_until_error,
    spec,
    states,
    until,
    until_restarted,
    worker,
)
from tests.fakes.worker_link import WAIT_S, text_of
from tests.harness.workers import held


async def test_unloading_lets_an_open_request_finish(pools: Pools) -> None:
    """An open stream completes during DRAINING, a new one is refused, then the worker goes."""
    async with pools(spec(tokens=30, token_delay=0.01)) as pool:
        await pool.load("m")
        with ask(pool) as stream:
            begun = await first(stream)
            with held(worker(pool).pid):
                unloading = asyncio.ensure_future(pool.unload("m"))
                status = await until(pool, State.DRAINING)
                assert status.message == "unloaded; 1 open request may finish, within 60 s"
                with pytest.raises(ModelUnavailable, match="modeld ctl load m"), ask(pool):
                    pass
            events = begun + await read(stream)
            assert text_of(events) == "".join(f"tok{number} " for number in range(30))
            assert isinstance(events[-1], Usage)
            assert (await unloading).state is State.STOPPED
        assert states(pool)[-3:] == ["draining", "stopping", "stopped"]


async def test_an_answer_that_came_in_time_is_kept_for_a_slow_reader(pools: Pools) -> None:
    """Events that reached the daemon before the worker's end are read afterwards, to the last one."""
    async with pools(spec(tokens=50)) as pool:
        await pool.load("m")
        with ask(pool) as stream:
            begun = await first(stream)
            await pool.unload("m")
            events = begun + await read(stream)
            assert text_of(events) == "".join(f"tok{number} " for number in range(50))
            assert isinstance(events[-1], Usage)


async def test_the_drain_limit_cuts_requests_off_with_an_error(pools: Pools) -> None:
    """A request that does not finish in time gets an error: it must not look complete."""
    async with pools(spec(hang_after=1), drain_s=0.05) as pool:
        await pool.load("m")
        with ask(pool) as stream:
            await first(stream)
            unloading = asyncio.ensure_future(pool.unload("m"))
            with pytest.raises(WorkerDied, match="stopped before the request had ended") as caught:
                await read(stream)
            assert caught.value.code == "model_stopped"
            assert (await unloading).state is State.STOPPED
        assert states(pool)[-3:] == ["draining", "stopping", "stopped"]


async def test_a_pool_left_with_open_requests_does_not_drain(pools: Pools) -> None:
    """Leaving the pool cuts off what `stop` did not wait for, with an error each."""
    with ExitStack() as stack:
        async with pools(spec(hang_after=1)) as pool:
            await pool.load("m")
            streams = [stack.enter_context(ask(pool)) for _ in range(2)]
            for stream in streams:
                await first(stream)
        for stream in streams:
            with pytest.raises(WorkerDied):
                await read(stream)


async def test_stopping_the_pool_drains_every_model(pools: Pools) -> None:
    """`stop` gives the open requests of all models their time, then nothing runs any more."""
    async with pools([spec("a", tokens=20, token_delay=0.01), spec("b", hang_after=0)]) as pool:
        await pool.load("a")
        await pool.load("b")
        with ask(pool, "a") as going, ask(pool, "b") as hanging:
            begun = await first(going)
            assert await hanging.take(0) == []
            async with asyncio.timeout(WAIT_S):
                await pool.stop(5.0)
            assert our_workers() == []
            assert isinstance((begun + await read(going))[-1], Usage)
            # It got nothing yet, so it would be tried again; but there is nothing to try it on.
            with pytest.raises(ModelUnavailable):
                await read(hanging)


async def test_restart_carries_over_requests_that_got_nothing_yet(pools: Pools, quick_ladder: None) -> None:
    """Requests waiting, or cut off before their first event, are answered by the new life."""
    async with pools(spec(reply="new life", slots=1), drain_s=0.0) as pool:
        old = await pool.load("m")
        assert old.pid is not None
        os.kill(old.pid, signal.SIGSTOP)  # it will not answer
        asking = [asyncio.ensure_future(answer(ask(pool))) for _ in range(2)]
        await asyncio.sleep(0)
        assert (pool.status("m").in_flight, pool.status("m").queued) == (1, 1)
        async with asyncio.timeout(WAIT_S):
            new = await pool.restart("m")
        assert new.pid != old.pid
        for events in await asyncio.gather(*asking):
            assert text_of(events) == "new life"


async def test_a_slot_granted_but_not_used_before_a_restart_is_used_after_it(pools: Pools) -> None:
    """A request admitted just before the model drains is not refused: it goes to the next life."""
    async with pools(spec(tokens=20, token_delay=0.01)) as pool:
        await pool.load("m")
        with ask(pool) as going, ask(pool) as granted:
            begun = await first(going)
            restarting = asyncio.ensure_future(pool.restart("m"))
            await until(pool, State.DRAINING)
            late = asyncio.ensure_future(read(granted))
            assert isinstance((begun + await read(going))[-1], Usage)
            assert isinstance((await late)[-1], Usage)
            assert (await restarting).state is State.READY


async def test_a_worker_that_ignores_sigterm_is_killed(pools: Pools, quick_ladder: None) -> None:
    """The ladder goes to its end: Bye, SIGTERM, SIGKILL; the log says what was ignored."""
    async with pools(spec(ignore_term=True)) as pool:
        await pool.load("m")
        async with asyncio.timeout(WAIT_S):
            assert (await pool.unload("m")).state is State.STOPPED
        texts = [line.text for line in pool.log_lines("m")]
        assert "scripted: ignoring the request to stop" in texts
        assert "modeld: the worker ignored SIGTERM for 0.1 s, sending SIGKILL" in texts


async def test_a_worker_stuck_in_a_call_does_not_stop_the_ladder(pools: Pools, quick_ladder: None) -> None:
    """A call that ignores its cancellation delays an unload by the ladder's limits only."""
    async with pools(spec(ignore_cancel=True, hang_after=1), drain_s=0.0) as pool:
        await pool.load("m")
        with ask(pool) as stream:
            await first(stream)
            unloading = asyncio.ensure_future(pool.unload("m"))
            with pytest.raises(WorkerDied):
                await read_until_error(stream, [])
            async with asyncio.timeout(WAIT_S):
                assert (await unloading).state is State.STOPPED


async def test_a_worker_that_ignores_a_cancelled_call_is_replaced(pools: Pools, quick_ladder: None) -> None:
    """A cancelled call that goes on means a hung worker: it is killed, the log says why, a new one serves."""
    async with pools(spec(ignore_cancel=True, hang_after=1)) as pool:
        old = await pool.load("m")
        with ask(pool) as stream:
            await first(stream)
        assert (await until_restarted(pool, 1)).pid != old.pid
        assert pool.status("m").in_flight == 0
        assert any("a cancelled call did not end" in line.text for line in pool.log_lines("m"))


async def test_a_cancelled_request_frees_its_slot_when_the_worker_has_stopped(pools: Pools) -> None:
    """Leaving a request cancels it in the worker; the slot is free after that, and the worker lives on."""
    async with pools(spec(tokens=100_000, token_delay=0.01, slots=1)) as pool:
        pid = (await pool.load("m")).pid
        with ask(pool) as stream:
            await first(stream)
        assert pool.status("m").in_flight == 1  # until the worker says so
        with ask(pool, max_tokens=1) as stream:
            assert text_of(await read(stream)) == "tok0 "
        assert pool.status("m").in_flight == 0
        assert pool.status("m").pid == pid


async def test_abandoning_kills_at_once(pools: Pools) -> None:
    """The second signal's way: workers are killed, requests get errors, stopping waits for nothing."""
    async with pools([spec("a", hang_after=1, ignore_term=True), spec("b", load_hang=True)]) as pool:
        await pool.load("a")
        await until(pool, State.LOADING, "b")
        with ask(pool, "a") as stream:
            await first(stream)
            stopping = asyncio.ensure_future(pool.stop(1000.0))
            await until(pool, State.DRAINING, "a")
            pool.abandon()
            got: list[Event] = []
            with pytest.raises(WorkerDied):
                await read_until_error(stream, got)
            async with asyncio.timeout(WAIT_S):
                await stopping
        assert our_workers() == []
        pool.abandon()  # with nobody there it is nothing


async def test_waiting_requests_are_refused_when_the_model_is_unloaded(pools: Pools) -> None:
    """Who waits for a model that its owner takes down is told so, at once."""
    async with pools(spec(load_hang=True)) as pool:
        await until(pool, State.LOADING)
        with ask(pool) as stream:
            reading = asyncio.ensure_future(read(stream))
            assert deployment(pool).tickets.queued == 1
            await pool.unload("m")
            with pytest.raises(ModelUnavailable, match="was unloaded"):
                await reading
        with pytest.raises(ModelUnavailable), ask(pool):
            pass
        assert deployment(pool).tickets.queued == 0

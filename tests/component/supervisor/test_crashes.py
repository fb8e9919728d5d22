from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack

import pytest

from modeld.errors import ModelFailed, WorkerDied
from modeld.protocol import messages as m
from modeld.protocol.framing import HEADER
from modeld.protocol.tasks import Event, Usage
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.states import State
from modeld.supervisor.worker import Worker
from tests.component.supervisor.conftest import (
    QUICK,
    Pools,
    answer,
    ask,
    first,
    read,
    read_until_error,
    spec,
    states,
    until,
    until_restarted,
    worker,
)
from tests.fakes.worker_link import WAIT_S, text_of

ONCE = RestartPolicy(budget=0)
MANY = RestartPolicy(budget=50, base_s=0.01, cap_s=0.02)


async def test_a_crash_in_mid_stream_is_an_error_with_the_last_words(pools: Pools) -> None:
    """What had been said stays said; then the error tells the signal and the last words of this life only."""
    async with pools(spec(crash_after=3), policy=MANY) as pool:
        for _ in range(2):  # the second crash must not quote the first one
            await until(pool, State.READY)
            got: list[Event] = []
            with ask(pool) as stream, pytest.raises(WorkerDied) as caught:
                await read_until_error(stream, got)
            assert text_of(got) == "tok0 tok1 tok2 "
            assert "signal 9 (SIGKILL)" in str(caught.value)
            assert str(caught.value).count("scripted crash: going down") == 1
            await until(pool, State.BACKOFF)
        assert pool.status("m").restarts == 2


async def test_a_crash_is_followed_by_backoff_and_a_new_life(pools: Pools) -> None:
    """The model comes back by itself: BACKOFF with the reason, then READY with another run."""
    async with pools(spec(crash_after=3)) as pool:
        old = await pool.load("m")
        with ask(pool) as stream, pytest.raises(WorkerDied):
            await read_until_error(stream, [])
        status = await until(pool, State.BACKOFF)
        assert status.cause == "crashed"
        assert "SIGKILL" in status.message
        assert "crash 1 of 2 allowed" in status.message
        new = await until(pool, State.READY)
        assert new.run_id != old.run_id
        assert states(pool) == ["starting", "loading", "ready", "backoff", "starting", "loading", "ready"]
        assert text_of(await answer(ask(pool, max_tokens=2))) == "tok0 tok1 "


async def test_a_request_that_got_nothing_yet_is_tried_again_silently(pools: Pools) -> None:
    """A worker killed before the first event costs its requests nothing but time, queued ones included."""
    async with pools(spec(reply="at last", slots=2)) as pool:
        pid = (await pool.load("m")).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # it will not answer
        asking = [asyncio.ensure_future(answer(ask(pool))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (worker(pool).open_calls, pool.status("m").queued) == (2, 1)
        os.kill(pid, signal.SIGKILL)
        for events in await asyncio.gather(*asking):
            assert text_of(events) == "at last"
            assert isinstance(events[-1], Usage)
        assert pool.status("m").restarts == 1
        assert pool.status("m").in_flight == 0


async def test_the_second_try_is_the_last(pools: Pools) -> None:
    """A request whose worker dies twice before the first event gets the error."""
    async with pools(spec(crash_after=0), policy=MANY) as pool:
        with ask(pool) as stream, pytest.raises(WorkerDied, match="SIGKILL"):
            await read_until_error(stream, [])
        await until_restarted(pool, 2)
        assert pool.status("m").in_flight == 0


async def test_a_request_that_got_something_is_not_tried_again(pools: Pools) -> None:
    """After the first event there is no second try, though the model comes back."""
    async with pools(spec(crash_after=1)) as pool:
        await pool.load("m")
        got: list[Event] = []
        with ask(pool) as stream, pytest.raises(WorkerDied):
            await read_until_error(stream, got)
        assert text_of(got) == "tok0 "
        await until_restarted(pool, 1)


async def test_a_crash_costs_its_own_requests_only(pools: Pools) -> None:
    """Another model's request goes on through a crash, on the same process id all the time."""
    async with pools([spec("bad", crash_after=1), spec("good", tokens=20, token_delay=0.01)]) as pool:
        await pool.load("bad")
        pid = (await pool.load("good")).pid
        with ask(pool, "good") as going:
            begun = await first(going)
            with ask(pool, "bad") as stream, pytest.raises(WorkerDied):
                await read_until_error(stream, [])
            assert text_of(begun + await read(going)) == "".join(f"tok{number} " for number in range(20))
        assert pool.status("good").pid == pid


async def test_a_request_in_the_moment_of_death_waits_for_the_next_life(pools: Pools) -> None:
    """A request that arrives between the death and its discovery is served after the restart."""
    async with pools(spec(reply="fine")) as pool:
        await pool.load("m")
        living = worker(pool)
        os.kill(living.pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait({living._caller.closed})
        assert pool.status("m").state is State.READY
        with ask(pool) as stream:
            assert pool.status("m").queued == 1
            assert text_of(await read(stream)) == "fine"


async def test_a_crash_loop_ends_in_failed_with_the_reason(pools: Pools) -> None:
    """More crashes than the budget are the end: FAILED with the count, the exit code and the last words."""
    async with pools(spec(load_crash=True), policy=QUICK) as pool:
        with ask(pool) as stream, pytest.raises(ModelFailed) as caught:
            await read(stream)  # it waits, until it is known that it waits in vain
        status = pool.status("m")
        assert (status.state, status.cause, status.restarts) == (State.FAILED, "crash_loop", 2)
        assert "3 crashes within 600 s, 2 are allowed" in status.message
        assert "exited with code 3" in status.message
        assert status.message.count("scripted crash while loading") == 1
        assert status.message in str(caught.value)
        assert states(pool).count("loading") == 3


async def test_the_owner_may_try_a_failed_model_again(pools: Pools) -> None:
    """Loading a FAILED model is a new chance with the whole budget; it fails for the same reason again."""
    async with pools(spec(load_crash=True), policy=QUICK) as pool:
        await until(pool, State.FAILED)
        with pytest.raises(ModelFailed, match="3 crashes"):
            await pool.load("m")
        assert states(pool).count("loading") == 6


async def test_a_load_during_backoff_tries_at_once(pools: Pools) -> None:
    """The owner need not wait a long backoff out."""
    async with pools(spec(crash_after=0), policy=RestartPolicy(base_s=1000.0, cap_s=1000.0)) as pool:
        await pool.load("m")
        waiting = ask(pool)
        with waiting:
            reading = asyncio.ensure_future(read(waiting))
            await until(pool, State.BACKOFF)
            async with asyncio.timeout(WAIT_S):
                assert (await pool.load("m")).state is State.READY
                with pytest.raises(WorkerDied):
                    await reading  # it was tried once more, in the new life


@pytest.mark.parametrize("waiting", [0, 2])
async def test_a_permanent_load_error_fails_at_once(pools: Pools, waiting: int) -> None:
    """A load that can never work is not repeated; those who wait, and those who come, get the reason."""
    async with pools(spec(load_error="the file is no model", load_seconds=0.1), policy=MANY) as pool:
        await until(pool, State.LOADING)
        with ExitStack() as stack:
            for stream in [stack.enter_context(ask(pool)) for _ in range(waiting)]:
                with pytest.raises(ModelFailed, match="the file is no model"):
                    await read(stream)
        status = await until(pool, State.FAILED)
        assert (status.cause, status.message, status.restarts) == ("load_failed", "the file is no model", 0)
        with pytest.raises(ModelFailed, match="the file is no model"), ask(pool):
            pass
        assert states(pool) == ["starting", "loading", "failed"]


async def test_a_passing_load_error_is_tried_again(pools: Pools) -> None:
    """A load that may work another time is repeated within the budget."""
    async with pools(spec(load_error="busy", load_error_permanent=False), policy=QUICK) as pool:
        status = await until(pool, State.FAILED)
        assert states(pool).count("loading") == 3
        assert status.cause == "crash_loop"
        assert "busy" in status.message


async def test_a_load_that_hangs_is_ended(pools: Pools) -> None:
    """Without progress for twice the limit the worker is ended, and the reason names the limit."""
    async with pools(spec(load_hang=True, start_timeout_s=0.2), policy=ONCE) as pool:
        status = await until(pool, State.FAILED)
        assert "reported no progress within 0.4 s" in status.message
        assert status.pid is None


async def test_progress_keeps_a_slow_load_alive(pools: Pools) -> None:
    """The limit is one of silence: a load that takes longer but reports is not ended."""
    slow = spec(load_seconds=3.6, load_steps=60, start_timeout_s=1.5)
    async with pools(slow, policy=ONCE) as pool:
        assert (await pool.load("m")).state is State.READY
        fractions = [event.progress for event in pool.feed.recent() if event.kind == "progress"]
        assert fractions == pytest.approx([step / 60 for step in range(1, 61)])


async def test_a_worker_that_breaks_the_protocol_is_replaced(pools: Pools) -> None:
    """Garbage on the link ends the worker; its requests are told so, and the model comes back."""
    async with pools(spec(hang_after=1)) as pool:
        await pool.load("m")
        living = worker(pool)
        with ask(pool) as stream:
            await first(stream)
            living._caller.data_received(HEADER.pack(4) + b"junk")
            with pytest.raises(WorkerDied, match="broke the protocol"):
                await read(stream)
        await until_restarted(pool, 1)


async def test_a_worker_that_says_its_engine_died_and_stays_is_replaced(
    pools: Pools, quick_ladder: None
) -> None:
    """After a worker's last word it must go; one that does not is ended, and the last word is the reason."""
    async with pools(spec(hang_after=1)) as pool:
        await pool.load("m")
        living = worker(pool)
        with ask(pool) as stream:
            await first(stream)
            living._caller._dispatch(m.Dying("the engine was killed by signal 11"), 0)
            with pytest.raises(WorkerDied, match="the engine was killed by signal 11"):
                await read(stream)
        assert (await until_restarted(pool, 1)).pid != living.pid


async def test_the_log_keeps_all_lives_and_junk_does_no_harm(pools: Pools) -> None:
    """What workers wrote is kept over their lives, junk as far as it can be read."""
    async with pools(spec(junk_stdout=True, crash_after=0), policy=MANY) as pool:
        with ask(pool) as stream, pytest.raises(WorkerDied):
            await read_until_error(stream, [])
        texts = [line.text for line in pool.log_lines("m")]
        assert texts.count("scripted crash: going down") == 2
        assert any("not text" in text for text in texts)


async def test_a_worker_that_is_stopped_is_ended_and_replaced(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that gives no sign of life is killed with words that say so; the next one serves."""
    monkeypatch.setattr("modeld.supervisor.worker.PING_S", 0.5)
    async with pools(spec(token_delay=0.01, tokens=100_000)) as pool:
        first = (await pool.load("m")).pid
        assert first is not None
        with ask(pool) as stream:
            assert await stream.take(WAIT_S)
            os.kill(first, signal.SIGSTOP)
            with pytest.raises(WorkerDied, match=r"no sign of life for 2 s"):
                await read_until_error(stream, [])
        assert (await until_restarted(pool, 1)).pid != first


async def test_a_worker_that_answers_its_pings_stays(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pings there are, and with a call that says nothing for longer than they would wait."""
    monkeypatch.setattr("modeld.supervisor.worker.PING_S", 0.005)
    monkeypatch.setattr("modeld.supervisor.worker.MISSED", 1000)
    pongs = 0
    enough = asyncio.Event()
    seen = Worker._on_control

    def count(self: Worker, message: m.ToDaemon) -> None:
        nonlocal pongs
        pongs += isinstance(message, m.Pong)
        if pongs > 1010:
            enough.set()
        seen(self, message)

    monkeypatch.setattr(Worker, "_on_control", count)
    async with pools(spec(hang_after=1)) as pool:
        first = (await pool.load("m")).pid
        with ask(pool) as stream:
            assert await stream.take(WAIT_S)
            await asyncio.wait_for(enough.wait(), WAIT_S)
            status = pool.status("m")
            assert (status.pid, status.state, status.in_flight) == (first, State.READY, 1)

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from modeld.errors import ModelUnavailable, Overloaded
from modeld.supervisor.admission import Priority
from modeld.supervisor.pool import Pool
from modeld.supervisor.states import State
from modeld.supervisor.stream import Stream
from tests.component.supervisor.conftest import (
    Pools,
    answer,
    ask,
    first,
    read,
    spec,
    until,
    worker,
)
from tests.fakes.worker_link import WAIT_S, text_of


def _place(pool: Pool) -> tuple[int, int]:
    status = pool.status("m")
    return status.in_flight, status.queued


async def _in_order(pool: Pool, streams: list[tuple[str, Stream]]) -> list[str]:
    """Do all requests, entered in this order, and return their names in the order of their first events."""
    order: list[str] = []

    async def one(name: str, stream: Stream) -> None:
        with stream:
            await first(stream)
            order.append(name)
            await read(stream)

    async with asyncio.TaskGroup() as group:
        for name, stream in streams:
            group.create_task(one(name, stream))
    return order


async def _waiting(pool: Pool, count: int) -> None:
    """Let turns of the loop go by until so many requests wait."""
    async with asyncio.timeout(WAIT_S):
        while _place(pool) != (0, count):
            await asyncio.sleep(0)


async def test_one_slot_serves_in_order(pools: Pools) -> None:
    """With one slot, requests are answered one after the other in the order they came."""
    async with pools(spec(slots=1, tokens=3)) as pool:
        await pool.load("m")
        names = ["one", "two", "three", "four"]
        assert await _in_order(pool, [(name, ask(pool)) for name in names]) == names
        assert _place(pool) == (0, 0)


async def test_requests_wait_for_a_model_that_is_loading(pools: Pools, tmp_path: Path) -> None:
    """Requests that come before READY are answered when it is, in order."""
    weights = tmp_path / "weights"
    async with pools(spec(slots=1, load_until=str(weights))) as pool:
        await until(pool, State.LOADING)
        names = ["one", "two", "three"]
        asking = asyncio.ensure_future(_in_order(pool, [(name, ask(pool)) for name in names]))
        await _waiting(pool, 3)
        weights.touch()
        assert await asking == names


async def test_interactive_requests_go_before_background_ones(pools: Pools, tmp_path: Path) -> None:
    """Whoever waits interactively goes before background work that came earlier."""
    weights = tmp_path / "weights"
    async with pools(spec(slots=1, load_until=str(weights))) as pool:
        await until(pool, State.LOADING)
        back, inter = Priority.BACKGROUND, Priority.INTERACTIVE
        given = [("b1", back), ("i1", inter), ("b2", back), ("i2", inter)]
        streams = [(name, ask(pool, priority=priority)) for name, priority in given]
        asking = asyncio.ensure_future(_in_order(pool, streams))
        await _waiting(pool, 4)
        weights.touch()
        assert await asking == ["i1", "i2", "b1", "b2"]


async def test_a_slow_reader_does_not_hold_a_slot_that_is_free(pools: Pools) -> None:
    """The slot is the engine's: while a finished answer waits to be read, the next request is served."""
    async with pools(spec(slots=1, tokens=20)) as pool:
        await pool.load("m")
        with ask(pool) as slow:
            begun = await first(slow)
            assert text_of(await answer(ask(pool))) == "".join(f"tok{i} " for i in range(20))
            assert text_of([*begun, *await read(slow)]) == "".join(f"tok{i} " for i in range(20))


async def test_a_request_cancelled_while_entering_leaves_nothing(pools: Pools) -> None:
    """A client that is gone in the very moment of admission holds neither a slot nor a call."""
    async with pools(spec(slots=1, hang_after=0)) as pool:
        await pool.load("m")

        async def enter() -> None:
            async with ask(pool):
                await asyncio.Event().wait()

        entering = asyncio.ensure_future(enter())
        await asyncio.sleep(0)  # it has begun, and is on its way in
        assert _place(pool) == (1, 0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        async with asyncio.timeout(60):
            while _place(pool) != (0, 0):
                await asyncio.sleep(0.01)
        assert worker(pool).open_calls == 0


async def test_a_full_queue_refuses(pools: Pools) -> None:
    """With the slot taken and the queue full the next request is refused; a place that gets free is given."""
    async with pools(spec(slots=1, max_queue=2, hang_after=1)) as pool:
        await pool.load("m")
        with ExitStack() as stack:
            stack.enter_context(ask(pool))
            stack.enter_context(ask(pool))
            last = stack.enter_context(ExitStack())
            last.enter_context(ask(pool))
            assert _place(pool) == (1, 2)
            with pytest.raises(Overloaded, match="its queue holds 2"), ask(pool):
                pass
            assert _place(pool) == (1, 2)
            last.close()
            with ask(pool):
                assert _place(pool) == (1, 2)
        assert _place(pool) == (0, 0)


async def test_a_queue_of_none_serves_what_the_slots_hold(pools: Pools) -> None:
    """`max_queue` 0 means slots only: no waiting, but no refusal of a free slot either."""
    async with pools(spec(slots=1, max_queue=0, tokens=1)) as pool:
        await pool.load("m")
        assert text_of(await answer(ask(pool))) == "tok0 "
        with ask(pool), pytest.raises(Overloaded), ask(pool):
            pass


async def test_leaving_the_queue_lets_the_next_one_up(pools: Pools) -> None:
    """A request that leaves while it waits takes nobody's place and never reaches the worker."""
    async with pools(spec(slots=1, tokens=100_000, token_delay=0.01)) as pool:
        await pool.load("m")
        with ask(pool) as holding:
            await first(holding)
            leaving = ask(pool)
            with leaving:
                waiting = asyncio.ensure_future(leaving.take(None))
                with ask(pool, max_tokens=3) as staying:
                    assert _place(pool) == (1, 2)
                    waiting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waiting
                    leaving.__exit__(None, None, None)
                    assert _place(pool) == (1, 1)
                    assert await staying.take(0) == []
                    assert worker(pool).open_calls == 1
                    holding.__exit__(None, None, None)
                    assert text_of(await read(staying)).startswith("tok0 ")
        assert _place(pool) == (0, 0)


async def test_never_more_calls_than_the_owner_allows(pools: Pools) -> None:
    """`max_ongoing` below the engine's slots is the limit; above them the slots are."""
    async with pools([spec("m", slots=8, max_ongoing=2), spec("n", slots=1, max_ongoing=5)]) as pool:
        for name, most in (("m", 2), ("n", 1)):
            await pool.load(name)
            with ExitStack() as stack:
                for _ in range(4):
                    stack.enter_context(ask(pool, name))
                assert pool.status(name).in_flight == most
                assert pool.status(name).queued == 4 - most


async def test_a_slot_is_never_given_twice(pools: Pools) -> None:
    """Under a crowd that comes and goes, the worker never has more calls than slots, and all are answered."""
    async with pools(spec(slots=3, tokens=5, max_queue=1000)) as pool:
        await pool.load("m")
        most = 0

        async def one(number: int) -> int:
            nonlocal most
            with ask(pool, priority=Priority(number % 2)) as stream:
                events = await first(stream)
                most = max(most, worker(pool).open_calls, pool.status("m").in_flight)
                if number % 5 == 0:
                    return 5  # leave in the middle
                return len(text_of(events + await read(stream)).split())

        assert await asyncio.gather(*(one(number) for number in range(100))) == [5] * 100
        assert most <= 3
        await pool.unload("m")
        assert _place(pool) == (0, 0)


async def test_a_request_that_times_out_waiting_keeps_its_place(pools: Pools, tmp_path: Path) -> None:
    """A take that gives [] because the model loads loses nothing: the answer comes later."""
    weights = tmp_path / "weights"
    async with pools(spec(load_until=str(weights), reply="here")) as pool:
        await until(pool, State.LOADING)
        with ask(pool) as stream:
            assert await stream.take(0.001) == []
            assert _place(pool) == (0, 1)
            weights.touch()
            assert text_of(await read(stream)) == "here"


async def test_a_stopped_model_refuses_with_the_way_out(pools: Pools) -> None:
    """A request for a model its owner unloaded is refused, and told how to load it."""
    async with pools(spec()) as pool:
        await pool.load("m")
        await pool.unload("m")
        with pytest.raises(ModelUnavailable, match="modeld ctl load m") as caught, ask(pool):
            pass
        assert caught.value.param == "model"

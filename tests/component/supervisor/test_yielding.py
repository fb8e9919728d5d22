"""Calls that give their slot to an interactive request, in a real pool."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from modeld.errors import Overloaded
from modeld.ids import LOCAL
from modeld.supervisor.admission import BACKGROUND_EVERY, GaveWay, Priority
from modeld.supervisor.pool import Pool
from modeld.supervisor.stream import Stream
from tests.component.supervisor.conftest import Pools, answer, ask, first, read, spec
from tests.fakes.worker_link import WAIT_S, chat


def _job(pool: Pool, *, yields: bool = True, max_tokens: int | None = None) -> Stream:
    return pool.open("m", chat(max_tokens=max_tokens), LOCAL, Priority.BACKGROUND, yields=yields)


async def _admitted(stream: Stream) -> None:
    async with asyncio.timeout(WAIT_S):
        await stream.admitted()


async def test_a_job_gives_its_slot_to_whoever_waits(pools: Pools) -> None:
    """With every slot taken by a job that would go on for ever, an interactive request is answered."""
    async with pools(spec(slots=1, tokens=4, hang_after=2)) as pool:
        await pool.load("m")
        with _job(pool) as job:
            await _admitted(job)
            with ask(pool) as person:
                await first(person)
                assert pool.status("m").queued == 0
                with pytest.raises(GaveWay, match="an interactive request needs the slot of model 'm'"):
                    await read(job)


async def test_only_so_many_give_way_as_are_needed_and_the_youngest_first(pools: Pools) -> None:
    """Of three jobs at work one is cut off for one request, the one that began last."""
    async with pools(spec(slots=3, tokens=4, hang_after=2)) as pool:
        await pool.load("m")
        with ExitStack() as stack:
            jobs = [stack.enter_context(_job(pool)) for _ in range(3)]
            for job in jobs:
                await first(job)
            with ask(pool) as person:
                await first(person)
                with pytest.raises(GaveWay):
                    await read(jobs[2])
                assert pool.status("m").in_flight == 3
                assert [await job.take(0.0) for job in jobs[:2]] == [[], []]


async def test_a_job_does_not_give_way_while_slots_are_free(pools: Pools) -> None:
    """Side by side with an interactive request it goes on to its end."""
    async with pools(spec(slots=2, tokens=5, token_delay=0.01)) as pool:
        await pool.load("m")
        with _job(pool) as job:
            await first(job)
            await answer(ask(pool))
            await read(job)


async def test_neither_jobs_nor_other_background_work_make_a_job_give_way(pools: Pools) -> None:
    """Only interactive requests do."""
    async with pools(spec(slots=1, tokens=3, token_delay=0.01)) as pool:
        await pool.load("m")
        with _job(pool) as one, _job(pool) as two, ask(pool, priority=Priority.BACKGROUND) as three:
            for stream in (one, two, three):
                await read(stream)


async def test_what_does_not_yield_keeps_its_slot(pools: Pools) -> None:
    """A background request that was not opened so, and a job that has given way often enough, go on."""
    async with pools(spec(slots=1, tokens=3, token_delay=0.01)) as pool:
        await pool.load("m")
        with _job(pool, yields=False) as job:
            await first(job)
            with ask(pool) as person:
                await read(job)
                await read(person)


async def test_a_job_whose_turn_has_come_keeps_its_slot(pools: Pools) -> None:
    """The bound on starvation: after BACKGROUND_EVERY interactive requests a job goes in, and to its end,
    although more of them wait.
    """
    async with pools(spec(slots=1, tokens=3)) as pool:
        await pool.load("m")
        order: list[str] = []

        async def one(name: str, stream: Stream) -> None:
            await read(stream)
            order.append(name)

        with ExitStack() as stack:
            holder = stack.enter_context(ask(pool))
            job = stack.enter_context(_job(pool))
            people = [stack.enter_context(ask(pool)) for _ in range(BACKGROUND_EVERY + 3)]
            async with asyncio.TaskGroup() as group:
                group.create_task(one("job", job))
                for person in people:
                    group.create_task(one("person", person))
                await read(holder)
        assert order.index("job") == BACKGROUND_EVERY


async def test_a_queue_full_of_jobs_is_not_full_for_people(pools: Pools) -> None:
    """Where nothing may wait, a request still gets the slot of a job; the next one is refused."""
    async with pools(spec(slots=1, tokens=4, hang_after=2, max_queue=0)) as pool:
        await pool.load("m")
        with _job(pool) as job:
            await first(job)
            with pytest.raises(Overloaded), _job(pool):
                pass
            with ask(pool) as person:
                await first(person)
                with pytest.raises(Overloaded), ask(pool):
                    pass


async def test_a_job_that_gives_way_before_its_call_is_made_gives_its_slot_back(pools: Pools) -> None:
    """Granted in one turn of the loop and taken away in the same one, it holds nothing."""
    async with pools(spec(slots=1, tokens=3)) as pool:
        await pool.load("m")
        with ask(pool) as holder, _job(pool) as job:
            await read(holder)
            assert job._ticket is not None
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait(
                    {job._ticket.granted}
                )  # the slot is the job's now, which has not looked yet
            person = ask(pool)
            with person:
                with pytest.raises(GaveWay):
                    await _admitted(job)
                job._leave()
                await read(person)

"""Calls that give their slot to an interactive request, in a real pool."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from modeld.errors import Overloaded
from modeld.ids import LOCAL
from modeld.supervisor import admission, memory
from modeld.supervisor.admission import BACKGROUND_EVERY, GaveWay, Priority
from modeld.supervisor.pool import Pool
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State
from modeld.supervisor.stream import Stream
from tests.component.supervisor.conftest import Pools, answer, ask, first, read, spec, until
from tests.fakes.machine import GIB
from tests.fakes.worker_link import WAIT_S, chat
from tests.fakes.workers import Workers


def _job(pool: Pool, name: str = "m", *, yields: bool = True) -> Stream:
    return pool.open(name, chat(), LOCAL, Priority.BACKGROUND, yields=yields)


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


async def test_a_slot_is_kept_free_for_people_who_are_about(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once somebody was there, jobs leave one slot of three: the next request takes it, and nothing is
    cut off. When nobody has come for PRESENT_S, jobs take all.
    """
    async with pools(spec(slots=3, tokens=4, hang_after=2)) as pool:
        await pool.load("m")
        with ask(pool) as person:
            await first(person)
        async with asyncio.timeout(WAIT_S):
            while pool.status("m").in_flight:
                await asyncio.sleep(0.01)
        with ExitStack() as stack:
            jobs = [stack.enter_context(_job(pool)) for _ in range(3)]
            for job in jobs[:2]:
                await first(job)
            assert (pool.status("m").in_flight, pool.status("m").queued) == (2, 1)
            with ask(pool) as person:
                assert (pool.status("m").in_flight, pool.status("m").queued) == (3, 1)
                await first(person)
                assert [await job.take(0.0) for job in jobs] == [[], [], []]
            monkeypatch.setattr(admission, "PRESENT_S", 0.0)
            with ask(
                pool, priority=Priority.BACKGROUND
            ) as other:  # what comes and goes has the queue looked at
                await _admitted(jobs[2])
                assert pool.status("m").in_flight == 3
                assert await other.take(0.0) == []


# --- memory -------------------------------------------------------------------------------------------------


def _two() -> list[ModelSpec]:
    """Return models of which only one fits."""
    return [spec(name, footprint=8 * GIB, on_demand=True) for name in ("a", "b")]


async def _until_loaded(workers: Workers, *names: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while workers.names() != list(names):
            await asyncio.sleep(0.01)


async def test_jobs_make_way_for_whoever_needs_their_models_memory(pools: Pools) -> None:
    """A model that is busy with jobs alone is evicted for another one's request at once, and new jobs do not
    keep it.
    """
    workers = Workers(slots=2)
    async with pools(_two(), workers=workers) as pool:
        with _job(pool, "a") as one, _job(pool, "a") as two:
            await _admitted(one)
            await _admitted(two)
            with ask(pool, "b") as person:
                for job in (one, two):
                    with pytest.raises(GaveWay):
                        await read(job)
                    job._leave()
                with _job(pool, "a") as late:
                    await _until_loaded(workers, "b")
                    assert late._call is None
                    async with asyncio.timeout(WAIT_S):
                        await person.admitted()


async def test_a_person_keeps_a_model_for_a_while(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job does not evict what was used a moment ago, and after QUIET_S it does."""
    workers = Workers(quick=True)
    async with pools(_two(), workers=workers) as pool:
        await answer(ask(pool, "a"))
        with _job(pool, "b") as job:
            await until(pool, State.WAITING, "b")
            await asyncio.sleep(0.2)  # rounds of decisions
            assert workers.names() == ["a"]
            monkeypatch.setattr(memory, "QUIET_S", 0.0)
            await _admitted(job)
            assert workers.names() == ["b"]


async def test_jobs_wait_for_a_busy_machine_only_so_long(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After PATIENCE_S they are as good as anybody: the bound on their starvation."""
    workers = Workers(quick=True)
    async with pools(_two(), workers=workers) as pool:
        await answer(ask(pool, "a"))
        with _job(pool, "b") as job:
            await until(pool, State.WAITING, "b")
            monkeypatch.setattr(memory, "PATIENCE_S", 0.0)
            await _admitted(job)
            assert workers.names() == ["b"]


async def test_a_person_who_joins_a_waiting_job_does_not_wait_for_quiet(pools: Pools) -> None:
    """The claim is the person's then, and the idle model goes at once."""
    workers = Workers(quick=True)
    async with pools(_two(), workers=workers) as pool:
        await answer(ask(pool, "a"))
        with _job(pool, "b") as job:
            await until(pool, State.WAITING, "b")
            await answer(ask(pool, "b"))
            await read(job)


async def test_jobs_take_free_memory_at_once(pools: Pools) -> None:
    """Where nobody must go for it, there is nothing to wait for."""
    workers = Workers(quick=True)
    async with pools(
        [spec(name, footprint=GIB, on_demand=True) for name in ("a", "b")], workers=workers
    ) as pool:
        await answer(ask(pool, "a"))
        with _job(pool, "b") as job:
            await read(job)
        assert sorted(workers.names()) == ["a", "b"]

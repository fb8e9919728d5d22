from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from modeld.errors import (
    EngineError,
    ModeldError,
    ModelFailed,
    ModelUnavailable,
    NotFound,
    Overloaded,
    StoreFailed,
    WorkerDied,
)
from modeld.jobs import rules, upkeep
from modeld.jobs import runner as runner_module
from modeld.jobs.limits import JobLimits
from modeld.protocol.tasks import Task, Text
from modeld.store.job_records import TakenItem
from modeld.store.jobs import Jobs
from tests.component.jobs.served import WAIT_S, JobPool, counted, echo, number_of, serving, texts
from tests.fakes.clock import FakeClock
from tests.fakes.pool import Answer, said


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a model that could take nothing again at once."""
    monkeypatch.setattr(runner_module, "PAUSE_S", (0.01, 0.02))


async def test_items_run_side_by_side_up_to_the_free_slots_and_are_told_in_order(tmp_path: Path) -> None:
    """All slots are used and never more; the responses are in the order of the items, not in that of ends."""
    pool = JobPool(answer=lambda model, task: [], free=3)
    async with serving(tmp_path, pool) as api:
        id = await api.batch(20)
        for begun in range(3, 21):
            await pool.until(lambda begun=begun: len(pool.begun) == begun)  # type: ignore[misc]
            last = [stream for stream in pool.begun if not stream.over][-1]
            last.feed(*echo("tiny", last.task))
            await last.closed.wait()
        for stream in pool.begun:
            stream.feed(*echo("tiny", stream.task))
        told = await api.over(id)
    assert texts(told) == [str(at) for at in range(20)]
    assert pool.most == 3
    assert counted(pool) == {at: 1 for at in range(20)}


async def test_no_more_than_one_item_stands_in_the_models_queue(tmp_path: Path) -> None:
    """With the slots taken, one item waits for the next; all others wait on the disk."""
    pool = JobPool(answer=lambda model, task: [], free=2)  # answers come when the test says
    async with serving(tmp_path, pool) as api:
        await api.batch(50)
        await pool.until(lambda: len(pool.begun) == 2 and pool.open_calls == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert pool.open_calls == 3
        pool.begun[0].feed(*said())
        await pool.until(lambda: len(pool.begun) == 3 and pool.open_calls == 3)
        assert [number_of(stream.task) for stream in pool.begun] == [0, 1, 2]


async def test_a_failure_is_its_items_alone(tmp_path: Path) -> None:
    """The others are done; the job is done, with an error in that place."""

    def answer(model: str, task: Task) -> list[Answer] | ModeldError:
        return [EngineError("no")] if number_of(task) in (1, 3) else echo(model, task)

    async with serving(tmp_path, JobPool(answer=answer)) as api:
        told = await api.over(await api.batch(5))
    assert told["status"] == "done"
    responses = told["result"]["responses"]
    assert responses[1] == {"index": 1, "error": "no"}
    assert responses[3] == {"index": 3, "error": "no"}
    assert [responses[at]["message"]["content"] for at in (0, 2, 4)] == ["0", "2", "4"]


@pytest.mark.parametrize(
    "error",
    [
        ModelFailed("it is broken"),
        NotFound("it is gone", code="model_not_found"),
        EngineError("bad template"),
    ],
)
async def test_a_job_of_which_nothing_can_be_done_is_an_error_with_the_reason(
    tmp_path: Path, error: ModeldError
) -> None:
    """A failed model, one that was removed, an engine that refuses."""
    async with serving(tmp_path, JobPool(answer=lambda model, task: error)) as api:
        told = await api.over(await api.batch(3))
    assert told["status"] == "error"
    assert told["error"] == error.message
    assert "result" not in told


@pytest.mark.parametrize("error", [Overloaded("full"), ModelUnavailable("loading")])
async def test_what_passes_is_waited_for(tmp_path: Path, error: ModeldError) -> None:
    """A full queue and a model that cannot serve now cost a job time and nothing else."""
    pool = JobPool(answer=echo, refusals=[error] * 20)
    async with serving(tmp_path, pool) as api:
        told = await api.over(await api.batch(3))
    assert texts(told) == ["0", "1", "2"]
    assert pool.refusals == []


async def test_an_item_that_kills_the_worker_fails_after_so_many_tries(tmp_path: Path) -> None:
    """The others are not held up by it."""

    def answer(model: str, task: Task) -> list[Answer]:
        return [WorkerDied("dead")] if number_of(task) == 1 else echo(model, task)

    pool = JobPool(answer=answer)
    async with serving(tmp_path, pool) as api:
        told = await api.over(await api.batch(3))
    assert told["result"]["responses"][1] == {"index": 1, "error": "dead"}
    assert counted(pool) == {0: 1, 1: rules.MOST_ATTEMPTS, 2: 1}


async def test_an_item_that_gives_way_begins_anew_and_at_last_keeps_its_slot(tmp_path: Path) -> None:
    """Its pieces are not mixed up, and after MOST_YIELDS times it does not yield any more."""
    pool = JobPool(answer=lambda model, task: [[Text("begun ")]], free=1)
    async with serving(tmp_path, pool) as api:
        id = await api.chat()
        for time in range(rules.MOST_YIELDS):
            await pool.until(lambda time=time: len(pool.begun) == time + 1)  # type: ignore[misc]
            assert pool.begun[time].yields
            pool.begun[time].give_way()
        await pool.until(lambda: len(pool.begun) == rules.MOST_YIELDS + 1)
        assert not pool.begun[-1].yields
        pool.begun[-1].feed(*said("and done"))
        told = await api.over(id)
        assert told["result"]["message"]["content"] == "begun and done"
        assert api.metrics.registry.get_sample_value("modeld_job_items_yielded_total") == rules.MOST_YIELDS


async def test_callers_share_the_slots(tmp_path: Path) -> None:
    """A caller with one chat does not wait for the thousand items of another."""
    pool = JobPool(answer=lambda model, task: [], free=1)
    async with serving(tmp_path, pool, keys=("one", "two")) as api:
        await api.batch(1000, key="one")
        await pool.until(lambda: len(pool.begun) == 1 and pool.open_calls == 2)
        await api.batch(2, key="two")
        for at in range(4):
            await pool.until(lambda at=at: len(pool.begun) == at + 1)  # type: ignore[misc]
            pool.begun[at].feed(*said())
        one, two = pool.identities[0], pool.identities[2]
        assert pool.identities[:4] == [one, one, two, one]
        assert one != two


async def test_a_short_job_does_not_wait_for_a_long_one(tmp_path: Path) -> None:
    """Of one caller's jobs the one that has got least is next."""
    pool = JobPool(answer=lambda model, task: [], free=1)
    async with serving(tmp_path, pool) as api:
        long = await api.batch(1000)
        await pool.until(lambda: len(pool.begun) == 1 and pool.open_calls == 2)
        short = await api.chat()
        for at in range(3):
            await pool.until(lambda at=at: len(pool.begun) == at + 1)  # type: ignore[misc]
            pool.begun[at].feed(*said())
        assert (await api.over(short))["status"] == "done"
        assert await api.status(long) == "processing"


async def test_a_life_that_ends_gives_back_what_is_at_work(tmp_path: Path) -> None:
    """The next one does it, and nothing that is done is done again; the try of the last life counts not."""
    pool = JobPool(answer=lambda model, task: said() if number_of(task) < 2 else [], free=2)
    async with serving(tmp_path, pool) as api:
        id = await api.batch(6)
        await pool.until(lambda: len(pool.begun) == 4 and pool.open_calls == 3)
    assert [stream.cancelled for stream in pool.begun[2:]] == [True, True]
    later = JobPool(answer=echo)
    async with serving(tmp_path, later) as api:
        told = await api.over(id)
        assert texts(told)[2:] == ["2", "3", "4", "5"]
        assert counted(later) == {2: 1, 3: 1, 4: 1, 5: 1}
        rows = await api.database.fetch("SELECT attempts FROM job_item")
        assert set(rows) == {(1,)}


async def test_a_job_past_its_deadline_is_an_error_and_its_work_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done stays done; what is at work is cancelled."""
    monkeypatch.setattr(upkeep, "BEAT_S", 0.01)
    pool = JobPool(answer=lambda model, task: said() if number_of(task) < 1 else [], free=1)
    clock = FakeClock()
    async with serving(tmp_path, pool, clock=clock, limits=JobLimits(patience_s=30.0)) as api:
        id = await api.batch(3)
        await pool.until(lambda: len(pool.begun) == 2)
        clock.advance(30.0)
        told = await api.over(id)
        assert told["status"] == "error"
        assert told["error"].startswith("the job had not ended by its deadline, 30 s after its submission")
        assert "jobs.patience" in told["error"]
        await pool.until(lambda: pool.open_calls == 0)
        assert pool.begun[1].cancelled


async def test_what_waits_is_measured_and_what_has_expired_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depth, age of the oldest, how long jobs waited and how they ended; rows go when their time is over."""
    monkeypatch.setattr(upkeep, "BEAT_S", 0.01)
    monkeypatch.setattr(upkeep, "SWEEP_S", 0.0)
    clock, kind = FakeClock(), {"kind": "batch_chat"}
    pool = JobPool(answer=lambda model, task: [], free=1)
    async with serving(tmp_path, pool, clock=clock, limits=JobLimits(keep_s=60.0)) as api:

        def value(name: str, **labels: str) -> float:
            return api.metrics.registry.get_sample_value(f"modeld_{name}", labels) or 0.0

        id = await api.batch(5)
        await pool.until(lambda: len(pool.begun) == 1 and pool.open_calls == 2)
        clock.advance(30.0)
        async with asyncio.timeout(WAIT_S):
            while value("job_oldest_seconds", **kind) != 30.0 or value("job_items_waiting", **kind) != 3:
                await asyncio.sleep(0.01)
        assert value("jobs", status="processing", **kind) == 1
        assert value("jobs", status="pending", kind="chat") == 0
        assert value("job_wait_seconds_count", kind="batch_chat") == 1
        await api.ask("DELETE", f"Jobs/{id}")
        assert value("jobs_ended_total", kind="batch_chat", status="cancelled") == 1
        assert await api.rows("job_item") == 5
        clock.advance(60.0)
        async with asyncio.timeout(WAIT_S):
            while await api.rows("job") or value("job_oldest_seconds", **kind):
                await asyncio.sleep(0.01)
        assert await api.rows("job_item") == 0


async def test_an_item_that_daemons_die_of_is_tried_so_often_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life that cannot give back what it works on is to the store as one that was killed. What is done
    stays, and the rest is done.
    """

    async def dead(self: Jobs, item: TakenItem, *, counted: bool) -> bool:
        raise StoreFailed("this life is over")

    pool = JobPool(answer=lambda model, task: [] if number_of(task) == 1 else said(), free=1)
    id = ""
    with monkeypatch.context() as patch:
        patch.setattr(Jobs, "give_back", dead)
        for life in range(1, rules.MOST_ATTEMPTS + 1):
            async with serving(tmp_path, pool) as api:
                id = id or await api.batch(3)
                await pool.until(lambda life=life: counted(pool)[1] == life)  # type: ignore[misc]
                async with asyncio.timeout(WAIT_S):
                    while (await api.database.fetch("SELECT attempts FROM job_item WHERE place = 1")) != [
                        (life,)
                    ]:
                        await asyncio.sleep(0.002)
                assert await api.status(id) == "processing"
    async with serving(tmp_path, pool) as api:
        told = await api.over(id)
        assert told["status"] == "done"
        text = f"modeld ended {rules.MOST_ATTEMPTS} times while it worked on this, so it is not tried again"
        assert told["result"]["responses"][1] == {"index": 1, "error": text}
    assert counted(pool) == {0: 1, 1: rules.MOST_ATTEMPTS, 2: 1}


async def test_what_is_at_work_has_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round of upkeep says that this life still works on it; a job that is over has none."""
    monkeypatch.setattr(upkeep, "BEAT_S", 0.01)
    clock = FakeClock()
    pool = JobPool(answer=lambda model, task: [], free=1)
    async with serving(tmp_path, pool, clock=clock) as api:

        async def beat() -> float | None:
            [(at,)] = await api.database.fetch("SELECT beat FROM job")
            return at  # type: ignore[no-any-return]

        id = await api.chat()
        await pool.until(lambda: len(pool.begun) == 1)
        for _ in range(2):
            clock.advance(30.0)
            async with asyncio.timeout(WAIT_S):
                while await beat() != clock.time():
                    await asyncio.sleep(0.005)
        pool.begun[0].feed(*said())
        await api.over(id)
        assert await beat() is None

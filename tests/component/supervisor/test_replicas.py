"""Several copies of one model, on workers without processes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from modeld.errors import ModelFailed, Overloaded
from modeld.ids import LOCAL
from modeld.protocol.tasks import ChatTask, Message
from modeld.supervisor.admission import BACKGROUND_EVERY, Priority
from modeld.supervisor.deployment import Deployment
from modeld.supervisor.pool import Pool
from modeld.supervisor.scheduling.scaling import Scaling
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import Pools, answer, ask, deployment, read, replica, spec, until
from tests.fakes.machine import GIB
from tests.fakes.worker_link import WAIT_S, text_of
from tests.fakes.workers import FakeWorker, Workers


async def turns(count: int = 20) -> None:
    """Let everything that is ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until_ready(model: Deployment, count: int) -> None:
    """Wait until exactly so many replicas serve and no other is on its way."""
    async with asyncio.timeout(WAIT_S):
        await model.until(
            lambda status: (
                sorted(one.state for one in status.replicas if one.state is not State.STOPPED)
                == [State.READY] * count
            )
        )


def loads(workers: Workers) -> list[int]:
    """Return the open calls of each worker, smallest first."""
    return sorted(worker.open_calls for worker in workers.running)


def busiest(workers: Workers) -> FakeWorker:
    """Return the worker with the most open calls."""
    return max(workers.running, key=lambda worker: worker.open_calls)


async def test_requests_go_to_the_least_loaded_replica(pools: Pools) -> None:
    """Requests spread evenly, no replica gets more than its owner allows, and the rest waits."""
    workers = Workers(slots=8)
    model = spec(scaling=Scaling(3, 3, 3), max_ongoing=2, footprint=GIB)
    async with pools(model, workers=workers) as pool:
        await until_ready(deployment(pool), 3)
        with ExitStack() as stack:
            streams = [stack.enter_context(ask(pool)) for _ in range(7)]
            reading = [asyncio.ensure_future(read(stream)) for stream in streams]
            await turns()
            assert loads(workers) == [2, 2, 2]
            status = pool.status("m")
            assert (status.in_flight, status.queued) == (6, 1)
            for worker in list(workers.running):
                for call in worker.calls:
                    call.end()
            await turns()
            for worker in list(workers.running):
                for call in worker.calls:
                    call.end()
            await asyncio.gather(*reading)


async def test_turns_of_one_conversation_meet_the_same_replica(pools: Pools) -> None:
    """Chats that begin alike go where their prefix is in the cache, unless that replica is much busier."""
    workers = Workers(slots=8, quick=True)
    async with pools(spec(scaling=Scaling(3, 3, 3), footprint=GIB), workers=workers) as pool:
        await until_ready(deployment(pool), 3)
        used: dict[str, set[int]] = {}
        for talk in ("about cats", "about dogs", "about ships", "about tea", "about rain", "about snow"):
            for length in range(3):
                messages = [Message(role="system", content="be brief"), Message(role="user", content=talk)]
                messages += [Message(role="assistant", content="yes")] * length
                before = {worker.pid: len(worker.calls) for worker in workers.running}
                with pool.open("m", ChatTask(messages=tuple(messages)), LOCAL) as stream:
                    await read(stream)
                (pid,) = [w.pid for w in workers.running if len(w.calls) > before[w.pid]]
                used.setdefault(talk, set()).add(pid)
        assert all(len(pids) == 1 for pids in used.values())
        assert len(set().union(*used.values())) > 1


async def test_replicas_may_die_one_by_one(pools: Pools) -> None:
    """Requests go on as long as one replica lives; those that had got nothing are answered by another."""
    workers = Workers(slots=8)
    async with pools(spec(scaling=Scaling(3, 3, 3), footprint=GIB), workers=workers) as pool:
        await until_ready(deployment(pool), 3)
        workers.gates["m"] = asyncio.Event()  # whoever dies does not come back for now
        for left in (2, 1):
            with ask(pool) as stream:
                reading = asyncio.ensure_future(read(stream))
                await turns()
                busiest(workers).die()
                await turns()
                (again,) = [worker for worker in workers.running if worker.open_calls]
                again.calls[-1].end()
                assert text_of(await reading) == "ok"
            assert sum(one.serving for one in deployment(pool).replicas) == left
            assert pool.status("m").state is State.READY
        with ask(pool) as stream:
            reading = asyncio.ensure_future(read(stream))
            await turns()
            busiest(workers).die()
            await turns()
            assert pool.status("m").queued == 1  # the last one is gone: it waits for whoever comes back
            workers.gates["m"].set()
            async with asyncio.timeout(WAIT_S):
                while not any(worker.open_calls for worker in workers.running):
                    await asyncio.sleep(0)
            busiest(workers).calls[-1].end()
            assert text_of(await reading) == "ok"
        await until_ready(deployment(pool), 3)


async def test_a_model_is_failed_only_when_its_last_replica_is(pools: Pools) -> None:
    """One replica in a crash loop is a detail of a model that serves; all of them are its end."""
    async with pools(spec(scaling=Scaling(2, 2, 2), load_error="no", footprint=GIB)) as pool:
        status = await until(pool, State.FAILED)
        assert "no" in status.message
        with pytest.raises(ModelFailed):
            await answer(ask(pool))


async def test_load_adds_replicas_and_quiet_takes_them_away(pools: Pools) -> None:
    """With autoscaling the number follows the load within its bounds, and nobody is cut off on the way
    down.
    """
    workers = Workers(slots=2)
    scaling = Scaling(1, 3, 1, target=1.0, up_s=0.05, down_s=0.1)
    async with pools(spec(scaling=scaling, footprint=GIB), workers=workers) as pool:
        await until_ready(deployment(pool), 1)
        with ExitStack() as stack:
            streams = [stack.enter_context(ask(pool)) for _ in range(3)]
            reading = [asyncio.ensure_future(read(stream)) for stream in streams]
            await until_ready(deployment(pool), 3)
            await turns()
            assert len(workers.running) == 3
            for worker in list(workers.running):
                for call in worker.calls:
                    call.end()
            answers = await asyncio.gather(*reading)
        assert [text_of(events) for events in answers] == ["ok"] * 3
        await until_ready(deployment(pool), 1)
        async with asyncio.timeout(WAIT_S):
            while len(workers.running) > 1:
                await asyncio.sleep(0)


async def test_a_model_scales_to_zero_and_back(pools: Pools) -> None:
    """With a minimum of 0 an idle model goes, and a request brings it back at once."""
    workers = Workers(quick=True)
    scaling = Scaling(0, 2, 0, target=1.0, up_s=0.0, down_s=0.05)
    async with pools(spec(scaling=scaling, footprint=GIB), workers=workers) as pool:
        assert pool.status("m").state is State.STOPPED
        assert text_of(await answer(ask(pool))) == "ok"
        status = await until(pool, State.STOPPED)
        assert status.cause == "scaled"
        assert text_of(await answer(ask(pool))) == "ok"


async def test_the_owner_changes_the_number_of_a_running_model(pools: Pools) -> None:
    """More replicas come beside those that run, fewer leave after their requests; nobody restarts."""
    workers = Workers(slots=1)
    async with pools(spec(scaling=Scaling(1, 1, 1), footprint=GIB), workers=workers) as pool:
        await until_ready(deployment(pool), 1)
        pid = replica(pool).pid
        pool.update(spec(scaling=Scaling(3, 3, 3), footprint=GIB))
        await until_ready(deployment(pool), 3)
        assert replica(pool).pid == pid
        with ExitStack() as stack:
            streams = [stack.enter_context(ask(pool)) for _ in range(3)]
            reading = [asyncio.ensure_future(read(stream)) for stream in streams]
            await turns()
            pool.update(spec(scaling=Scaling(1, 1, 1), footprint=GIB))
            await turns()
            assert loads(workers) == [1, 1, 1]
            for worker in list(workers.running):
                for call in worker.calls:
                    call.end()
            answers = await asyncio.gather(*reading)
        assert [text_of(events) for events in answers] == ["ok"] * 3
        await until_ready(deployment(pool), 1)
        assert replica(pool).pid == pid


async def test_background_work_goes_on_under_interactive_load(pools: Pools) -> None:
    """Interactive requests go first, yet a background one is served after a bounded number of them."""
    workers = Workers(slots=1, quick=True)
    workers.gates["m"] = asyncio.Event()
    order: list[str] = []

    async def one(pool: Pool, name: str, priority: Priority) -> None:
        with ask(pool, priority=priority) as stream:
            await read(stream)
            order.append(name)

    async with pools(spec(footprint=GIB), workers=workers) as pool:
        await until(pool, State.LOADING)
        async with asyncio.TaskGroup() as group:
            group.create_task(one(pool, "background", Priority.BACKGROUND))
            await turns()
            for number in range(30):
                group.create_task(one(pool, f"i{number}", Priority.INTERACTIVE))
            await turns()
            workers.gates["m"].set()
        assert order.index("background") == BACKGROUND_EVERY
        assert len(set(order)) == len(order) == 31


async def test_a_full_queue_counts_all_replicas(pools: Pools) -> None:
    """The queue limit is the model's, whatever the number of its replicas."""
    workers = Workers(slots=1)
    async with pools(spec(scaling=Scaling(2, 2, 2), max_queue=1, footprint=GIB), workers=workers) as pool:
        await until_ready(deployment(pool), 2)
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(ask(pool))
            with pytest.raises(Overloaded, match="its queue holds 1"), ask(pool):
                pass

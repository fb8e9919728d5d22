from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modeld.errors import ModelFailed, ModelUnavailable, NotFound
from modeld.hardware import host
from modeld.ids import LOCAL
from modeld.protocol.tasks import Finish, Usage
from modeld.supervisor.process import WorkerProcess
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import (
    CAPACITY,
    Pools,
    ask,
    deployment,
    held,
    our_workers,
    read,
    spec,
    states,
    until,
)
from tests.fakes.worker_link import WAIT_S, chat, text_of


async def test_a_model_loads_serves_and_unloads(pools: Pools) -> None:
    """Entering the pool loads, a request gets its answer, unloading ends the process and says so."""
    async with pools(spec(reply="it works")) as pool:
        status = await pool.load("m")
        assert status.state is State.READY
        assert status.pid is not None
        assert status.run_id is not None
        assert status.facts is not None
        assert status.progress is None
        with ask(pool) as stream:
            events = await read(stream)
            assert text_of(events) == "it works"
            assert events[-2:] == [Finish("stop"), Usage(1, 2)]
        assert pool.status("m").in_flight == 0
        assert pool.statuses()[0].bytes_used > 1 << 20
        status = await pool.unload("m")
        assert (status.state, status.pid, status.run_id, status.bytes_used) == (State.STOPPED, None, None, 0)
        assert our_workers() == []
        assert states(pool) == ["starting", "loading", "ready", "stopping", "stopped"]


async def test_models_live_side_by_side(pools: Pools) -> None:
    """Each model has a worker of its own; statuses come by name; settled waits for all of them."""
    async with pools([spec("b"), spec("c", load_error="no"), spec("a")]) as pool:
        async with asyncio.timeout(WAIT_S):
            await pool.settled()
        assert [(status.name, status.state) for status in pool.statuses()] == [
            ("a", State.READY),
            ("b", State.READY),
            ("c", State.FAILED),
        ]
        assert pool.status("a").pid != pool.status("b").pid
        await pool.unload("a")
        async with asyncio.timeout(WAIT_S):
            await pool.settled()  # a model that its owner stopped is settled too


async def test_unknown_models_are_not_found(pools: Pools) -> None:
    """Every question about a model that is not configured raises NotFound with the code of OpenAI."""
    async with pools(spec()) as pool:
        for asking in (pool.load, pool.unload, pool.restart):
            with pytest.raises(NotFound) as caught:
                await asking("nope")
            assert caught.value.code == "model_not_found"
        for looking in (pool.status, pool.log_lines, pool.follow_log):
            with pytest.raises(NotFound):
                looking("nope")
        with pytest.raises(NotFound):
            pool.open("nope", chat(), LOCAL)


async def test_restart_gives_a_new_life(pools: Pools) -> None:
    """A restart ends the old process before it starts the new one, and returns when that is READY."""
    async with pools(spec(tokens=1)) as pool:
        old = await pool.load("m")
        new = await pool.restart("m")
        assert new.state is State.READY
        assert new.pid != old.pid
        assert new.run_id != old.run_id
        assert [child.pid for child in our_workers()] == [new.pid]
        assert states(pool)[3:] == ["stopping", "stopped", "starting", "loading", "ready"]
        assert new.restarts == 0  # the owner asked: no crash


async def test_restart_starts_a_stopped_or_failed_model(pools: Pools) -> None:
    """Restarting what does not run starts it; what fails again says so again."""
    async with pools([spec(), spec("bad", load_error="never")]) as pool:
        await pool.load("m")
        await pool.unload("m")
        assert (await pool.restart("m")).state is State.READY
        await until(pool, State.FAILED, "bad")
        with pytest.raises(ModelFailed, match="never"):
            await pool.restart("bad")
        assert states(pool, "bad").count("failed") == 2


async def test_minds_may_change_in_one_breath(pools: Pools) -> None:
    """Any load, unload and restart asked at once all return, and the last one asked decides."""
    async with pools(spec()) as pool:
        async with asyncio.timeout(WAIT_S):
            await pool.load("m")
            _, loaded = await asyncio.gather(pool.unload("m"), pool.load("m"))
            assert loaded.state is State.READY
            assert states(pool)[-5:] == ["stopping", "stopped", "starting", "loading", "ready"]
            _, status = await asyncio.gather(pool.unload("m"), pool.restart("m"))
            assert status.state is State.READY
            # The load in the middle is overtaken, and told so.
            _, middle, _ = await asyncio.gather(
                pool.unload("m"), pool.load("m"), pool.unload("m"), return_exceptions=True
            )
            assert isinstance(middle, ModelUnavailable)
            assert pool.status("m").state is State.STOPPED
            assert (await pool.load("m")).state is State.READY


async def test_load_and_unload_follow_each_other_quickly(pools: Pools) -> None:
    """A load asked while the model is going down waits for the next life, not for the end of this one."""
    async with pools(spec(load_seconds=0.02)) as pool:
        async with asyncio.timeout(WAIT_S):
            await pool.load("m")
            for state in (State.STOPPING, State.STARTING, State.LOADING):
                unloading = asyncio.ensure_future(pool.unload("m"))
                loading = None
                if state is State.STOPPING:
                    await until(pool, state)
                    loading = asyncio.ensure_future(pool.load("m"))
                    await unloading
                    assert (await loading).state is State.READY
                else:
                    await unloading
                    loading = asyncio.ensure_future(pool.load("m"))
                    await until(pool, state)
                    unloading = asyncio.ensure_future(pool.unload("m"))
                    await unloading
                    with pytest.raises(ModelUnavailable, match="did not come up: unloaded"):
                        await loading
                    assert (await pool.load("m")).state is State.READY


async def _never(reference: str, report: Callable[[str, float | None], None]) -> Path:
    report("fetching", 0.25)
    await asyncio.Event().wait()
    raise AssertionError


SITUATIONS = {
    State.STARTING: spec(reference="hub/model"),
    State.LOADING: spec(load_hang=True),
    State.READY: spec(),
    State.BACKOFF: spec(load_crash=True),
    State.WAITING: spec(footprint=CAPACITY // 2),
    State.FAILED: spec(load_error="never"),
}
SLOW = RestartPolicy(base_s=1000.0, cap_s=1000.0)


@pytest.mark.parametrize("state", SITUATIONS)
async def test_unload_works_in_every_state(pools: Pools, state: State) -> None:
    """Unloading returns in whatever state the model is, leaves no process, and may be taken back."""
    big = spec("big", footprint=CAPACITY // 2 + 1)
    async with pools([big, SITUATIONS[state]], resolve=_never, policy=SLOW) as pool:
        await until(pool, State.READY, "big")
        status = await until(pool, state)
        if state is State.STARTING:
            status = await deployment(pool).until(lambda status: status.message == "fetching")
            assert status.progress == 0.25
        async with asyncio.timeout(WAIT_S):
            status = await pool.unload("m")
        assert status.state is (State.FAILED if state is State.FAILED else State.STOPPED)
        assert status.pid is None
        assert [child.pid for child in our_workers()] == [pool.status("big").pid]
        assert held(pool).keys() == {"big"}
        # Nothing has to be forgotten first: the next wish leads to the same place.
        deployment(pool).load(passive=True)
        await until(pool, state, now=False)


@pytest.mark.parametrize("state", SITUATIONS)
async def test_leaving_the_pool_leaves_nothing_in_any_state(pools: Pools, state: State) -> None:
    """Whatever state the model is in, leaving ends its process and removes its folder and record."""
    big = spec("big", footprint=CAPACITY // 2 + 1)
    async with pools([big, SITUATIONS[state]], resolve=_never, policy=SLOW) as pool:
        await until(pool, state)


@pytest.mark.parametrize("state", SITUATIONS)
async def test_an_error_inside_the_pool_leaves_nothing_either(pools: Pools, state: State) -> None:
    """An exception in the pool's body ends every worker and goes on as it was."""
    big = spec("big", footprint=CAPACITY // 2 + 1)

    async def fail() -> None:
        async with pools([big, SITUATIONS[state]], resolve=_never, policy=SLOW) as pool:
            await until(pool, state)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_pool_left_at_once_leaves_nothing(pools: Pools) -> None:
    """Leaving before anything has started is like leaving afterwards."""
    async with pools([spec(), spec("n")]):
        pass


async def test_leaving_may_be_cancelled(pools: Pools) -> None:
    """A pool whose leaving is cancelled still ends its workers; nobody waits for ever."""
    entered = asyncio.Event()

    async def live() -> None:
        async with pools(spec(hang_after=1)) as pool:
            await pool.load("m")
            entered.set()

    living = asyncio.ensure_future(live())
    async with asyncio.timeout(WAIT_S):
        await entered.wait()
        await asyncio.sleep(0)
        living.cancel()
        with pytest.raises(asyncio.CancelledError):
            await living


async def test_a_worker_has_a_private_folder_and_a_record_while_it_lives(
    pools: Pools, short_dir: Path
) -> None:
    """The runtime folder is 0700, and the record holds the start time that tells it from a reused pid."""
    async with pools(spec()) as pool:
        pid = (await pool.load("m")).pid
        assert pid is not None
        assert float((short_dir / "workers" / str(pid)).read_text()) == host.started_at(pid)
        (folder,) = [path for path in short_dir.iterdir() if path.name != "workers"]
        assert folder.stat().st_mode & 0o777 == 0o700
        assert os.getpgid(pid) == pid


async def test_a_start_that_fails_half_way_leaves_no_process(pools: Pools, short_dir: Path) -> None:
    """When the record cannot be written the worker is ended, and the reason shows in the status."""
    (short_dir / "workers").rmdir()
    async with pools(spec(), policy=RestartPolicy(budget=0)) as pool:
        status = await until(pool, State.FAILED)
        assert "cannot start a worker" in status.message
        assert "No such file" in status.message
        assert our_workers() == []


@pytest.mark.parametrize("turns", range(6))
async def test_a_spawn_that_is_cancelled_leaves_no_process(pools: Pools, turns: int) -> None:
    """A pool left at any step of a worker's spawning ends that worker and waits for its end."""

    async def fail() -> None:
        async with pools(spec()) as pool:
            await until(pool, State.STARTING)
            for _ in range(turns):
                await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_start_that_is_cancelled_half_way_leaves_no_process(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool left between a worker's start and its greeting ends that worker."""
    start = WorkerProcess.start
    started = asyncio.Event()

    async def tell(*args: object, **kwargs: object) -> WorkerProcess:
        process = await start(*args, **kwargs)  # type: ignore[arg-type]
        started.set()
        return process

    monkeypatch.setattr(WorkerProcess, "start", tell)

    async def fail() -> None:
        async with pools(spec()):
            async with asyncio.timeout(WAIT_S):
                await started.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

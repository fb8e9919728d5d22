"""Swaps that go wrong: who does not go, does not come, dies half-way, or is asked for by many at once."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.harness.daemon import Daemon, family_gone, running
from tests.harness.models import fake
from tests.harness.sse import Answer, chat, opened
from tests.harness.talk import SCRIPT, talking
from tests.harness.workers import MIB, watched

ON_DEMAND = {"load": "on_demand"}
ROOM_FOR_ONE = {"memory": {"ram": 200 * MIB}}


def big(name: str, **script: Any) -> dict[str, Any]:
    """Return a model on demand of which there is room for one."""
    return fake(name, memory=120 * MIB, **script) | ON_DEMAND


def config(*models: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a configuration with room for one big model."""
    return {"allow_fake": True, "models": list(models), **ROOM_FOR_ONE, **more}


def code(answer: Answer) -> str | None:
    """Return an answer's error code."""
    return answer.error["code"] if answer.error else None


async def test_many_first_requests_start_one_process(short_dir: Path) -> None:
    """20 requests in the same moment for a model that is not loaded, streaming and not: one process is ever
    started, and all are answered.
    """
    async with (
        running(short_dir, config(big("cold", reply="here", load_seconds=0.2))) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        watched(daemon.pid) as seen,
    ):
        answers = await asyncio.gather(*(chat(session, daemon.url, "cold") for _ in range(20)))
        assert {(answer.text, answer.done) for answer in answers} == {("here", True)}
        assert len(seen.pids) == 1
        metrics = await daemon.metrics()
        assert metrics['modeld_model_loads_total{model="cold",outcome="ready"}'] == 1


async def test_a_load_that_fails_tells_all_who_wait_the_same(short_dir: Path) -> None:
    """20 requests for a model that cannot load: one attempt, the same 503 with the reason for all, and the
    owner's `ctl load` may try again.
    """
    broken = big("broken", load_error="scripted: no such weights", load_seconds=0.3)
    async with (
        running(short_dir, config(broken)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        watched(daemon.pid) as seen,
    ):
        answers = await asyncio.gather(*(chat(session, daemon.url, "broken") for _ in range(20)))
        assert {code(answer) for answer in answers} == {"model_failed"}
        assert len({str(answer.error) for answer in answers}) == 1
        assert "scripted: no such weights" in str(answers[0].error)
        assert len(seen.pids) == 1
        said = await daemon.ctl("load", "broken")
        assert said.code == 1
        assert "scripted: no such weights" in said.err
        assert len(seen.pids) == 2


async def test_a_victim_that_will_not_go_delays_a_swap_and_does_not_stop_it(short_dir: Path) -> None:
    """A model that ignores cancelling and SIGTERM, with a request that never ends, is unloaded: the request
    gets an error, the process is killed, the model that waits for its memory answers, and the two are never
    there at once. A third model's streams do not notice.
    """
    stubborn = big("stubborn", tokens=4, hang_after=2, ignore_cancel=True, ignore_term=True)
    models = config(stubborn, big("next", reply="at last"), fake("talker", **SCRIPT), drain_timeout=0.2)
    async with (
        running(short_dir, models | {"memory": {"ram": 240 * MIB}}) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        await daemon.until("talker", "ready")
        async with (
            talking(daemon.url, "talker"),
            watched(daemon.pid) as seen,
            opened(session, daemon.url, "stubborn") as hung,
        ):
            await hung.until_text()
            old = psutil.Process((await daemon.model("stubborn"))["pid"])
            waiting = asyncio.ensure_future(chat(session, daemon.url, "next"))
            await daemon.until("next", "waiting")
            unloading = asyncio.ensure_future(daemon.ctl("unload", "stubborn"))
            answer = await hung.to_end()
            assert (code(answer), answer.done) == ("model_stopped", False)
            assert old.is_running()  # told to go, and still there: nobody is started on its memory
            assert (await daemon.model("next"))["state"] == "waiting"
            assert (await waiting).text == "at last"
            said = await unloading
            assert said.code == 0, said
            assert not old.is_running()
            assert "ignored SIGTERM" in await daemon.log("stubborn")
        assert seen.most == 2
        assert (await daemon.model("stubborn"))["state"] == "stopped"


async def test_requests_that_meet_the_unloading_of_their_model_are_answered(short_dir: Path) -> None:
    """With `keep_alive: 0` the model goes whenever it is idle; callers who ask again at that very moment get
    their answers all the same, and at most one process is there at a time.
    """
    async with (
        running(short_dir, config(big("brief", reply="x") | {"keep_alive": 0})) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        watched(daemon.pid) as seen,
    ):

        async def caller(pause: float) -> None:
            for _ in range(5):
                answer = await chat(session, daemon.url, "brief")
                assert (answer.error, answer.text, answer.done) == (None, "x", True)
                await asyncio.sleep(pause)

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(caller(number * 0.013))
        assert seen.most == 1
        await daemon.until("brief", "stopped")


async def test_a_load_that_hangs_does_not_keep_the_memory_from_others(short_dir: Path) -> None:
    """A model whose load makes no progress gives its memory back after its start timeout; another that waits
    for the same memory is served, although it was asked for later.
    """
    hangs = big("hangs", load_hang=True) | {"start_timeout": 0.3}
    async with (
        running(short_dir, config(hangs, big("fine", reply="served"))) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        for_nothing = asyncio.ensure_future(chat(session, daemon.url, "hangs"))
        await daemon.until("hangs", "loading")
        assert (await chat(session, daemon.url, "fine")).text == "served"
        assert not for_nothing.done()
        for_nothing.cancel()
        await daemon.line("no progress within 0.6 s")


async def test_a_killed_daemon_in_the_middle_of_a_swap_leaves_nothing(short_dir: Path) -> None:
    """kill -9 of the daemon while a victim refuses to go and another model waits: no process is left within
    moments, and the next start loads both in turn.
    """
    old, new = big("old", ignore_term=True, reply="old"), big("new", reply="new", load_seconds=0.1)
    async with running(short_dir, config(old, new)) as daemon, asyncio.timeout(180):
        async with aiohttp.ClientSession() as session:
            await chat(session, daemon.url, "old")
            asking = asyncio.ensure_future(chat(session, daemon.url, "new"))
            await daemon.until("old", "stopping")
            assert (await daemon.model("new"))["state"] == "waiting"
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
            await asyncio.wait({asking})
            assert isinstance(asking.exception(), aiohttp.ClientError)
        assert await family_gone(daemon.mark) == []
    old = big("old", reply="old")
    async with (
        running(short_dir, config(old, new)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        watched(daemon.pid) as seen,
    ):
        for name in ("old", "new"):
            assert (await chat(session, daemon.url, name)).text == name
        assert seen.most == 1


async def test_a_loading_model_whose_daemon_is_killed_goes_too(short_dir: Path) -> None:
    """kill -9 of the daemon while a worker is loading: the worker is gone too."""
    async with running(short_dir, config(big("slow", load_seconds=600))) as daemon, asyncio.timeout(180):
        loading = asyncio.ensure_future(daemon.ctl("load", "slow"))
        await daemon.until("slow", "loading")
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
        assert (await loading).code == 1
        assert await family_gone(daemon.mark) == []


async def _killed_one_by_one(daemon: Daemon, rounds: asyncio.Condition, answered: list[int]) -> None:
    """Kill each copy in turn; before the next, every caller gets two more answers."""
    for index in range(3):
        pid = _copy(await daemon.model("m"), index)["pid"]
        psutil.Process(pid).kill()
        await daemon.until_status("m", partial(_has_gone, index, pid))
        goal = [count + 2 for count in answered]
        async with rounds:
            await rounds.wait_for(partial(_reached, answered, goal))


def _copy(status: dict[str, Any], index: int) -> dict[str, Any]:
    copy: dict[str, Any] = status["replicas"][index]
    return copy


def _has_gone(index: int, pid: int, status: dict[str, Any]) -> bool:
    return bool(_copy(status, index)["pid"] != pid)


def _reached(answered: list[int], goal: list[int]) -> bool:
    return all(have >= want for have, want in zip(answered, goal, strict=True))


async def test_copies_killed_one_by_one_cost_no_request_its_answer(short_dir: Path) -> None:
    """Three copies under load, each killed in turn with kill -9: every request is answered, since none had
    got a word when its worker died; each copy is there again in the end.
    """
    model = fake("m", reply="whole", first_delay=0.05) | {"num_replicas": 3}
    answered = [0] * 6
    rounds = asyncio.Condition()
    over = asyncio.Event()

    async def caller(number: int) -> None:
        while not over.is_set():
            answer = await chat(session, daemon.url, "m", f"caller {number}")
            assert (answer.error, answer.text, answer.done) == (None, "whole", True)
            async with rounds:
                answered[number] += 1
                rounds.notify_all()

    async with (
        running(short_dir, config(model)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):

        def all_ready(status: dict[str, Any]) -> bool:
            return [copy["state"] for copy in status["replicas"]] == ["ready"] * 3

        await daemon.until_status("m", all_ready)
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(caller(number))
            await _killed_one_by_one(daemon, rounds, answered)
            over.set()
        status = await daemon.until_status("m", all_ready)
        assert status["restarts"] == 3


async def test_a_model_that_crashes_again_and_again_leaves_its_neighbour_alone(short_dir: Path) -> None:
    """While one model dies at every load, with growing pauses, streams of the one beside it are whole; the
    starts are few, and the crashing one says when it tries next.
    """
    crashing = fake("crashing", load_crash=True)
    async with running(short_dir, config(fake("talker", **SCRIPT), crashing)) as daemon, asyncio.timeout(180):
        pid = (await daemon.until("talker", "ready"))["pid"]
        async with talking(daemon.url, "talker"), watched(daemon.pid) as seen:
            status = await daemon.until_status(
                "crashing", lambda status: status["restarts"] >= 3 and status["state"] == "backoff"
            )
            assert "scripted crash while loading" in status["message"]
            assert "next try in" in status["message"]
        starts = (await daemon.model("crashing"))["restarts"] + 1
        assert len(seen.pids - {pid}) <= starts
        assert await daemon.pid_of("talker") == pid

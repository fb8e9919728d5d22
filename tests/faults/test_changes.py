"""Changes that meet a model at a bad moment: loading, swapping, draining, dying."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.harness.daemon import running
from tests.harness.models import fake
from tests.harness.sse import chat, opened
from tests.harness.talk import SCRIPT, talking
from tests.harness.workers import MIB, held, watched, workers_of

ON_DEMAND = {"load": "on_demand"}
TALKER = fake("talker", **SCRIPT)
ENDLESS = {"tokens": 10**6, "token_delay": 0.01}


def config(*models: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a configuration."""
    return {"allow_fake": True, "models": list(models), **more}


@pytest.mark.parametrize("script", [{"load_seconds": 600}, {"load_hang": True, "ignore_term": True}])
async def test_a_model_is_removed_while_it_loads(short_dir: Path, script: dict[str, Any]) -> None:
    """The load ends, who waits for it is told that it was removed, its process is gone when `ctl remove`
    returns, the name is unknown, and the model beside it notices nothing.
    """
    async with (
        running(short_dir, config(TALKER, fake("slow", **script) | ON_DEMAND)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        pid = (await daemon.until("talker", "ready"))["pid"]
        async with talking(daemon.url, "talker"):
            waiting = asyncio.ensure_future(chat(session, daemon.url, "slow"))
            await daemon.until("slow", "loading")
            said = await daemon.ctl("remove", "slow")
            assert said.code == 0, said
            assert [worker.pid for worker in workers_of(daemon.pid)] == [pid]
            answer = await waiting
            assert answer.error is not None
            assert "removed" in answer.error["message"]
            assert (await chat(session, daemon.url, "slow")).status == 404


async def test_a_model_is_reconfigured_while_its_load_is_under_way(short_dir: Path) -> None:
    """Room for one: B is loading in A's place for a request when a reconcile changes B and drops A. The
    request is answered, by the new B; there never are two.
    """
    memory, limit = 120 * MIB, {"memory": {"ram": 200 * MIB}}
    a = fake("a", memory=memory, reply="a") | ON_DEMAND
    slow = fake("b", memory=memory, reply="old", load_seconds=600) | ON_DEMAND
    quick = fake("b", memory=memory, reply="new") | ON_DEMAND
    async with (
        running(short_dir, config(a, slow, **limit)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        watched(daemon.pid) as seen,
    ):
        assert (await chat(session, daemon.url, "a")).text == "a"
        waiting = asyncio.ensure_future(chat(session, daemon.url, "b"))
        await daemon.until("b", "loading")
        file = daemon.write(config(quick), short_dir / "goal.yaml")
        said = await daemon.ctl("reconcile", str(file))
        assert said.code == 0, said
        answer = await waiting
        assert (answer.error, answer.text) == (None, "new")
        assert (await chat(session, daemon.url, "a")).status == 404
        assert seen.most == 1


async def test_a_victim_is_reconfigured_while_another_waits_for_its_memory(short_dir: Path) -> None:
    """Room for one: A is busy, B waits for it, and a reload changes A. A's stream is whole, and both B's
    request and one for the new A are answered.
    """
    memory, limit = 120 * MIB, {"memory": {"ram": 200 * MIB}}
    a = fake("a", memory=memory, **ENDLESS) | ON_DEMAND
    b = fake("b", memory=memory, reply="b") | ON_DEMAND
    new = fake("a", memory=memory, reply="new") | ON_DEMAND
    async with (
        running(short_dir, config(a, b, **limit)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        watched(daemon.pid) as seen,
    ):
        async with opened(session, daemon.url, "a", max_tokens=150) as stream:
            await stream.until_text()
            with held(await daemon.pid_of("a")):
                for_b = asyncio.ensure_future(chat(session, daemon.url, "b"))
                await daemon.until("b", "waiting")
                daemon.write(config(new, b, **limit))
                daemon.signal(signal.SIGHUP)
                await daemon.line("draining: replaced by its new configuration")
                for_a = asyncio.ensure_future(chat(session, daemon.url, "a"))
            answer = await stream.to_end()
            assert answer.text == "".join(f"tok{count} " for count in range(150))
            assert answer.done
        assert (await for_b).text == "b"
        assert (await for_a).text == "new"
        assert seen.most == 1


@pytest.mark.parametrize("strategy", ["blue_green", "stop_start"])
async def test_a_worker_is_killed_while_it_drains(short_dir: Path, strategy: str) -> None:
    """kill -9 of a replaced model's worker that finishes its requests: a stream that had words gets an error,
    a request that had none is answered by the new one, and the change is carried out.
    """
    old = fake("m", **ENDLESS, slots=8)
    async with (
        running(short_dir, config(old, drain_timeout=600)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        pid = (await daemon.until("m", "ready"))["pid"]
        async with opened(session, daemon.url, "m") as stream:
            await stream.until_text()
            daemon.write(config(fake("m", reply="new"), drain_timeout=600))
            changing = asyncio.ensure_future(daemon.ctl("reload", "--json", "--replace-strategy", strategy))
            await daemon.line("draining: replaced by its new configuration")
            psutil.Process(pid).kill()
            answer = await stream.to_end()
            assert answer.error is not None
            assert answer.error["code"] == "worker_died"
            assert not answer.done
            assert (await chat(session, daemon.url, "m")).text == "new"
            said = await changing
            assert said.code == 0, said
        assert [worker.pid for worker in workers_of(daemon.pid)] == [await daemon.pid_of("m")]


async def test_a_request_without_a_word_survives_the_death_of_a_draining_worker(short_dir: Path) -> None:
    """It was on the old model and had got nothing when the worker died: the new model answers it."""
    old = fake("m", first_delay=600)
    async with (
        running(short_dir, config(old, drain_timeout=600)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        pid = (await daemon.until("m", "ready"))["pid"]
        asking = asyncio.ensure_future(chat(session, daemon.url, "m"))
        await daemon.until_status("m", lambda status: status["in_flight"] == 1)
        daemon.write(config(fake("m", reply="new"), drain_timeout=600))
        daemon.signal(signal.SIGHUP)
        await daemon.line("draining: replaced by its new configuration")
        psutil.Process(pid).kill()
        answer = await asking
        assert (answer.error, answer.text, answer.done) == (None, "new", True)


async def test_a_change_goes_on_when_its_owner_is_killed(short_dir: Path) -> None:
    """kill -9 of `modeld ctl` half-way: the change is carried out all the same, and the next one after it."""
    file = short_dir / "more.yaml"
    async with running(short_dir, config(TALKER)) as daemon, asyncio.timeout(180):
        await daemon.until("talker", "ready")
        daemon.write(config(fake("slow", load_seconds=1, reply="slow")), file)
        owner = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "modeld",
            "ctl",
            "add",
            str(file),
            env={"MODELD_STATE_DIR": str(daemon.state_dir)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await daemon.until("slow", "loading")
        owner.kill()
        await owner.wait()
        daemon.write(config(fake("after")), file)
        assert (await daemon.ctl("add", str(file))).code == 0
        await daemon.until("slow", "ready")  # a change does not wait for the one before
        assert {
            model["name"]: model["state"] for model in (await daemon.admin("GET", "/status"))["models"]
        } == {
            "talker": "ready",
            "slow": "ready",
            "after": "ready",
        }

"""Several copies of one model: who answers, how many there are, and that changing the number stops nobody."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from tests.harness.daemon import running
from tests.harness.models import fake
from tests.harness.sse import chat, opened
from tests.harness.talk import SCRIPT, talking
from tests.harness.workers import MIB, workers_of

ENDLESS = {"tokens": 10**6, "token_delay": 0.01}


def config(*models: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a configuration."""
    return {"allow_fake": True, "models": list(models), **more}


def ready(count: int) -> Any:
    """Return a test of a status: whether so many replicas are there, and all are ready."""
    return lambda status: [copy["state"] for copy in status["replicas"]] == ["ready"] * count


async def test_requests_go_to_the_copy_with_the_least_to_do(short_dir: Path) -> None:
    """Three copies, three streams: one each. With `max_ongoing_requests: 1` a fourth waits, and goes in when
    one of the three leaves.
    """
    model = fake("m", **ENDLESS) | {"num_replicas": 3, "max_ongoing_requests": 1}
    async with (
        running(short_dir, config(model)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        AsyncExitStack() as streams,
    ):
        status = await daemon.until_status("m", ready(3))
        assert len({copy["pid"] for copy in status["replicas"]}) == 3
        readers = []
        for number in range(3):
            stream = opened(session, daemon.url, "m", f"prompt {number}")
            readers.append(await streams.enter_async_context(stream))
            await readers[-1].until_text()
        status = await daemon.model("m")
        assert [copy["in_flight"] for copy in status["replicas"]] == [1, 1, 1]
        asking = asyncio.ensure_future(chat(session, daemon.url, "m", max_tokens=3))
        await daemon.until_status("m", lambda status: status["queued"] == 1)
        readers[1].close()
        assert (await asking).text == "tok0 tok1 tok2 "
        metrics = await daemon.metrics()
        assert metrics['modeld_model_replicas{model="m",state="ready"}'] == 3
        assert metrics['modeld_queue_wait_seconds_count{model="m"}'] == 1


async def test_another_number_of_replicas_restarts_nobody(short_dir: Path) -> None:
    """From 1 to 3 and back to 1 by reload: it is an update in the plan, the first copy keeps its process, and
    streams are whole throughout.
    """
    async with running(short_dir, config(fake("m", **SCRIPT))) as daemon, asyncio.timeout(180):
        pid = (await daemon.until("m", "ready"))["pid"]
        async with talking(daemon.url, "m", callers=6):
            for count in (3, 1):
                daemon.write(config(fake("m", **SCRIPT) | {"num_replicas": count}))
                said = await daemon.ctl("reload", "--json")
                assert said.code == 0, said
                assert said.json["plan"]["updates"] == [{"name": "m", "keys": ["num_replicas"]}]
                status = await daemon.until_status("m", ready(count))
                assert status["replicas"][0]["pid"] == pid
        assert [worker.pid for worker in workers_of(daemon.pid)] == [pid]


async def test_copies_come_with_load_and_go_with_it(short_dir: Path) -> None:
    """From none: the first request brings one copy, more requests bring more up to the most, and without any
    the model goes back to none; the next request is answered all the same.
    """
    auto = {
        "min_replicas": 0,
        "max_replicas": 3,
        "target_ongoing_requests": 1,
        "upscale_delay_s": 0.1,
        "downscale_delay_s": 0.1,
    }
    model = fake("m", **ENDLESS) | {"autoscaling_config": auto}
    async with (
        running(short_dir, config(model)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        assert (await daemon.model("m"))["state"] == "stopped"
        assert workers_of(daemon.pid) == []
        async with AsyncExitStack() as streams:
            for number in range(5):
                stream = opened(session, daemon.url, "m", f"prompt {number}")
                await (await streams.enter_async_context(stream)).until_text()
            await daemon.until_status("m", ready(3))
        status = await daemon.until_status("m", lambda status: status["state"] == "stopped")
        assert status["cause"] == "scaled"
        assert workers_of(daemon.pid) == []
        assert (await chat(session, daemon.url, "m", max_tokens=2)).text == "tok0 tok1 "


async def test_copies_that_do_not_fit_wait_and_the_others_serve(short_dir: Path) -> None:
    """Room for two of three: the model is ready, the third copy says what it waits for and comes when memory
    is given back.
    """
    model = fake("m", memory=100 * MIB, tokens=2) | {"num_replicas": 3}
    other = fake("other", memory=100 * MIB, tokens=2) | {"priority": 1}
    limit = {"memory": {"ram": 440 * MIB}}
    async with (
        running(short_dir, config(other, model, **limit)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):

        def two(status: dict[str, Any]) -> bool:
            return sorted(copy["state"] for copy in status["replicas"]) == ["ready", "ready", "waiting"]

        await daemon.until("other", "ready")
        status = await daemon.until_status("m", two)
        assert status["state"] == "ready"
        [waiting] = [copy for copy in status["replicas"] if copy["state"] == "waiting"]
        assert "needs 128 MiB" in waiting["message"]
        assert (await chat(session, daemon.url, "m")).done
        assert (await daemon.ctl("unload", "other")).code == 0
        await daemon.until_status("m", ready(3))

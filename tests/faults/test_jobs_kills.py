"""kill -9 of the daemon in the middle of jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from tests.harness.daemon import running
from tests.harness.jobs import PREFIX, survives, told
from tests.harness.models import fake


async def test_every_item_of_a_batch_ends_once_and_in_order_however_often_the_daemon_dies(
    short_dir: Path,
) -> None:
    """kill -9 at random points: what was done stays as it was, to the byte, and the rest is done."""
    model = fake("m", slots=4, tokens=100, token_delay=0.005)
    await survives(short_dir, model, count=200, tokens=12, kills=3, slots=4, within=120.0)


async def test_what_was_submitted_is_there_after_a_kill(short_dir: Path) -> None:
    """A submission that was answered is stored: the next life does all of a hundred that were taken."""
    config = {"models": [fake("m", slots=4, tokens=2, load_seconds=1.0)], "allow_fake": True}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    ids: list[str] = []
    async with running(short_dir, config) as daemon, aiohttp.ClientSession() as session:

        async def keep_submitting() -> None:
            while True:
                async with session.post(f"{daemon.url}{PREFIX}/Chat", json=body) as response:
                    ids.append((await response.json())["job_id"])

        async def submit_until_dead() -> None:
            try:
                await keep_submitting()
            except (aiohttp.ClientError, OSError):
                return

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(submit_until_dead())
            async with asyncio.timeout(120):
                while len(ids) < 100:
                    await asyncio.sleep(0.001)
            daemon.process.kill()
            await daemon.process.wait()
    assert len(ids) >= 100
    async with running(short_dir, config) as daemon:
        for id in ids:
            assert (await told(daemon, id, 120.0))["status"] == "done"


async def test_a_stop_gives_jobs_back_and_does_not_wait_for_them(short_dir: Path) -> None:
    """SIGTERM with a batch at work that would take minutes: the daemon ends at once, and the batch goes on in
    the next life.
    """
    model = fake("m", slots=2, tokens=100_000, token_delay=0.01)
    slow = {"models": [model], "allow_fake": True, "drain_timeout": 600}
    async with running(short_dir, slow) as daemon, aiohttp.ClientSession() as session:
        item = {"messages": [{"role": "user", "content": "hi"}]}
        body = {"model": "m", "items": [item] * 6}
        async with session.post(f"{daemon.url}{PREFIX}/BatchChat", json=body) as response:
            id = (await response.json())["job_id"]
        async with asyncio.timeout(120):
            while (await daemon.model("m"))["in_flight"] < 2:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(120):  # a part of what open requests get
            assert await daemon.stop() == 0
    quick = {"models": [fake("m", slots=2, tokens=3)], "allow_fake": True}
    async with running(short_dir, quick) as daemon:
        answer = await told(daemon, id, 120.0)
        assert [len(one["message"]["content"].split()) for one in answer["result"]["responses"]] == [3] * 6

"""The daemon's end with responses under way: all that was acknowledged is there afterwards, and over."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import aiohttp

from modeld.responses.background import ORPHANED
from tests.harness.daemon import Daemon, running
from tests.harness.models import fake
from tests.harness.responses import check_response, check_stream, replay, stream
from tests.harness.responses_daemon import OVER, Body, Client, stored, text_of

MANY = 200

ENDLESS = fake("endless", tokens=100_000, token_delay=0.05)
SHORT = fake("short", tokens=20, token_delay=0.02)
WHOLE = "".join(f"tok{number} " for number in range(20))


def config(*models: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a configuration of scripted models."""
    return {"models": list(models), "allow_fake": True, **more}


async def test_sigterm_with_200_runs_leaves_none_unfinished(short_dir: Path) -> None:
    """SIGTERM, and no time to drain: each of 200 runs is stored as failed before the daemon is gone, with
    what it had said, and reads the same after a restart; a streamed one's log ends in that.
    """
    settings = config(ENDLESS, drain_timeout=0.1)
    async with running(short_dir, settings) as daemon, aiohttp.ClientSession() as session:
        await daemon.until("endless", "ready")
        client = Client(daemon, session)
        ids = await client.in_background(MANY - 1, "endless", store=True)
        seen = await stream(
            daemon.url,
            {"model": "endless", "input": "hi", "background": True, "store": True},
            lambda event: event["type"] == "response.queued",
        )
        ids.append(seen.events[0]["response"]["id"])
        await client.until(ids[0], "in_progress")
        assert await daemon.stop() == 0
    assert stored(short_dir, "SELECT status, count(*) FROM response GROUP BY status") == [("failed", MANY)]
    assert stored(short_dir, "SELECT count(*) FROM run") == [(0,)]
    async with running(short_dir, settings) as daemon, aiohttp.ClientSession() as session:
        for body in await Client(daemon, session).all(ids):
            check_response(body)
            assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
        again = await replay(daemon.url, ids[-1])
        assert again.events[: len(seen.events)] == seen.events
        assert again.whole()["id"] == ids[-1]


async def test_sigterm_with_time_to_drain_completes_what_was_at_work(short_dir: Path) -> None:
    """With a long drain, the runs that the model had begun end as completed with all their text, as does a
    stream that somebody reads; the others have failed.
    """
    settings = config(SHORT, drain_timeout=600)
    async with running(short_dir, settings) as daemon, aiohttp.ClientSession() as session:
        await daemon.until("short", "ready")
        client = Client(daemon, session)
        reading = asyncio.ensure_future(stream(daemon.url, {"model": "short", "input": "hi"}))
        ids = await client.in_background(MANY, "short", store=True)
        await client.until(ids[0], "in_progress", "completed")
        assert await daemon.stop() == 0
        final = check_stream((await reading).events)
    assert stored(short_dir, "SELECT count(*) FROM run") == [(0,)]
    async with running(short_dir, settings) as daemon, aiohttp.ClientSession() as session:
        client = Client(daemon, session)
        assert await client.get(final["id"]) == final
        bodies = await client.all(ids)
    assert text_of(final) == WHOLE
    for body in bodies:
        check_response(body)
        if body["status"] == "completed":
            assert text_of(body) == WHOLE
        else:
            assert body["status"] == "failed"
            assert body["error"]["code"] == "server_error"
    assert sum(body["status"] == "completed" for body in bodies) >= 16


async def test_sigkill_with_200_runs_reports_them_failed_at_the_next_start(short_dir: Path) -> None:
    """kill -9: at the next start all 200 become failed without anybody's reading them, in the words for a
    run whose daemon is gone; streams can be read to a last event; and cancelling them changes nothing.
    """
    settings = config(ENDLESS)
    async with running(short_dir, settings) as daemon, aiohttp.ClientSession() as session:
        await daemon.until("endless", "ready")
        client = Client(daemon, session)
        ids = await client.in_background(MANY - 1, "endless", store=True)
        seen = await stream(
            daemon.url,
            {"model": "endless", "input": "hi", "background": True},
            lambda event: event["type"] == "response.queued",
        )
        ids.append(seen.events[0]["response"]["id"])
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
    live = "SELECT count(*) FROM response WHERE status IN ('queued', 'in_progress')"
    assert stored(short_dir, live) == [(MANY,)]
    async with running(short_dir, settings) as daemon, aiohttp.ClientSession() as session:
        async with asyncio.timeout(180):
            while stored(short_dir, live) != [(0,)]:
                await asyncio.sleep(0.02)
        assert stored(short_dir, "SELECT count(*) FROM run") == [(0,)]
        client = Client(daemon, session)
        for body in await client.all(ids):
            check_response(body)
            assert body["status"] == "failed"
            assert body["error"] == {"code": "server_error", "message": ORPHANED}
        assert await client.ask("POST", f"responses/{ids[0]}/cancel") == (200, await client.get(ids[0]))
        again = await replay(daemon.url, ids[-1])
        assert again.events[: len(seen.events)] == seen.events
        assert again.done
        assert again.events[-1]["response"] == await client.get(ids[-1])


class Told:
    """What 20 clients were told until the daemon died: responses by id, and those that were only begun."""

    def __init__(self) -> None:
        self.ended: dict[str, Body] = {}
        self.begun: set[str] = set()
        self.enough = asyncio.Event()
        self._wanted = 0

    def expect(self, more: int) -> None:
        """Wait for so many more that are over."""
        self.enough.clear()
        self._wanted = len(self.ended) + more

    def end(self, body: Body) -> None:
        """Note a response that was acknowledged as over."""
        self.ended[body["id"]] = body
        if len(self.ended) >= self._wanted:
            self.enough.set()


async def _create_for_ever(daemon: Daemon, session: aiohttp.ClientSession, told: Told, number: int) -> None:
    """Create responses in a chain, in the three modes by turns, until the daemon is gone."""
    client, previous = Client(daemon, session), None
    try:
        for turn in range(10_000):
            body: Body = {"model": "quick", "input": f"{number}.{turn}", "previous_response_id": previous}
            mode = (number + turn) % 3
            if mode == 0:
                status, answer = await client.ask("POST", "responses", body)
                assert status == 200, answer
                told.end(answer)
                previous = answer["id"]
            elif mode == 1:
                seen = await stream(daemon.url, body)
                assert seen.status == 200, seen.body
                final = seen.events[-1]
                if "response" in final and final["type"] == "response.completed":
                    told.end(final["response"])
                    previous = final["response"]["id"]
            else:
                answer = await client.create(**{**body, "background": True, "store": True})
                told.begun.add(answer["id"])
                told.end(await client.until(answer["id"], *OVER))
                previous = answer["id"]
    except (aiohttp.ClientError, OSError, EOFError, ValueError):
        return  # the daemon is gone, in the middle of an answer or between two


async def test_kill_9_at_any_moment_loses_nothing_that_was_acknowledged(short_dir: Path) -> None:
    """20 clients create stored responses while the daemon is killed, again and again: whatever a client was
    told is over, is there after the restart with the same body, and whatever was begun is over.
    """
    settings = config(fake("quick", tokens=3, token_delay=0.002))
    told = Told()
    chance = random.Random(5)
    for kills in range(4):
        async with running(short_dir, settings) as daemon, aiohttp.ClientSession() as session:
            client = Client(daemon, session)
            assert await client.all(list(told.ended)) == list(told.ended.values())
            assert {body["status"] for body in await client.all(list(told.begun))} <= set(OVER)
            if kills == 3:
                break
            await daemon.until("quick", "ready")
            told.expect(chance.randrange(5, 60))
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(_create_for_ever(daemon, session, told, number))
                await told.enough.wait()
                daemon.signal(signal.SIGKILL)
            await daemon.ended()
        assert stored(short_dir, "PRAGMA integrity_check") == [("ok",)]
    assert len(told.ended) >= 15

"""Responses when an engine, a tool's server, the store or a client fails: each ends once, as it is stored."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.harness.daemon import Daemon, running
from tests.harness.mcp_server import Server, mcp_server
from tests.harness.models import fake
from tests.harness.responses import check_response, check_stream, replay, stream
from tests.harness.responses_daemon import OVER, Client, stored, text_of
from tests.harness.workers import held

ENDLESS = fake("endless", tokens=100_000, token_delay=0.02)
QUICK = fake("quick", tokens=3)
MIDDLING = fake("middling", tokens=25, token_delay=0.02)
DYING = fake("dying", tokens=100, crash_after=30, token_delay=0.02)
HANGING = fake("hanging", hang_after=2)
DEAF = fake("deaf", tokens=100_000, token_delay=0.02, ignore_cancel=True)
CALLER = fake(
    "caller",
    turns=[[{"call": {"name": "hang", "arguments": {"mark": "dead"}}}], [{"text": "So much for that."}]],
)


@asynccontextmanager
async def serving(folder: Path, *models: dict[str, Any], **more: Any) -> AsyncIterator[tuple[Daemon, Client]]:
    """Run a daemon with these scripted models."""
    config = {"models": list(models), "allow_fake": True, **more}
    async with running(folder, config) as daemon, aiohttp.ClientSession() as session:
        for entry in models:
            await daemon.until(entry["name"], "ready")
        yield daemon, Client(daemon, session)


def remote(server: Server) -> dict[str, Any]:
    """Return the tool that stands for an MCP server."""
    return {
        "type": "mcp",
        "server_label": "tools",
        "server_url": server.url,
        "require_approval": "never",
    }


async def test_an_engine_that_dies_fails_each_of_its_responses_once(short_dir: Path) -> None:
    """One crash under a stream, a plain request and two runs in the background: an error and
    response.failed, 502, two failed runs; what was streamed is what is stored; the next request is answered.
    """
    async with serving(short_dir, DYING) as (daemon, client):
        body = {"model": "dying", "input": "hi"}
        background = {**body, "background": True, "store": True}
        plain = await client.create("dying", background=True, store=True)
        followed, streamed, (status, answer) = await asyncio.gather(
            stream(daemon.url, background), stream(daemon.url, body), client.ask("POST", "responses", body)
        )
        assert (status, answer["error"]["code"]) == (502, "worker_died")
        kinds = [event["type"] for event in streamed.events]
        assert (kinds[-2:], streamed.done) == (["error", "response.failed"], True)
        ends = [streamed.events[-1]["response"], followed.whole(), await client.until(plain["id"], *OVER)]
        for end in ends:
            check_response(end)
            assert (end["status"], end["error"]["code"]) == ("failed", "server_error")
            assert end["output"][0]["status"] == "incomplete"
            assert text_of(end).startswith("tok0 tok1 ")
            assert await client.get(end["id"]) == end
        await daemon.until("dying", "ready")
        short = await client.create("dying", max_output_tokens=4)
        assert (short["status"], text_of(short)) == ("incomplete", "tok0 tok1 tok2 tok3 ")


async def test_cancelling_an_engine_that_hangs(short_dir: Path) -> None:
    """A run whose engine says no more, or does not listen, is cancelled at once by two callers who are told
    the same; a third, later, changes nothing; the stream ends in that.
    """
    async with serving(short_dir, HANGING, DEAF, drain_timeout=0.1) as (daemon, client):
        for name in ("hanging", "deaf"):
            body = {"model": name, "input": "hi", "background": True, "store": True}
            seen = await stream(daemon.url, body, lambda event: "delta" in event)
            id = seen.events[0]["response"]["id"]
            both = await asyncio.gather(*(client.ask("POST", f"responses/{id}/cancel") for _ in range(2)))
            third = await client.ask("POST", f"responses/{id}/cancel")
            assert both == [third, third]
            status, cancelled = third
            check_response(cancelled)
            assert (status, cancelled["status"]) == (200, "cancelled")
            assert text_of(cancelled).startswith("tok0 ")
            again = await replay(daemon.url, id)
            assert again.events[: len(seen.events)] == seen.events
            assert again.whole() == cancelled == await client.get(id)
        await daemon.until_idle("hanging")


async def test_a_tool_server_that_dies_in_a_call_is_told_to_the_model(short_dir: Path) -> None:
    """The MCP server is killed while two responses wait for its tool, one of them in the background: the
    calls have failed, the model goes on, both are completed and stored as sent.
    """
    async with mcp_server() as server, serving(short_dir, CALLER) as (daemon, client):
        body = {"model": "caller", "input": "hi", "tools": [remote(server)]}
        run = await client.create("caller", tools=[remote(server)], background=True, store=True)
        reading = asyncio.ensure_future(stream(daemon.url, body))
        async with asyncio.timeout(180):
            while [call["event"] for call in server.calls()] != ["begin"] * 2:
                await asyncio.sleep(0.02)
        server.process.kill()
        streamed = (await reading).whole()
        for end in (streamed, await client.until(run["id"], *OVER)):
            check_response(end)
            listed, call, _ = end["output"]
            assert (listed["type"], call["type"], call["status"]) == ("mcp_list_tools", "mcp_call", "failed")
            assert call["error"]["type"] in ("http_error", "mcp_protocol_error")
            assert (end["status"], text_of(end)) == ("completed", "So much for that.")
            assert await client.get(end["id"]) == end


async def test_a_client_that_leaves_at_response_created(short_dir: Path) -> None:
    """In the foreground the model stops and nothing is stored; in the background the run ends all the same,
    and its stream can be read whole.
    """
    async with serving(short_dir, ENDLESS, MIDDLING) as (daemon, client):
        left = await stream(daemon.url, {"model": "endless", "input": "marmalade"}, lambda event: True)
        await daemon.until_idle("endless")
        assert (await client.ask("GET", f"responses/{left.events[0]['response']['id']}"))[0] == 404
        assert stored(short_dir, "SELECT count(*) FROM item") == [(0,)]
        body = {"model": "middling", "input": "hi", "background": True}
        left = await stream(daemon.url, body, lambda event: True)
        id = left.events[0]["response"]["id"]
        end = await client.until(id, *OVER)
        assert (end["status"], len(text_of(end).split())) == ("completed", 25)
        assert (await replay(daemon.url, id)).whole() == end
        assert await client.ask("POST", f"responses/{id}/cancel") == (200, end)


async def test_deleting_while_it_runs_and_the_parent_of_what_runs(short_dir: Path) -> None:
    """A run that is deleted stops and leaves nothing; a run whose parent is deleted ends as it would have."""
    async with serving(short_dir, ENDLESS, MIDDLING, QUICK) as (daemon, client):
        parent = await client.create("quick", "first")
        child = await client.create(
            "middling", "second", background=True, store=True, previous_response_id=parent["id"]
        )
        gone = await client.create("endless", "marmalade", background=True, store=True)
        await client.until(gone["id"], "in_progress")
        for id in (parent["id"], gone["id"]):
            assert await client.ask("DELETE", f"responses/{id}") == (
                200,
                {"id": id, "object": "response", "deleted": True},
            )
            for path in (f"responses/{id}", f"responses/{id}/input_items"):
                assert (await client.ask("GET", path))[0] == 404
        await daemon.until_idle("endless")
        assert (await client.until(child["id"], *OVER))["status"] == "completed"
        grandchild = await client.create("quick", "third", previous_response_id=child["id"])
        items = "SELECT count(*) FROM link JOIN item ON item.key = link.item"
        assert stored(short_dir, f"{items} WHERE data LIKE '%marmalade%'") == [(0,)]
        assert stored(short_dir, items) == [(6,)]  # three questions and three answers, each of them once
        assert await client.get(grandchild["id"]) == grandchild


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a running process are Linux's")
async def test_a_store_that_cannot_grow_refuses_and_recovers(short_dir: Path) -> None:
    """No file of the daemon may grow any more: what cannot be stored is not sent as completed, a run in the
    background waits and is completed once there is room; nothing is half there.
    """
    async with serving(short_dir, QUICK, MIDDLING) as (daemon, client):
        before = await client.create("quick", "first")
        process = psutil.Process(daemon.pid)
        was = process.rlimit(psutil.RLIMIT_FSIZE)
        with held(await daemon.pid_of("middling")):
            run = await client.create("middling", background=True, store=True)
            await daemon.until_status("middling", lambda status: status["in_flight"] == 1)
            wal = daemon.state_dir / "modeld.sqlite3-wal"
            process.rlimit(psutil.RLIMIT_FSIZE, (wal.stat().st_size, was[1]))
        body = {"model": "quick", "input": "much" * 10_000}
        status, answer = await client.ask("POST", "responses", body)
        assert (status, answer["error"]["type"]) == (503, "server_error")
        failed = (await stream(daemon.url, body)).whole()
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert (await client.ask("GET", f"responses/{failed['id']}"))[0] == 404
        assert (await client.ask("POST", "responses", {**body, "background": True}))[0] == 503
        assert (await client.create("quick", store=False))["status"] == "completed"
        assert await client.get(before["id"]) == before
        await daemon.line("a response waits to be stored")
        assert (await client.get(run["id"]))["status"] == "in_progress"
        process.rlimit(psutil.RLIMIT_FSIZE, was)
        assert (await client.until(run["id"], *OVER))["status"] == "completed"
        after = await client.create("quick", body["input"], previous_response_id=before["id"])
        assert await client.get(after["id"]) == after
        assert stored(short_dir, "SELECT count(*) FROM response") == [(3,)]
        assert stored(short_dir, "PRAGMA integrity_check") == [("ok",)]


async def test_a_store_that_another_process_holds(short_dir: Path) -> None:
    """Held for longer than the store waits: 503 as a whole, response.failed on a stream, and a run in the
    background is completed when the file is free again; nothing that was told is missing.
    """
    async with serving(short_dir, QUICK, MIDDLING) as (daemon, client):
        run = await client.create("middling", background=True, store=True)
        path = short_dir / "state" / "modeld.sqlite3"
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asked = {"model": "quick", "input": "hi"}
            status, answer = await client.ask("POST", "responses", asked)
            assert (status, answer["error"]["type"]) == (503, "server_error")
            assert "held the file" in answer["error"]["message"]
            other.execute("ROLLBACK")
        end = await client.until(run["id"], *OVER)
        assert (end["status"], len(text_of(end).split())) == ("completed", 25)
        final = check_stream((await stream(daemon.url, asked)).events)
        assert await client.get(final["id"]) == final
        assert stored(short_dir, "SELECT count(*) FROM run") == [(0,)]

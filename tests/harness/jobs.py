"""A batch of chats that must end once and in order, whatever happens to the daemon meanwhile."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp

from tests.harness.daemon import Daemon, running

PREFIX = "/mass.llama-cpp.v1"
LENGTHS = 7
"""Prompts come in so many lengths, so that an answer tells whose it is."""


def items(count: int, tokens: int) -> list[dict[str, Any]]:
    """Return a batch's items: number N has N % LENGTHS words more, and asks for 1 + N % `tokens` tokens."""
    return [
        {
            "messages": [{"role": "user", "content": "Go on:" + " one" * (at % LENGTHS)}],
            "sampling": {"max_tokens": 1 + at % tokens, "temperature": 0},
        }
        for at in range(count)
    ]


async def submit(daemon: Daemon, body: dict[str, Any]) -> str:
    """Submit a batch of chats and return its id."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{daemon.url}{PREFIX}/BatchChat", json=body) as response,
    ):
        answer = await response.json()
        assert response.status == 200, answer
        return str(answer["job_id"])


async def told(daemon: Daemon, id: str, within: float) -> dict[str, Any]:
    """Wait for a job's end and return what is told of it."""
    async with asyncio.timeout(within), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{daemon.url}{PREFIX}/Jobs/{id}?wait=1") as response:
                body: dict[str, Any] = await response.json()
                if response.status == 200:
                    return body


async def ended(daemon: Daemon, id: str) -> int:
    """Return how many items of a job have ended."""
    job = await daemon.admin("GET", f"/jobs/{id}")
    return int(job.get("done", 0)) + int(job.get("failed", 0))


def stored(folder: Path) -> dict[int, tuple[int, bytes]]:
    """Return what the store of a dead daemon holds: by place, the attempts and the result of what is done."""
    with closing(sqlite3.connect(folder / "state" / "modeld.sqlite3")) as connection:
        rows = connection.execute("SELECT place, attempts, result FROM job_item WHERE state = 2").fetchall()
    return {place: (attempts, result) for place, attempts, result in rows}


async def survives(
    folder: Path, model: dict[str, Any], *, count: int, tokens: int, kills: int, slots: int, within: float
) -> None:
    """Kill a daemon so many times at random points of a batch, and check what it told in the end.

    Each life gets on by several items for each slot, so that none is at work at MOST_ATTEMPTS deaths.
    """
    config = {"models": [model], "allow_fake": True}
    chance = random.Random(7)
    id, before = "", dict[int, tuple[int, bytes]]()
    for life in range(kills):
        async with running(folder, config) as daemon:
            if not id:
                id = await submit(daemon, {"model": model["name"], "items": items(count, tokens)})
            enough = len(before) + 3 * slots + chance.randint(1, max(count // kills - 4 * slots, 1))
            async with asyncio.timeout(within):
                while await ended(daemon, id) < min(enough, count - slots):
                    await asyncio.sleep(0.005)
            await asyncio.sleep(chance.random() * 0.05)  # anywhere within an item
            daemon.process.kill()
            await daemon.process.wait()
        after = stored(folder)
        assert len(after) > len(before), f"life {life} got nowhere"
        assert before.items() <= after.items(), "what was done has been done again"
        before = after
    async with running(folder, config) as daemon:
        body = await told(daemon, id, within)
    assert before.items() <= stored(folder).items(), "what was done has been done again"
    assert body["status"] == "done", body
    responses = body["result"]["responses"]
    assert [response["id"] for response in responses] == [f"{id}-{at}" for at in range(count)]
    assert all(response["message"]["role"] == "assistant" for response in responses)
    for at, response in enumerate(responses):
        assert response["finish_reason"] in ("length", "stop")
        written = response["usage"]["completion_tokens"]
        assert written == 1 + at % tokens or (
            response["finish_reason"] == "stop" and written <= 1 + at % tokens
        )
    read = [response["usage"]["prompt_tokens"] for response in responses]
    lengths = read[:LENGTHS]
    assert lengths == sorted(set(lengths))
    assert read == [lengths[at % LENGTHS] for at in range(count)]

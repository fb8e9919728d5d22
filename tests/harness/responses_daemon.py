"""Many clients of a daemon's Responses API at once, and what each of them was told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp

from tests.harness.daemon import Daemon

Body = dict[str, Any]

OVER = ("completed", "failed", "cancelled", "incomplete")
PATIENCE_S = 120.0


class Client:
    """Speaks JSON with a daemon."""

    def __init__(self, daemon: Daemon, session: aiohttp.ClientSession) -> None:
        self._daemon = daemon
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Body]:
        """Send a request; return its status and the decoded answer."""
        async with self._session.request(method, f"{self._daemon.url}/v1/{path}", json=body) as response:
            return response.status, await response.json()

    async def create(self, model: str, input: Any = "hi", **fields: Any) -> Body:
        """Make a response that must come to be."""
        status, body = await self.ask("POST", "responses", {"model": model, "input": input, **fields})
        assert status == 200, body
        return body

    async def get(self, id: str) -> Body:
        """Return a response that must be there."""
        status, body = await self.ask("GET", f"responses/{id}")
        assert status == 200, body
        return body

    async def until(self, id: str, *states: str) -> Body:
        """Poll a response until it is in one of these states."""
        async with asyncio.timeout(PATIENCE_S):
            while (body := await self.get(id))["status"] not in states:
                await asyncio.sleep(0.02)
        return body

    async def in_background(self, count: int, model: str, **fields: Any) -> list[str]:
        """Begin runs in the background at once, and return their ids."""
        made = await asyncio.gather(
            *(self.create(model, f"run {number}", background=True, **fields) for number in range(count))
        )
        assert {body["status"] for body in made} == {"queued"}
        return [body["id"] for body in made]

    async def all(self, ids: Sequence[str]) -> list[Body]:
        """Return responses that must all be there."""
        return await asyncio.gather(*map(self.get, ids))


def stored(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query on the store of a daemon that may be running."""
    with closing(sqlite3.connect(folder / "state" / "modeld.sqlite3", timeout=30)) as connection:
        return list(connection.execute(query))


def text_of(body: Body) -> str:
    """Return what a response's messages say."""
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
    )

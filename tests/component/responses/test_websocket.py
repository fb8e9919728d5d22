"""/v1/responses as a WebSocket: real sockets, scripted models, a real store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType

from tests.component.responses.served import Body, Served, served

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class Client:
    """A client of one socket."""

    def __init__(self, ws: ClientWebSocketResponse) -> None:
        self.ws = ws

    async def send(self, frame: Any) -> None:
        await self.ws.send_str(frame if isinstance(frame, str) else json.dumps(frame))

    async def create(self, input: Any = "hi", **fields: Any) -> None:
        await self.send({"type": "response.create", "model": "tiny", "input": input, **fields})

    async def event(self) -> Body:
        message = await self.ws.receive(timeout=10)
        assert message.type is WSMsgType.TEXT, message
        found: Body = json.loads(message.data)
        return found

    async def turn(self, input: Any = "hi", **fields: Any) -> list[Body]:
        """Ask for a response; return its events, or the one error."""
        await self.create(input, **fields)
        return await self.until_over()

    async def until_over(self) -> list[Body]:
        events = [await self.event()]
        while events[-1]["type"] not in TERMINAL and not (len(events) == 1 and events[0]["type"] == "error"):
            events.append(await self.event())
        return events

    async def whole(self, input: Any = "hi", **fields: Any) -> Body:
        events = await self.turn(input, **fields)
        assert [event["sequence_number"] for event in events] == list(range(len(events))), events
        assert events[-1]["type"] == "response.completed", events[-1]
        found: Body = events[-1]["response"]
        return found

    async def refused(self, input: Any = "hi", **fields: Any) -> Body:
        [error] = await self.turn(input, **fields)
        assert error["type"] == "error", error
        return error


@asynccontextmanager
async def connected(api: Served, path: str = "/v1/responses", **headers: str) -> AsyncIterator[Client]:
    async with api.http.ws_connect(api.url + path, headers=headers, max_msg_size=0) as ws:
        yield Client(ws)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as started:
        yield started


async def test_a_response(api: Served) -> None:
    """A create is answered by the events of its response as bare text frames, and it can be fetched then."""
    async with connected(api) as client:
        events = await client.turn("hi")
    assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
    assert not any("stream_id" in event for event in events)
    status, stored = await api.ask("GET", f"/v1/responses/{events[-1]['response']['id']}")
    assert status == 200
    assert stored == events[-1]["response"]

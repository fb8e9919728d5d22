"""Clients of the Responses API's socket, and models whose answers a test feeds by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientWebSocketResponse, WSMsgType

from modeld.protocol.tasks import Finish, Task, Text, Usage
from modeld.responses.websocket.routes import OPEN
from tests.component.responses.served import Body, Served
from tests.fakes.pool import Answer, FakePool, FakeStream

PATH = "/v1/responses"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
PATIENCE_S = 60.0


class Client:
    """A client of one socket."""

    def __init__(self, ws: ClientWebSocketResponse) -> None:
        self.ws = ws

    async def send(self, frame: Any) -> None:
        """Send a frame: a text as it is, anything else as JSON."""
        await self.ws.send_str(frame if isinstance(frame, str) else json.dumps(frame))

    async def create(self, input: Any = "hi", **fields: Any) -> None:
        """Ask for a response."""
        await self.send({"type": "response.create", "model": "tiny", "input": input, **fields})

    async def event(self) -> Body:
        """Return the next frame, which must be a text."""
        message = await self.ws.receive(timeout=PATIENCE_S)
        assert message.type is WSMsgType.TEXT, message
        found: Body = json.loads(message.data)
        return found

    async def turn(self, input: Any = "hi", **fields: Any) -> list[Body]:
        """Ask for a response; return its events, or the one frame that refuses it."""
        await self.create(input, **fields)
        return await self.until_over()

    async def until_over(self) -> list[Body]:
        """Return the frames up to a terminal event, or the one frame that refuses."""
        events = [await self.event()]
        while events[-1]["type"] not in TERMINAL and not (len(events) == 1 and events[0]["type"] == "error"):
            events.append(await self.event())
        return events

    async def whole(self, input: Any = "hi", **fields: Any) -> Body:
        """Ask for a response, which must be completed, and return it."""
        events = await self.turn(input, **fields)
        assert [event["sequence_number"] for event in events] == list(range(len(events))), events
        assert events[-1]["type"] == "response.completed", events[-1]
        found: Body = events[-1]["response"]
        return found

    async def refused(self, input: Any = "hi", **fields: Any) -> Body:
        """Ask for a response, which must be refused, and return the frame that says so."""
        [error] = await self.turn(input, **fields)
        assert error["type"] == "error", error
        return error

    async def closed(self) -> int:
        """Wait until the server closes; return its code."""
        message = await self.ws.receive(timeout=PATIENCE_S)
        assert message.type is WSMsgType.CLOSE, message
        code: int = message.data
        return code


@asynccontextmanager
async def connected(api: Served, path: str = PATH, **headers: str) -> AsyncIterator[Client]:
    """Open a socket."""
    async with api.http.ws_connect(api.url + path, headers=headers, max_msg_size=0) as ws:
        yield Client(ws)


class Fed(FakePool):
    """A pool whose calls say nothing until they are fed."""

    def __init__(self) -> None:
        super().__init__(answer=lambda model, task: [])

    async def stream(self, at: int) -> FakeStream:
        """Return the call of that number once it is there and waits for more."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.streams) <= at:
                self.opened.clear()
                await self.opened.wait()
            await self.streams[at].waiting.wait()
        return self.streams[at]

    async def finish(self, at: int) -> None:
        """Have a call answer and end."""
        (await self.stream(at)).feed(*answer("ok"))


def answer(text: str) -> list[Answer]:
    """Return the script of an answer in one piece."""
    return [[Text(text)], [Finish("stop")], [Usage(prompt_tokens=5, completion_tokens=2)], None]


def scripted(*scripts: Sequence[Answer] | Exception) -> FakePool:
    """Return a pool whose calls play these scripts, the last one for ever."""
    left = list(scripts)

    def play(model: str, task: Task) -> Any:
        script = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(script, Exception):
            raise script
        return list(script)

    return FakePool(answer=play)


def told(event: Body) -> tuple[int, str, str | None]:
    """Return status, code and param of a frame that refuses."""
    return event["status"], event["error"]["code"], event["error"]["param"]


async def all_gone(api: Served) -> None:
    """Wait until the connections that are open have ended."""
    async with asyncio.timeout(PATIENCE_S):
        opened = api.runner.app[OPEN]
        for connection in tuple(opened):
            await connection.gone.wait()

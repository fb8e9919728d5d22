"""A client of the room as `served` runs it, which asserts what every answer must be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse, ClientSession

from modeld.clock import Clock, SystemClock
from modeld.gateway.egress import Egress, Policy
from modeld.protocol.tasks import ChatTask, CountTask, Event, Finish, Task, Text, ToolCallDelta, Usage
from modeld.responses.background import Background
from modeld.responses.context import Context
from modeld.responses.mcp.servers import policy as mcp_policy
from modeld.responses.mcp.session import McpLimits
from modeld.store.db import Database
from tests.component.responses.served import served
from tests.fakes.pool import Answer, FakePool, said

Body = dict[str, Any]

ANOTHER = "another-key"
KEYS = ("a-key", ANOTHER)
"""Of two callers; the first is who asks when a test does not say."""


class WallClock:
    """The machine's clocks, but for a wall clock that a test can set."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.offset = 0.0

    def monotonic(self) -> float:
        """Return seconds that go on whatever the wall clock does."""
        return self._system.monotonic()

    def time(self) -> float:
        """Return the seconds since the epoch that the wall clock shows."""
        return self._system.time() + self.offset


@dataclass
class Api:
    """A daemon's worth of the API, on a loopback port."""

    url: str
    http: ClientSession
    pool: FakePool
    context: Context
    background: Background
    database: Database
    key: str | None

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **options: Any
    ) -> tuple[int, Any]:
        """Send a request; return its status and the decoded JSON answer."""
        response, data = await self.answer(method, path, body, key=key, **options)
        return response.status, data

    async def answer(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **options: Any
    ) -> tuple[ClientResponse, Any]:
        """Do the same, and return the whole response."""
        if body is not None:
            options["json"] = body
        async with self.http.request(
            method, f"{self.url}/v1/{path}", headers=self.headers(key), **options
        ) as response:
            raw = await response.read()
            assert response.content_type == "application/json", (response.status, raw)
            return response, json.loads(raw)

    def headers(self, key: str | None = None) -> dict[str, str]:
        """Return what says who asks."""
        key = key or self.key
        return {"authorization": f"Bearer {key}"} if key else {}

    async def create(self, input: Any = "hi", *, key: str | None = None, **fields: Any) -> Body:
        """Make a response that must come to be, and return it."""
        status, body = await self.ask(
            "POST", "responses", {"model": "tiny", "input": input, **fields}, key=key
        )
        assert status == 200, body
        found: Body = body
        return found

    async def refused(self, status: int = 400, **fields: Any) -> Body:
        """Ask for a response that must be refused, as a whole, as a stream, and in the background."""
        errors = []
        for mode in ({}, {"stream": True}, {"background": True}):
            body = {"model": "tiny", "input": "hi", **mode, **fields}
            found, answer = await self.ask("POST", "responses", body)
            assert found == status, answer
            errors.append(error_of(answer))
        assert errors[0] == errors[1] == errors[2]
        return errors[0]

    async def events(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        enough: Callable[[Body], bool] = lambda event: False,
    ) -> list[Body]:
        """Read an event stream to its [DONE], or up to an event that is enough and leave then."""
        found: list[Body] = []
        async with self.http.request(
            method, f"{self.url}/v1/{path}", json=body, headers=self.headers(key)
        ) as response:
            assert response.status == 200, await response.read()
            assert response.content_type == "text/event-stream"
            rest = b""
            async for data in response.content.iter_any():
                *parts, rest = (rest + data).split(b"\n\n")
                for part in parts:
                    if part.startswith(b":"):
                        found.append({"type": "comment"})
                    elif part == b"data: [DONE]":
                        return found
                    else:
                        name, _, text = part.partition(b"\ndata: ")
                        event = json.loads(text)
                        assert name == b"event: " + event["type"].encode()
                        found.append(event)
                        if enough(event):
                            response.close()
                            return found
            raise AssertionError(f"the stream ended without [DONE]: {found}")

    async def stream(self, input: Any = "hi", **fields: Any) -> list[Body]:
        """Make a response as a stream, and return its events."""
        return await self.events(
            "POST", "responses", {"model": "tiny", "input": input, "stream": True, **fields}
        )

    async def replay(self, id: str, after: int | None = None) -> list[Body]:
        """Read the stream of a run in the background again."""
        cursor = "" if after is None else f"&starting_after={after}"
        return await self.events("GET", f"responses/{id}?stream=true{cursor}")

    async def get(self, id: str) -> Body:
        """Return a response that must be there."""
        status, body = await self.ask("GET", f"responses/{id}")
        assert status == 200, body
        found: Body = body
        return found

    async def over(self, id: str) -> Body:
        """Wait for a run in the background to end, and return its response."""
        record = self.background._records.get(id)
        if record is not None:
            await record.over.wait()
        body = await self.get(id)
        assert body["status"] not in ("queued", "in_progress")
        return body

    async def missing(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Body:
        """Ask for what must not be there."""
        status, answer = await self.ask(method, path, body, key=key)
        assert status == 404, answer
        return error_of(answer)

    def task(self, at: int = -1) -> ChatTask:
        """Return the task of a call."""
        task = self.pool.calls[at].task
        assert isinstance(task, ChatTask)
        return task

    async def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        ((count,),) = await self.database.fetch(f"SELECT count(*) FROM {table}")
        return int(count)


def error_of(answer: Any) -> Body:
    """Return the error of an answer, which must be OpenAI's envelope with all four keys."""
    assert set(answer) == {"error"}, answer
    error: Body = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


@asynccontextmanager
async def serving(
    folder: Path,
    pool: FakePool | None = None,
    *,
    clock: Clock | None = None,
    keep_s: float | None = 30 * 86400.0,
    replay_s: float = 3600.0,
    most_background: int = 1000,
    mcp: McpLimits | None = None,
    hosts: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Api]:
    """Serve the API with its store in `folder`; coming back with the same folder is a later life."""
    keys, where = settings.get("api_keys", ()), mcp_policy(hosts)
    context = {
        "pictures": Egress(Policy("public", ())),
        "mcp": Egress(where),
        "mcp_policy": where,
        "mcp_limits": mcp or McpLimits(),
        "keep_s": keep_s,
        "replay_s": replay_s,
        "most_background": most_background,
    }
    async with served(folder, pool, clock=clock, context=context, **settings) as room:
        key = keys[0] if keys else None
        yield Api(room.url, room.http, room.pool, room.context, room.background, room.database, key)


def calls(*named: tuple[str, Mapping[str, Any] | str]) -> list[Answer]:
    """Return the script of a turn that calls tools: (name, arguments)."""
    events: list[Event] = []
    for at, (name, arguments) in enumerate(named):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        events.append(ToolCallDelta(at, text, f"call_{at}", name))
    return [events, [Finish("tool_calls")], [Usage(10, 3)], None]


def turns(*scripts: list[Answer]) -> Callable[[str, Task], list[Answer]]:
    """Return what a pool answers: one script after the other, the last one again and again."""
    left = list(scripts)

    def answer(model: str, task: Task) -> list[Answer]:
        if isinstance(task, CountTask):
            return [[Usage(words(task.chat), 0)], None]
        return list(left.pop(0) if len(left) > 1 else left[0])

    return answer


def words(task: ChatTask) -> int:
    """Return a prompt's words, which are this pool's tokens."""
    return sum(len(message.content.split()) for message in task.messages if isinstance(message.content, str))


def hanging(*texts: str) -> list[Answer]:
    """Return the script of an answer that begins with these pieces and goes no further by itself."""
    return [[Text(text)] for text in texts]


__all__ = ["Api", "WallClock", "calls", "error_of", "hanging", "said", "serving", "turns"]

"""Whatever a server answers, callers get a result or an error of the three kinds, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from modeld.errors import UpstreamFailed
from modeld.responses.mcp.session import CallResult
from tests.component.responses.mcp.conftest import Opened
from tests.fixtures.openai_schema.check import check

KINDS = ["application/json", "text/event-stream", "text/html", "", "application/json; charset=latin-1", "x"]
STATUSES = [200, 200, 200, 200, 201, 202, 204, 304, 307, 400, 401, 403, 404, 405, 429, 500, 503]


def anything(chance: random.Random, depth: int = 3) -> Any:
    """Return some JSON, with words of MCP's in it."""
    words = [
        "tools",
        "content",
        "type",
        "text",
        "result",
        "error",
        "code",
        "name",
        "inputSchema",
        "",
        "\u00e9",
    ]
    made: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.random() < 0.5,
        lambda: chance.choice([0, 1, -32601, 2**70, 1.5]),
        lambda: chance.choice(words),
        lambda: [anything(chance, depth - 1) for _ in range(chance.randrange(3))],
        lambda: {chance.choice(words): anything(chance, depth - 1) for _ in range(chance.randrange(4))},
    ]
    return chance.choice(made if depth else made[:4])()


def body(chance: random.Random, message: dict[str, Any]) -> bytes:
    """Return an answer to a message: right, nearly right, or anything."""
    id, method = message.get("id"), message.get("method")
    right: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "serverInfo": {"name": "x", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "f", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "fine"}]},
    }
    result = right.get(str(method), {}) if chance.random() < 0.7 else anything(chance)
    if isinstance(result, dict) and chance.random() < 0.2:
        result = {**result, chance.choice(["tools", "content", "nextCursor", "isError"]): anything(chance)}
    answer: Any = {"jsonrpc": "2.0", "id": id, "result": result}
    if chance.random() < 0.15:
        answer = {"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}
    if chance.random() < 0.15:
        answer[chance.choice(list(answer))] = anything(chance)
    if chance.random() < 0.05:
        answer = anything(chance)
    text = json.dumps(answer).encode()
    return text[: chance.randrange(len(text))] if chance.random() < 0.05 else text


@asynccontextmanager
async def answering(chance: random.Random, good: float) -> AsyncIterator[str]:
    """Run a server that answers by chance, a share of `good` with the right status and type; give its URL."""

    async def answer(request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.read() or b"{}")
        if "id" not in message and chance.random() < good:
            return web.Response(status=202)
        well = chance.random() < good
        status = 200 if well else chance.choice(STATUSES)
        kind = chance.choice(KINDS[:2] if well else KINDS)
        content = body(chance, message)
        if kind == KINDS[1]:
            content = b"event: message\ndata: " + content + b"\n\n" * (chance.random() < 0.9)
        headers = {"Content-Type": kind}
        if status == 307:
            headers["Location"] = chance.choice(["/mcp", "http://169.254.169.254/", ":", "//", "\u00e9"])
        if not well and chance.random() < 0.1:
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=status, body=content, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("good", [0.0, 0.8, 0.97])
async def test_any_answer(opened: Opened, good: float) -> None:
    """Lists raise UpstreamFailed or return tools, calls return; all of it valid by OpenAI's schema."""
    chance = random.Random(int(good * 100))
    outcomes = set()
    async with answering(chance, good) as url:
        before = asyncio.all_tasks()
        for _ in range(25):
            async with opened(url, limits={"list_s": 20, "call_s": 20, "close_s": 5}) as box:
                item: dict[str, Any] = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "x"}
                try:
                    check("OutputItem", {**item, "tools": await box.list("x")})
                    outcomes.add("listed")
                except UpstreamFailed as error:
                    outcomes.add(error.message[:48])
                item = {
                    "type": "mcp_call",
                    "id": "mcp_1",
                    "server_label": "x",
                    "name": "f",
                    "arguments": "{}",
                }
                for result in await asyncio.gather(*(box.call("x", "f", "{}") for _ in range(3))):
                    assert isinstance(result, CallResult)
                    assert (result.output is None) is not (result.error is None)
                    check("OutputItem", {**item, "output": result.output, "error": result.error})
                    outcomes.add("called" if result.error is None else result.error["type"])
            # Connections of the server's own that end a moment later.
            async with asyncio.timeout(60):
                while {task for task in asyncio.all_tasks() - before if "mcp" in repr(task)}:
                    await asyncio.sleep(0)
    assert "Error retrieving tool list from MCP server: 'x'." in outcomes
    assert ({"listed", "called"} <= outcomes) is (good > 0.5)

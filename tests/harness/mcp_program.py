"""The program behind mcp_server.py: `python -P mcp_program.py CALLS` writes its port, and calls to the file.

At /mcp a real server where all is well, at /json the same with plain JSON, at /legacy as it was before 2026,
at /auth for those with the token "good"; /stubborn does not let go of sessions. The rest misbehaves.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import EmbeddedResource, ImageContent, TextContent, TextResourceContents, ToolAnnotations
from pydantic import BaseModel, Field

BIG = 2_000_000
"""Characters that the tool `big` answers."""

ENOUGH = 5_000
"""Pieces of 10 kB of an answer that has no end: more than any client should read."""


class Answer(BaseModel):
    yes: bool


Scope: TypeAlias = Any
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]

LEGACY = "2025-06-18"


def _note(**line: Any) -> None:
    with Path(sys.argv[1]).open("a") as log:
        log.write(json.dumps(line) + "\n")


def _real(*, json_response: bool = False) -> Any:
    """Return the application of a server where all is well."""
    server = MCPServer("harness", log_level="CRITICAL")
    reading = ToolAnnotations(read_only_hint=True)

    @server.tool(annotations=reading, structured_output=False)
    async def echo(text: str) -> str:
        """Say it again."""
        _note(tool="echo", event="begin", arguments={"text": text})
        return text

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        _note(tool="add", event="begin", arguments={"a": a, "b": b})
        return a + b

    @server.tool(structured_output=False)
    async def fail() -> str:
        """Never succeed."""
        _note(tool="fail", event="begin", arguments={})
        raise ToolError("the tool failed on purpose")

    @server.tool(structured_output=False)
    async def hang(mark: str = "") -> str:
        """Take a long time."""
        _note(tool="hang", event="begin", arguments={"mark": mark})
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            _note(tool="hang", event="cancelled", arguments={"mark": mark})
            raise
        _note(tool="hang", event="end", arguments={"mark": mark})
        return "slept"

    @server.tool(structured_output=False)
    async def big(size: int = BIG) -> str:
        """Say much."""
        _note(tool="big", event="begin", arguments={})
        return "x" * size

    @server.tool(structured_output=False)
    async def region(name: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """Want the argument in a header as well."""
        return name

    @server.tool()
    async def weather(city: str) -> dict[str, Any]:
        """Return structured content."""
        return {"city": city, "celsius": 21}

    @server.tool(structured_output=False)
    async def parts() -> list[Any]:
        """Return content of several kinds."""
        return [
            TextContent(text="one", type="text"),
            ImageContent(data="AAAA", mime_type="image/png", type="image"),
            EmbeddedResource(
                resource=TextResourceContents(uri="file:///notes.txt", text="two"), type="resource"
            ),
        ]

    @server.tool(structured_output=False)
    async def headers(ctx: Context) -> str:
        """Return the headers of the request."""
        return json.dumps(dict(ctx.headers or {}))

    @server.tool(structured_output=False)
    async def ask(ctx: Context) -> str:
        """Ask the user, whom there is not."""
        return str(await ctx.elicit("really?", Answer))

    @server.tool(structured_output=False)
    async def die() -> str:
        """End the whole server."""
        _note(tool="die", event="begin", arguments={})
        os._exit(1)

    anybody = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return server.streamable_http_app(json_response=json_response, transport_security=anybody)


async def _answer(
    send: Send, status: int, body: bytes = b"", kind: str = "application/json", **headers: str
) -> None:
    fields = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    fields += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _tool(name: Any, schema: Any = None, **rest: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"} if schema is None else schema, **rest}


def _odd_tools() -> list[Any]:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"x": deep}}
    return [
        _tool("good", description="fine", annotations={"readOnlyHint": True}),
        _tool("good", description="again"),
        _tool("get weather/now é"),
        _tool("list", {"type": "array"}),
        _tool("text", "no schema"),
        _tool("deep", deep),
        _tool("large", {"type": "object", "description": "x" * 300_000}),
        _tool("number", {"type": "object", "maximum": 2**70}),
        _tool(""),
        _tool(5),
        _tool("x" * 200),
        "not a tool",
        _tool("icons", icons=5, annotations="wrong", outputSchema=7, description=["wrong"]),
    ]


async def _raw(path: str, told: str, receive: Receive, send: Send) -> None:
    """Speak as much of an older MCP as is needed to misbehave. `told`: the token that came."""
    message = json.loads(await _body(receive))
    method, id = message.get("method"), message.get("id")
    params = message.get("params") or {}

    async def result(value: Any) -> None:
        await _answer(send, 200, json.dumps({"jsonrpc": "2.0", "id": id, "result": value}).encode())

    async def error(status: int, code: int, text: str) -> None:
        body = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}
        await _answer(send, status, json.dumps(body).encode())

    if method == "server/discover":
        await error(200, -32601, "Method not found")
    elif method == "initialize":
        capable = {"protocolVersion": LEGACY, "capabilities": {"tools": {}}}
        await result({**capable, "serverInfo": {"name": "raw", "version": "1"}})
    elif method is None:
        await _answer(send, 400)  # what a client answers is of no interest
    elif id is None:
        await _answer(send, 202)
    elif method == "tools/list":
        if path == "/slow":
            await asyncio.sleep(600)
        elif path == "/many":
            at = int(params.get("cursor", 0))
            tools = [_tool(f"tool_{number}") for number in range(at, at + 50)]
            await result({"tools": tools, "nextCursor": str((at + 50) % 5000)})
        elif path == "/same":
            await result({"tools": [_tool("only")], "nextCursor": "again"})
        elif path == "/pages":
            at = int(params.get("cursor", 0))
            await result({"tools": [], "nextCursor": str(at + 1)})
        elif path == "/telling":
            await result({"tools": [_tool("t", {"type": "object", "title": told}, description=told)]})
        elif path == "/odd":
            await result({"tools": _odd_tools()})
        elif path == "/heavy":
            await result({"tools": [_tool(f"t{n}", description="x" * 10_000) for n in range(1000)]})
        else:
            await result({"tools": [_tool("only")]})
    elif path == "/nonsense":
        await result({"content": "this is not a list"})
    elif path == "/protocol":
        await error(400, -32602, "the arguments are wrong; " + str(params["arguments"].get("say", "")))
    elif path == "/forgets":
        await _answer(send, 404)
    elif path == "/flood":
        await _flood(send)
    elif path in ("/resumes", "/breaks"):
        await _broken_off(send, id)
    elif path == "/asking":
        await _asking(send, id)
    else:
        await result({"content": [{"type": "text", "text": "fine"}]})


async def _flood(send: Send) -> None:
    """Send notices without an end, each with an id, so that a client could come back for more."""
    fields = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    notice = {"jsonrpc": "2.0", "method": "notifications/message"}
    line = json.dumps({**notice, "params": {"level": "info", "data": "x" * 10_000}})
    for number in range(ENOUGH):
        await asyncio.sleep(0)
        event = f"id: {number}\nevent: message\ndata: {line}\n\n".encode()
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def _asking(send: Send, id: Any) -> None:
    """Ask the client a thousand times before the answer."""
    fields = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    asked = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in range(1000)]
    answer = {"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "fine"}]}}
    for message in (*asked, answer):
        await send(
            {
                "type": "http.response.body",
                "body": b"data: %b\n\n" % json.dumps(message).encode(),
                "more_body": True,
            }
        )
    await send({"type": "http.response.body", "body": b""})


async def _broken_off(send: Send, id: Any) -> None:
    """Begin an event stream that could be come back for, and end it."""
    fields = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"id: %d\nretry: 10\ndata:\n\n" % id})


async def _resumed(path: str, last: str | None, send: Send) -> None:
    """Go on with an event stream, where that is promised."""
    if path != "/resumes" or last is None:
        await _answer(send, 405)
        return
    answer = {"jsonrpc": "2.0", "id": int(last), "result": {"content": [{"type": "text", "text": "fine"}]}}
    await _answer(send, 200, b"data: %b\n\n" % json.dumps(answer).encode(), "text/event-stream")


async def _oddly(scope: Scope, receive: Receive, send: Send) -> bool:
    """Answer at an endpoint that is none of MCP's; False when there is none."""
    path = scope["path"]
    redirects = {
        "/elsewhere": "http://localhost:9/mcp",
        "/metadata": "http://169.254.169.254/latest/meta-data",
        "/round": "/round",
        "/there": "/mcp",
        "/get": "/mcp",
    }
    if path in redirects:
        await _body(receive)
        await _answer(send, 302 if path == "/get" else 307, location=redirects[path])
    elif path == "/broken":
        await _answer(send, 500, b"Traceback of " + _authorization(scope), "text/plain")
    elif path == "/page":
        await _answer(send, 200, b"<html>hello</html>", "text/html")
    elif path == "/junk":
        await _answer(send, 200, b"{]")
    elif path == "/gzip":
        await _answer(send, 200, b"\x1f\x8b", content_encoding="gzip")
    elif path == "/silent":
        await asyncio.sleep(600)
    elif path == "/endless":
        fields = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        for _ in range(ENOUGH):
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b" " * 10_000, "more_body": True})
    else:
        return False
    return True


def _authorization(scope: Scope) -> bytes:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers.get(b"authorization", b"")


def _modern(scope: Scope) -> bool:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers.get(b"mcp-protocol-version", b"") >= b"2026"


REAL = frozenset({"/mcp", "/json", "/legacy", "/auth", "/stubborn"})
RAW = frozenset(
    {
        "/slow",
        "/many",
        "/same",
        "/pages",
        "/odd",
        "/heavy",
        "/nonsense",
        "/protocol",
        "/forgets",
        "/flood",
        "/telling",
        "/resumes",
        "/breaks",
        "/asking",
    }
)


def _app(events: Any, plain: Any) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        _note(method=scope["method"], path=path, headers=headers)
        if path in RAW and scope["method"] == "POST":
            await _raw(path, _authorization(scope).decode(), receive, send)
        elif path in RAW:
            await _resumed(path, headers.get("last-event-id"), send)
        elif path == "/auth" and _authorization(scope) != b"Bearer good":
            await _body(receive)
            await _answer(send, 401, b"bad token " + _authorization(scope), "text/plain")
        elif path in ("/legacy", "/stubborn") and _modern(scope):
            await _body(receive)
            await _answer(send, 400, b"unsupported", "text/plain")
        elif path == "/stubborn" and scope["method"] == "DELETE":
            await asyncio.sleep(600)
        elif await _oddly(scope, receive, send):
            pass
        elif path not in REAL:
            await _body(receive)
            await _answer(send, 404, b"nothing here", "text/plain")
        else:
            served = plain if path == "/json" else events
            await served({**scope, "path": "/mcp", "raw_path": b"/mcp"}, receive, send)

    return app


def _end_with_parent() -> None:
    """End when whoever started this does, also when that is killed."""
    sys.stdin.buffer.read()
    os._exit(0)


async def _serve() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    listening = socket.create_server(("127.0.0.1", 0))
    # Inherited by all connections, for which asyncio itself sets it only on sockets of another maker.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    events, plain = _real(), _real(json_response=True)
    async with AsyncExitStack() as stack:
        for app in (events, plain):
            await stack.enter_async_context(app.router.lifespan_context(app))
        config = uvicorn.Config(_app(events, plain), lifespan="off", log_level="critical", access_log=False)
        print(listening.getsockname()[1], flush=True)
        await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(_serve())

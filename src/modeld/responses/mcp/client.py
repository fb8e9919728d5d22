"""MCP as a client, by its SDK: opening a session, listing tools, calling one.

Loads the SDK, which takes a second: import it in a thread, and only where a server is asked.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import anyio
import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    PARSE_ERROR,
    AudioContent,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    InputRequiredResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import TypeAdapter, ValidationError

from modeld import __version__
from modeld.gateway.egress import Egress
from modeld.responses.mcp.faults import NO_CONNECTION, TIMED_OUT, UNREADABLE, Fault, phrase
from modeld.responses.mcp.limits import McpLimits
from modeld.responses.mcp.servers import McpServer
from modeld.responses.mcp.sieve import Sieve
from modeld.responses.mcp.tools import read_tool
from modeld.responses.mcp.transport import CONNECT_S, NOTE, WRITE_S, GuardedTransport, Note

log = logging.getLogger("modeld.responses.mcp")

T = TypeVar("T")

SHORTEST_SECRET = 6
"""Characters; what is shorter is a word, and no secret to be looked for in a server's answer."""

_ANSWER: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)

# The libraries' own lines hold whole messages and headers: callers' words, and secrets of both sides. None is
# written, whatever levels are set. ("client" is the SDK's as well.)
for _name in ("mcp", "client", "httpx2", "httpcore2", *logging.root.manager.loggerDict):
    if _name.partition(".")[0] in ("mcp", "client", "httpx2", "httpcore2"):
        logging.getLogger(_name).disabled = True


@asynccontextmanager
async def connected(server: McpServer, egress: Egress, limits: McpLimits) -> AsyncIterator[Client]:
    """Give an open session with a server. Entered and left by one task; what is wrong is in NOTE's note.

    No request of the server's is served (sampling, questions to the user): it gets an error.
    """
    own = {name.lower(): value for name, value in server.headers.items()}
    headers = {"user-agent": f"modeld/{__version__}", **own, "accept-encoding": "identity"}
    if server.authorization is not None:
        headers["authorization"] = f"Bearer {server.authorization}"
    # Silence is bounded by whoever waits; this one ends what nobody waits for any more.
    silence = max(limits.list_s, limits.call_s) + 5
    async with (
        httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(connect=CONNECT_S, read=silence, write=WRITE_S, pool=silence),
            transport=GuardedTransport(egress),
            trust_env=False,
        ) as http,
        Client(
            # Sizes are the transport's business, of JSON and of events alike.
            Sieve(
                streamable_http_client(server.url, http_client=http, max_sse_event_size=None), server.label
            ),
            client_info=Implementation(name="modeld", version=__version__),
            cache=None,
            read_timeout_seconds=silence,
        ) as client,
    ):
        yield client


async def ask(note: Note, seconds: float, time: str, server: McpServer, act: Callable[[], Awaitable[T]]) -> T:
    """Return what `act` returns; what it asks is noted.

    Raises Fault, also after `seconds`, which `time` tells of. Being cancelled cancels at the server.
    """
    token = NOTE.set(note)
    failed: BaseException | None = None
    try:
        with anyio.move_on_after(seconds) as scope:
            note.scope = scope
            try:
                return await act()
            except Exception as error:
                failed = error
    finally:
        note.scope = None
        NOTE.reset(token)
    if failed is None and not note.over:
        failed = TimeoutError()
    raise explain(failed, note, server, time)


def explain(error: BaseException | None, note: Note, server: McpServer, time: str) -> Fault:
    """Return what happened as a fault. The server's own words are passed on, without the caller's secrets."""
    if isinstance(error, Fault):
        return error
    if note.over:
        return Fault("tool", 0, "the answer is too large")
    leaf = _leaf(error)
    if isinstance(leaf, TimeoutError):
        return Fault("protocol", TIMED_OUT, f"the server did not answer within {time}")
    if note.failure is not None:
        return Fault("protocol", NO_CONNECTION, note.failure)
    if (status := note.refusal) is not None:
        return Fault("http", status, f"the server answered HTTP {phrase(status)}")
    if isinstance(leaf, ValidationError) or (isinstance(leaf, MCPError) and leaf.code == PARSE_ERROR):
        return Fault("protocol", UNREADABLE, "the server's answer is not one of MCP's")
    if isinstance(leaf, MCPError) and (leaf.code, leaf.message) != (CONNECTION_CLOSED, "Connection closed"):
        return Fault("protocol", leaf.code, scrubbed(leaf.message, server))
    log.info("an MCP session ended in use", extra={"server": server.label, "reason": type(leaf).__name__})
    return Fault("protocol", NO_CONNECTION, "the session with the server ended")


def _leaf(error: BaseException | None) -> BaseException | None:
    """Return the exception that a group of them is about: the task groups of the SDK wrap all that passes."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def scrubbed(text: str, server: McpServer) -> str:
    """Return a server's words about a failure without the secrets it was sent."""
    for secret in server.headers.values():
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "[removed]")
    return without_token(text, server)


def without_token(value: T, server: McpServer) -> T:
    """Return what a server says, text or JSON, without the token: it may be kept, and tokens never are.

    Headers may stay, since they may hold common words.
    """
    token = server.authorization
    if token is None or len(token) < SHORTEST_SECRET:
        return value
    return cast(T, _without(value, token))


def _without(value: Any, token: str) -> Any:
    match value:
        case str():
            return value.replace(token, "[removed]")
        case list():
            return [_without(each, token) for each in value]
        case dict():
            return {_without(key, token): _without(each, token) for key, each in value.items()}
        case _:
            return value


async def listed(client: Client, limits: McpLimits, label: str) -> list[dict[str, Any]]:
    """Return a server's tools as list items have them; pages and tools over the limits are left out."""
    found: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    cut = False
    for _ in range(limits.pages):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            hints = (
                {"readOnlyHint": tool.annotations.read_only_hint} if tool.annotations is not None else None
            )
            known = read_tool(
                {
                    "name": tool.name,
                    "description": tool.description,
                    "inputSchema": tool.input_schema,
                    "annotations": hints,
                }
            )
            if isinstance(known, dict):
                found.setdefault(known["name"], known)
        if page.next_cursor in (None, "", cursor):
            break
        if len(found) >= limits.tools:
            cut = True
            break
        cursor = page.next_cursor
    else:
        cut = True
    if len(found) > limits.tools or cut:
        log.warning(
            "an MCP server has more tools than are taken",
            extra={"server": label, "tools": limits.tools, "pages": limits.pages},
        )
    return list(found.values())[: limits.tools]


async def called(
    client: Client, name: str, arguments: dict[str, Any], limits: McpLimits, label: str
) -> CallToolResult:
    """Return what a tool answers. Raises Fault, MCPError, ValidationError.

    Not by the SDK's own method, which checks answers against schemas that servers send.
    """
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    try:
        result = await client.session.send_request(request, _ANSWER)
    except MCPError as error:
        if error.code != HEADER_MISMATCH:
            raise
        # The server wants arguments in headers, as its list says; in this session it was not listed yet.
        await listed(client, limits, label)
        result = await client.session.send_request(request, _ANSWER)
    if isinstance(result, InputRequiredResult):
        raise Fault("tool", 0, "the tool asks for more input, which nobody can give here")
    return result


def text_of(result: CallToolResult) -> str:
    """Return a result as text: its texts, a few words for all else; its structure without content."""
    if not result.content and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    return "\n".join(_text(block) for block in result.content)


def _text(block: Any) -> str:
    match block:
        case TextContent(text=text):
            return text
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case ImageContent(mime_type=kind):
            return f"[an image, {kind}]"
        case AudioContent(mime_type=kind):
            return f"[a recording, {kind}]"
        case ResourceLink(uri=uri):
            return f"[a resource, {uri}]"
        case EmbeddedResource(resource=resource):
            return f"[a resource, {resource.uri}]"
        case _:
            return "[content of an unknown kind]"

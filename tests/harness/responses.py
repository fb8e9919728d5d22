"""The Responses API as it comes over the wire: each event as one piece, of the SDK's types, in its order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlsplit

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

Body = dict[str, Any]

_KEYS = """
    id object created_at completed_at status incomplete_details model previous_response_id instructions output
    error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty
    top_logprobs temperature reasoning usage max_output_tokens max_tool_calls store background service_tier
    metadata safety_identifier prompt_cache_key
"""
KEYS = frozenset(_KEYS.split())
"""What every response has, by OpenAI's document and by the Open Responses specification."""

_MAY_BE_NULL = """
    completed_at incomplete_details previous_response_id instructions error reasoning usage max_output_tokens
    max_tool_calls safety_identifier prompt_cache_key conversation user
"""
MAY_BE_NULL = frozenset(_MAY_BE_NULL.split())
"""Of a response's keys, those that may be null."""

TERMINAL = ("response.completed", "response.incomplete", "response.failed")

# Open Responses wants the first three, OpenAI sends the others; the SDK's types have none of them.
_BEYOND_THE_SDK = (".store", ".presence_penalty", ".frequency_penalty")
BEYOND_THE_SDK = {
    *_BEYOND_THE_SDK,
    *(f".response{name}" for name in _BEYOND_THE_SDK),
    ".name",
    ".error",
    ".logprobs[].bytes",
    ".logprobs[].top_logprobs[].bytes",
}

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_KINDS: tuple[type[BaseModel], ...] = get_args(get_args(ResponseStreamEvent)[0])
_TYPES = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in _KINDS}


def unknown(value: object, where: str = "") -> set[str]:
    """Return the places, list positions left out, of fields that the SDK's types do not have."""
    if isinstance(value, list):
        return {place for item in value for place in unknown(item, where + "[]")}
    if not isinstance(value, BaseModel):
        return set()
    found = {f"{where}.{name}" for name in value.model_extra or ()}
    for name in type(value).model_fields:
        found |= unknown(getattr(value, name), f"{where}.{name}")
    return found


def check_response(response: Mapping[str, Any]) -> None:
    """See that a response is the SDK's strictly, has every key that clients demand, and no null elsewhere."""
    assert unknown(Response.model_validate(response, strict=True)) <= BEYOND_THE_SDK
    assert set(response) >= KEYS, KEYS - set(response)
    nulls = {key for key, value in response.items() if value is None}
    assert nulls <= MAY_BE_NULL, nulls - MAY_BE_NULL
    if response["reasoning"] is not None:
        assert {"effort", "summary"} <= set(response["reasoning"])
    for tool in response["tools"]:
        if tool["type"] == "function":
            assert {"name", "description", "parameters", "strict"} <= set(tool)
    usage = response["usage"]
    if usage is not None:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
        assert set(usage["output_tokens_details"]) == {"reasoning_tokens"}
    for item in response["output"]:
        assert item["id"]
        if item["type"] in ("message", "function_call"):
            assert item["status"] in ("in_progress", "completed", "incomplete")


def check_event(payload: Mapping[str, Any]) -> None:
    """See that an event is the SDK's of its name, strictly, with nothing beside."""
    kind = _TYPES[payload["type"]]
    event = kind.model_validate(payload, strict=True)
    assert unknown(event) <= BEYOND_THE_SDK, unknown(event)
    assert type(EVENT.validate_python(payload)) is kind
    if "response" in payload:
        check_response(payload["response"])


def check_stream(events: Sequence[Mapping[str, Any]]) -> Body:
    """See that a whole stream is in order and that its pieces make up its response, which is returned.

    Numbers count from 0 without gaps; created, then queued or in_progress, come first; items follow one after
    the other, each opened empty, filled and closed; what was closed is the last response's output; one event
    ends it. A comment may come anywhere: a slow machine's stream has signs of life.
    """
    events = [event for event in events if event["type"] != "comment"]
    for payload in events:
        check_event(payload)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds[1] in ("response.in_progress", "response.queued")
    assert [kind for kind in kinds if kind in TERMINAL] == kinds[-1:]
    responses = [event["response"] for event in events if "response" in event]
    assert len({response["id"] for response in responses}) == 1
    done: list[Body] = []
    item: list[Mapping[str, Any]] = []
    for event in events:
        if "output_index" not in event:
            assert not item, "a response's own event came in the middle of an item"
            continue
        assert event["output_index"] == len(done)
        assert (event["type"] == "response.output_item.added") == (not item)
        item.append(event)
        if event["type"] == "response.output_item.done":
            _check_item(item)
            done.append(event["item"])
            item = []
    final: Body = responses[-1]
    assert final["output"] == done
    assert final["status"] == kinds[-1].removeprefix("response.") or final["status"] == "cancelled"
    assert (final["completed_at"] is not None) == (final["status"] == "completed")
    return final


def _check_item(events: Sequence[Mapping[str, Any]]) -> None:
    """See that the events of one item, the first and the last its own, make up that item."""
    first, last = events[0]["item"], events[-1]["item"]
    assert (first["id"], first["type"]) == (last["id"], last["type"])
    assert all(event["item_id"] == first["id"] for event in events[1:-1])
    kinds = [event["type"].removeprefix("response.") for event in events[1:-1]]
    deltas = "".join(event.get("delta", "") for event in events)
    match first["type"]:
        case "message":
            assert first["content"] == []
            _in_parts(kinds, "content_part", "output_text")
            [part] = last["content"]
            assert deltas == part["text"]
            assert {event["text"] for event in events if event["type"].endswith("_text.done")} == {deltas}
            assert [event["part"] for event in events if event["type"].endswith("part.done")] == [part]
            pieces = [event for event in events if event["type"].endswith(".delta")]
            logprobs = [one for piece in pieces for one in piece["logprobs"]]
            assert logprobs == part["logprobs"]
        case "reasoning" if last["summary"]:
            _in_parts(kinds, "reasoning_summary_part", "reasoning_summary_text")
            assert deltas == "".join(part["text"] for part in last["summary"])
        case "reasoning":
            _in_parts(kinds, "content_part", "reasoning_text")
            assert deltas == "".join(part["text"] for part in last["content"])
        case "function_call":
            assert first["arguments"] == ""
            assert kinds[-1] == "function_call_arguments.done"
            assert set(kinds[:-1]) <= {"function_call_arguments.delta"}
            assert deltas == events[-2]["arguments"] == last["arguments"]
            assert (first["call_id"], first["name"]) == (last["call_id"], last["name"])
        case "mcp_call":
            assert (first["arguments"], first["output"], first["status"]) == ("", None, "in_progress")
            *_, done, over = kinds
            assert kinds[0] == "mcp_call.in_progress"
            assert done == "mcp_call_arguments.done"
            assert deltas == last["arguments"]
            assert over == f"mcp_call.{last['status']}"
            assert (last["status"] == "failed") == (last["error"] is not None)
        case "mcp_list_tools":
            assert first["tools"] == []
            assert kinds[0] == "mcp_list_tools.in_progress"
            assert kinds[1:] in (["mcp_list_tools.completed"], ["mcp_list_tools.failed"])
            assert (kinds[1] == "mcp_list_tools.failed") == (last.get("error") is not None)
        case "mcp_approval_request":
            assert kinds == []
            assert first == last


def _in_parts(kinds: Sequence[str], part: str, text: str) -> None:
    """See that the parts of an item come one after the other: added, deltas, done, done."""
    at = 0
    while at < len(kinds):
        end = kinds.index(f"{part}.done", at)
        assert kinds[at] == f"{part}.added"
        assert kinds[end - 1] == f"{text}.done"
        assert set(kinds[at + 1 : end - 1]) <= {f"{text}.delta"}
        at = end + 1
    assert kinds


@dataclass
class Streamed:
    """What came: an event stream's chunks as they were sent, the events in them, or another answer's body."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes] = field(default_factory=list)
    events: list[Body] = field(default_factory=list)
    done: bool = False
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    def whole(self) -> Body:
        """See that all is in order, and return the response."""
        assert self.status == 200, self.body
        assert self.done
        return check_stream(self.events)


async def send(
    url: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    key: str | None = None,
    enough: Callable[[Body], bool] = lambda event: False,
) -> Streamed:
    """Send a request over a socket of its own and return what came.

    Of an event stream, every chunk of the transfer must be exactly one event: there are clients that lose an
    event which arrives in two pieces. It is left, and the connection closed, after an event that is `enough`.
    """
    host, port = urlsplit(url).hostname, urlsplit(url).port
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
    data = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method or ('GET' if body is None else 'POST')} /v1/{path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Connection: close",
        "Accept: application/json",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + data)
        status, headers = await _head(reader)
        answer = Streamed(status, headers)
        if not headers.get("content-type", "").startswith("text/event-stream"):
            answer.body = b"".join([chunk async for chunk in _chunks(reader, headers)])
            return answer
        async for chunk in _chunks(reader, headers):
            answer.chunks.append(chunk)
            event = _read(chunk)
            if event is None:
                answer.done |= chunk == b"data: [DONE]\n\n"
                continue
            assert not answer.done
            answer.events.append(event)
            if enough(event):
                break
        return answer
    finally:
        writer.close()
        await writer.wait_closed()


async def stream(
    url: str, body: Mapping[str, Any], enough: Callable[[Body], bool] = lambda event: False
) -> Streamed:
    """Ask for a response as a stream."""
    return await send(url, "responses", {**body, "stream": True}, enough=enough)


async def replay(url: str, id: str, after: int | None = None) -> Streamed:
    """Read the events of a response again, those numbered above `after`."""
    return await send(
        url, f"responses/{id}?stream=true" + ("" if after is None else f"&starting_after={after}")
    )


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    headers = (line.split(": ", 1) for line in lines)
    return int(status.split()[1]), {name.lower(): value for name, value in headers}


async def _chunks(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") != "chunked":
        yield await reader.readexactly(int(headers["content-length"])) if "content-length" in headers else b""
        return
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"


def _read(chunk: bytes) -> Body | None:
    """Return the one event of a chunk; None for a comment and for the end."""
    assert chunk.endswith(b"\n\n"), chunk
    assert chunk.count(b"\n\n") == 1, chunk
    if chunk.startswith(b":") or chunk == b"data: [DONE]\n\n":
        return None
    name, data = chunk[:-2].split(b"\n")
    event: Body = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: " + event["type"].encode()
    return event


class Socket:
    """A WebSocket to /v1/responses: frames out, events in."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def create(self, **body: Any) -> None:
        """Ask for a response."""
        await self.connection.send(json.dumps({"type": "response.create", **body}))

    async def event(self) -> Body:
        """Return the next event."""
        frame = await self.connection.recv()
        assert isinstance(frame, str), "an event is a text frame"
        found: Body = json.loads(frame)
        return found

    async def turn(self, **body: Any) -> list[Body]:
        """Ask for a response and return its events, up to the last, or to an error."""
        await self.create(**body)
        return await self.until_over()

    async def until_over(self) -> list[Body]:
        """Return events up to a last one, or to an error that no response began before."""
        events = [await self.event()]
        while events[-1]["type"] not in TERMINAL and not (events[-1]["type"] == "error" and len(events) == 1):
            events.append(await self.event())
        return events

    async def whole(self, **body: Any) -> Body:
        """Ask for a response, see that all is in order, and return it."""
        return check_stream(await self.turn(**body))

    async def refused(self, **body: Any) -> Body:
        """Ask for a response that is refused, and return the error's frame."""
        [frame] = await self.turn(**body)
        assert frame["type"] == "error", frame
        return frame


@asynccontextmanager
async def connected(url: str, key: str = "x", **headers: str) -> AsyncIterator[Socket]:
    """Open a WebSocket as SDKs do."""
    from websockets.asyncio.client import connect

    given = {"Authorization": f"Bearer {key}", **headers}
    address = url.replace("http", "ws", 1) + "/v1/responses"
    async with connect(address, additional_headers=given, max_size=None, compression=None) as connection:
        yield Socket(connection)

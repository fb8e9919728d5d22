"""`openai` for Python on the WebSocket of the Responses API, real SmolLM2; and what the SDK does not look at,
frame by frame.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from tests.conformance.responses_daemon import ANSWER, FORCED, THOUGHT, WEATHER, said, scripted
from tests.harness.daemon import Daemon
from tests.harness.models import llama
from tests.harness.responses import Socket, check_stream, connected, send

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SHORT: dict[str, Any] = {"model": "plain", "max_output_tokens": 4, "temperature": 0, "store": False}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Any) -> AsyncIterator[Daemon]:
    """Run a daemon with SmolLM2 and scripted models."""
    async with scripted("thinker", "slow", "failing", more=(llama("plain", demo_gguf),)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def socket(daemon: Daemon) -> AsyncIterator[Socket]:
    """Give a connected socket."""
    async with connected(daemon.url) as connection:
        yield connection


def end(events: list[Any]) -> Any:
    """Return the response that ended a turn of the SDK's events, which must be in order."""
    return check_stream([event.to_dict() for event in events])


async def test_the_async_client(daemon: Daemon) -> None:
    """responses.connect: two turns on one socket, the second going on from the first, which is not stored."""
    async with (
        openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x") as client,
        client.responses.connect() as connection,
    ):
        lengths: list[int] = []
        previous: dict[str, Any] = {}
        for _ in range(2):
            await connection.response.create(input="Name a colour.", **SHORT, **previous)
            events = []
            async for event in connection:
                events.append(event)
                if event.type in ("response.completed", "response.incomplete"):
                    break
            final = end(events)
            lengths.append(final["usage"]["input_tokens"])
            previous = {"previous_response_id": final["id"]}
        assert lengths[0] < lengths[1]
        await connection.response.create(**{**SHORT, "model": "nope"}, input="x")
        refused = await connection.recv()
        assert refused.type == "error"
        assert (refused.status, refused.error.code) == (404, "model_not_found")


async def test_the_blocking_client(daemon: Daemon) -> None:
    """The blocking client sees the same, a forced call among it."""

    def talk() -> list[Any]:
        with (
            openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x") as client,
            client.responses.connect() as connection,
        ):
            connection.response.create(
                model="plain",
                input="What is the weather in Paris?",
                tools=[WEATHER],  # type: ignore[list-item]
                tool_choice=FORCED,  # type: ignore[arg-type]
                max_output_tokens=100,
            )
            events = []
            for event in connection:
                events.append(event)
                if event.type == "response.completed":
                    break
            return events

    final = end(await asyncio.to_thread(talk))
    [call] = final["output"]
    assert set(json.loads(call["arguments"])) == {"city", "celsius"}


async def test_lanes(socket: Socket) -> None:
    """Turns of one lane follow one another; those of two run at once, each event with its lane's name."""
    for lane, model in (("a", "slow"), ("a", "thinker"), ("b", "thinker")):
        await socket.create(model=model, input="x", stream_id=lane)
    found: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    while not found["a"] or not found["b"] or found["b"][-1]["type"] != "response.completed":
        event = await socket.event()
        found[event.pop("stream_id")].append(event)
    assert said(check_stream(found["b"])["output"]) == [("reasoning", THOUGHT), ("message", ANSWER)]
    assert {event["response"]["model"] for event in found["a"] if "response" in event} == {"slow"}


async def test_leaving_stops_the_engine(daemon: Daemon) -> None:
    """Responses end with their socket, and none is kept."""
    async with connected(daemon.url) as socket:
        await socket.create(model="slow", input="x")
        id = (await socket.event())["response"]["id"]
        while (await socket.event())["type"] != "response.output_text.delta":
            pass
    await daemon.until_idle("slow")
    assert (await send(daemon.url, f"responses/{id}")).status == 404


async def test_what_is_stored_goes_on_elsewhere(daemon: Daemon, socket: Socket) -> None:
    """A stored response of a socket is found over HTTP and continued there, and the other way round."""
    first = await socket.whole(model="thinker", input="x")
    body = {"model": "thinker", "input": "y", "previous_response_id": first["id"]}
    second = (await send(daemon.url, "responses", body)).json
    third = await socket.whole(**{**body, "previous_response_id": second["id"]})
    lengths = [each["usage"]["input_tokens"] for each in (first, second, third)]
    assert lengths == sorted(set(lengths))


async def test_a_warm_up(socket: Socket) -> None:
    """generate=false makes an empty response that can be continued."""
    warm = await socket.whole(model="thinker", input="Remember this.", store=False, generate=False)
    assert warm["output"] == []
    after = await socket.whole(model="thinker", input="x", store=False, previous_response_id=warm["id"])
    alone = await socket.whole(model="thinker", input="x", store=False)
    assert after["usage"]["input_tokens"] == alone["usage"]["input_tokens"] + 2


async def test_bad_frames(socket: Socket) -> None:
    """What cannot be read is answered by an error that names it, and the socket serves on."""
    for frame, code, param in (
        ("{", "invalid_json", None),
        ('{"type": "response.sing"}', "unsupported_event_type", "type"),
        (
            '{"type": "response.create", "model": "thinker", "input": "x", "stream_id": "a b"}',
            "invalid_stream_id",
            "stream_id",
        ),
        (
            '{"type": "response.create", "model": "thinker", "input": "x", "temperature": 9}',
            None,
            "temperature",
        ),
    ):
        await socket.connection.send(frame)
        error = await socket.event()
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["message"]
        assert error["error"]["param"] == param
        assert code in (None, error["error"]["code"])
        assert "stream_id" not in error
    steer = {"type": "response.steer", "previous_response_id": "resp_0", "input": "No."}
    await socket.connection.send(json.dumps(steer))
    failed = await socket.event()
    assert failed["type"] == "response.steer.failed"
    assert (await socket.whole(model="thinker", input="x"))["status"] == "completed"


async def test_a_failure_on_the_way(socket: Socket) -> None:
    """An engine that fails ends its response as failed; the socket serves on."""
    events = await socket.turn(model="failing", input="x", store=False)
    final = check_stream(events)
    assert final["status"] == "failed"
    assert final["error"]["code"] == "server_error"
    assert (await socket.whole(model="thinker", input="x"))["status"] == "completed"


async def test_web_pages_are_kept_out(daemon: Daemon) -> None:
    """A page of another site cannot open a socket: browsers say where it is from."""
    with pytest.raises(InvalidStatus) as caught:
        async with connected(daemon.url, Origin="https://evil.example"):
            pass
    assert caught.value.response.status_code == 403

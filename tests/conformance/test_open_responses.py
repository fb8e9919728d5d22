"""What the compliance runner of Open Responses looks at, in our own words and stricter: each body and event
whole, each event one chunk of the transfer.

Texts and turns are SmolLM2's, the picture a tiny model's that sees; the call is a scripted model's, since
the tool is offered and not forced, and so are WebSocket turns that must end by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.conformance.responses_daemon import ANSWER, THOUGHT, WEATHER, said, scripted
from tests.harness.daemon import Daemon
from tests.harness.models import llama
from tests.harness.models_vision import seer_with_projector
from tests.harness.pictures import data_url, png
from tests.harness.responses import check_response, check_stream, connected, send, stream

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

YES = {"format": {"type": "json_schema", "name": "yes", "schema": {"enum": ["yes", "no"]}}}
"""A form that even a tiny model's answer ends by itself in."""

TURNS = [
    {"type": "message", "role": "user", "content": "My name is Alice."},
    {"type": "message", "role": "assistant", "content": "Hello Alice! How can I help you?"},
    {"type": "message", "role": "user", "content": "Do you know my name?"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Any) -> AsyncIterator[Daemon]:
    """Run a daemon with real models and scripted ones."""
    real = (llama("plain", demo_gguf, parallel=2), llama("eyes", seer_with_projector(), n_ctx=1024))
    async with scripted("chatty", "thinker", "caller", more=real) as started:
        yield started


def user(text: str) -> list[dict[str, Any]]:
    """Return the input of one question, as a message without id and status."""
    return [{"type": "message", "role": "user", "content": text}]


async def completed(daemon: Daemon, **body: Any) -> dict[str, Any]:
    """Ask plainly; see that the response is whole and completed, and return it."""
    answer = await send(daemon.url, "responses", body)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("application/json")
    check_response(answer.json)
    assert answer.json["status"] == "completed"
    assert answer.json["output"]
    found: dict[str, Any] = answer.json
    return found


async def test_a_basic_response(daemon: Daemon) -> None:
    """A message of the user's is answered by one of the assistant's, of one text without annotations."""
    before = int(time.time())
    found = await completed(daemon, model="plain", input=user("Are you there?"), text=YES)
    assert before <= found["created_at"] <= found["completed_at"] <= time.time()
    [message] = found["output"]
    assert message["role"] == "assistant"
    assert message["content"][0]["type"] == "output_text"
    assert message["content"][0]["annotations"] == []
    assert found["object"] == "response"
    assert (found["store"], found["background"], found["tools"]) == (True, False, [])


async def test_a_streamed_response(daemon: Daemon) -> None:
    """Every event is one chunk, named by its type, and the stream ends in [DONE]."""
    answer = await stream(daemon.url, {"model": "plain", "input": user("Are you there?"), "text": YES})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers.get("content-encoding", "identity") == "identity"
    assert answer.whole()["status"] == "completed"
    assert answer.chunks[-1] == b"data: [DONE]\n\n"
    assert not any(line.startswith(b"id:") for chunk in answer.chunks for line in chunk.split(b"\n"))
    kinds = [event["type"].removeprefix("response.") for event in answer.events]
    assert [kind for kind in kinds if kind != "output_text.delta"] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


async def test_a_system_prompt(daemon: Daemon) -> None:
    """A system message, or a developer's, is read as one, and counted."""
    alone = await completed(daemon, model="plain", input=user("Are you there?"), text=YES)
    lengths = []
    for role in ("system", "developer"):
        system = {"type": "message", "role": role, "content": "You are a pirate of the seven seas."}
        found = await completed(daemon, model="plain", input=[system, *user("Are you there?")], text=YES)
        lengths.append(found["usage"]["input_tokens"])
    assert lengths[0] == lengths[1] != alone["usage"]["input_tokens"]


async def test_turns(daemon: Daemon) -> None:
    """Earlier turns, the assistant's among them, are sent as messages; null ids and statuses do no harm."""
    found = await completed(daemon, model="plain", input=TURNS, text=YES)
    nulls = [{**turn, "id": None, "status": None} for turn in TURNS]
    again = await completed(daemon, model="plain", input=nulls, text=YES)
    assert found["usage"]["input_tokens"] == again["usage"]["input_tokens"]


async def test_a_tool_call(daemon: Daemon) -> None:
    """An offered tool is called, plain and streamed; it is echoed with all its keys, those unsaid as null."""
    bare = {"type": "function", "name": "get_weather", "parameters": WEATHER["parameters"]}
    body = {"model": "caller", "input": user("What is the weather?"), "tools": [bare]}
    found = await completed(daemon, **body)
    assert [item["type"] for item in found["output"]] == ["reasoning", "function_call", "function_call"]
    assert found["tools"] == [{**bare, "description": None, "strict": found["tools"][0]["strict"]}]
    whole = (await stream(daemon.url, body)).whole()
    assert said(whole["output"]) == said(found["output"])


async def test_a_picture(daemon: Daemon) -> None:
    """A picture is seen where the model sees, and refused by name where it does not."""
    content = [
        {"type": "input_text", "text": "Is it red?"},
        {"type": "input_image", "image_url": data_url(png())},
    ]
    body = {"input": [{"type": "message", "role": "user", "content": content}], "text": YES}
    await completed(daemon, model="eyes", **body)
    refused = await send(daemon.url, "responses", {"model": "plain", **body})
    assert refused.status == 400
    assert refused.json["error"]["param"] == "input[0].content[1].image_url"


async def test_compacting(daemon: Daemon) -> None:
    """Compaction keeps what the user said and seals the rest; without a model it is refused."""
    answer = await send(
        daemon.url, "responses/compact", {"model": "chatty", "input": TURNS, "prompt_cache_key": "k"}
    )
    found = answer.json
    assert answer.status == 200, found
    assert found["object"] == "response.compaction"
    assert isinstance(found["created_at"], int)
    assert set(found["usage"]) >= {"input_tokens", "output_tokens", "total_tokens"}
    assert found["output"][-1]["type"] == "compaction"
    assert {item["role"] for item in found["output"][:-1]} <= {"user"}
    refused = await send(daemon.url, "responses/compact", {"input": TURNS})
    assert (refused.status, refused.json["error"]["param"]) == (400, "model")


async def test_phases_are_taken(daemon: Daemon) -> None:
    """Messages of the assistant's may say what phase they are of, commentary or the final answer."""
    turns = [
        TURNS[0],
        {**TURNS[1], "phase": "commentary"},
        {**TURNS[1], "phase": "final_answer"},
        TURNS[2],
    ]
    await completed(daemon, model="plain", input=turns, text=YES)


async def test_a_socket(daemon: Daemon) -> None:
    """A socket's events are those of a stream; two turns, one after the other, are two whole streams."""
    async with connected(daemon.url) as socket:
        first = await socket.whole(model="plain", input=user("Are you there?"), text=YES)
        assert first["status"] == "completed"
        for _ in range(2):
            found = await socket.whole(model="thinker", input="And now?", store=False)
            assert said(found["output"]) == [("reasoning", THOUGHT), ("message", ANSWER)]


async def test_a_socket_remembers(daemon: Daemon) -> None:
    """What is not stored is continued on its socket, and on no other, where a new start is fine."""
    async with connected(daemon.url) as socket:
        first = await socket.whole(model="plain", input="The word is cobalt.", text=YES, store=False)
        onward = {"model": "plain", "input": "Is it?", "text": YES, "previous_response_id": first["id"]}
        second = await socket.whole(**onward, store=False)
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        assert second["previous_response_id"] == first["id"]
    async with connected(daemon.url) as other:
        error = await other.refused(**onward, store=False)
        assert error["error"]["code"] == "previous_response_not_found"
        assert (await other.whole(model="thinker", input="Anew.", store=False))["status"] == "completed"


async def test_a_socket_knows_what_it_does_not_know(daemon: Daemon) -> None:
    """A response that never was is an error with its name, in the words that clients look for."""
    async with connected(daemon.url) as socket:
        body = {"model": "thinker", "input": "x", "previous_response_id": "resp_missing"}
        error = await socket.refused(**body, store=False)
    assert error["status"] == 400
    assert error["error"]["code"] == "previous_response_not_found"
    assert error["error"]["param"] == "previous_response_id"
    assert error["error"]["message"] == "Previous response with id 'resp_missing' not found."


async def test_a_failed_turn_forgets_its_parent(daemon: Daemon) -> None:
    """A turn that goes on from a response and fails makes the socket forget that response."""
    async with connected(daemon.url) as socket:
        first = await socket.whole(model="thinker", input="x", store=False)
        onward = {"model": "thinker", "store": False, "previous_response_id": first["id"]}
        stray = {"type": "function_call_output", "call_id": "call_missing", "output": "x"}
        failed = await socket.refused(**onward, input=[stray])
        assert failed["status"] == 400
        gone = await socket.refused(**onward, input="x")
    assert gone["error"]["code"] == "previous_response_not_found"


async def test_a_socket_goes_on_from_what_was_compacted(daemon: Daemon) -> None:
    """The output of a compaction begins a new chain, as it came, without a previous response."""
    made = (await send(daemon.url, "responses/compact", {"model": "chatty", "input": TURNS})).json
    async with connected(daemon.url) as socket:
        given = [*made["output"], *user("Do you know my name?")]
        found = await socket.whole(model="plain", input=given, tools=[], text=YES, store=False)
    assert found["status"] == "completed"


async def test_all_at_once(daemon: Daemon) -> None:
    """Seventeen callers at the same time, streams, plain answers and sockets, are all served in order."""

    async def talk() -> dict[str, Any]:
        async with connected(daemon.url) as socket:
            return check_stream(await socket.turn(model="thinker", input="x", store=False))

    async def read() -> dict[str, Any]:
        return (await stream(daemon.url, {"model": "thinker", "input": "x"})).whole()

    plain = [completed(daemon, model="thinker", input="x") for _ in range(5)]
    found = await asyncio.gather(*plain, *(read() for _ in range(6)), *(talk() for _ in range(6)))
    assert len({each["id"] for each in found}) == 17
    assert {tuple(said(each["output"])) for each in found} == {(("reasoning", THOUGHT), ("message", ANSWER))}

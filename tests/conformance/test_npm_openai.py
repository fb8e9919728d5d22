"""`openai` for npm against a real daemon; npm/openai.mjs makes the calls, and what it saw is checked here."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.conformance import node
from tests.conformance.python_sdk import KEY
from tests.conformance.questions import SCHEMA
from tests.harness.daemon import Daemon

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


async def seen(daemon: Daemon, scenario: str, *more: str) -> Any:
    """Run a scenario of openai.mjs."""
    return await node.seen("openai.mjs", daemon.url, scenario, *more)


def text(chunks: list[dict[str, Any]]) -> str:
    """Return the text of a stream's only choice."""
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def test_models(daemon: Daemon) -> None:
    """The list's pages end, and retrieve gives the same card."""
    found = await seen(daemon, "models")
    assert {model["id"] for model in found["listed"]} == {"plain", "aware"}
    assert found["one"] in found["listed"]


async def test_a_plain_answer(daemon: Daemon) -> None:
    """An answer has text, a finish reason, usage, and the request id and time of its headers."""
    found = await seen(daemon, "chat")
    [choice] = found["answer"]["choices"]
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert found["answer"]["usage"]["completion_tokens"] == 8
    assert found["request_id"] == found["own_id"]
    assert found["request_id"].startswith("req_")
    assert int(found["ms"]) >= 0


async def test_a_stream(daemon: Daemon) -> None:
    """A stream's pieces join to the plain answer; its last chunk is the usage."""
    found = await seen(daemon, "stream")
    assert text(found["chunks"]) == found["plain"]["choices"][0]["message"]["content"] != ""
    *chunks, last = found["chunks"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


async def test_the_stream_helper(daemon: Daemon) -> None:
    """chat.completions.stream puts the same text together that its content events gave, and counts usage."""
    found = await seen(daemon, "helper")
    assert "".join(found["deltas"]) == found["final"]["choices"][0]["message"]["content"] != ""
    assert found["usage"]["completion_tokens"] == 8


async def test_forced_tools(daemon: Daemon) -> None:
    """A required call and a named, streamed one have arguments that fit the schema."""
    found = await seen(daemon, "tools")
    [choice] = found["plain"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    deltas = [
        call
        for chunk in found["chunks"]
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert [delta["id"] for delta in deltas if "id" in delta] == [deltas[0]["id"]]
    assert deltas[0]["function"]["name"] == "get_weather"
    pieces = [delta["function"]["arguments"] for delta in deltas]
    jsonschema.validate(json.loads("".join(pieces)), SCHEMA)
    assert found["chunks"][-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_tool_runner(daemon: Daemon) -> None:
    """runTools calls the caller's function with arguments that fit, plain and streamed."""
    given = (await seen(daemon, "runTools"))["given"]
    assert len(given) == 2
    for arguments in given:
        jsonschema.validate(arguments, SCHEMA)


async def test_a_schema(daemon: Daemon) -> None:
    """parse and the stream helper read an answer through the caller's zod schema."""
    found = await seen(daemon, "schema")
    for message in found.values():
        jsonschema.validate(json.loads(message["content"]), SCHEMA)
        assert message["parsed"] == json.loads(message["content"])


async def test_choices_and_logprobs(daemon: Daemon) -> None:
    """n=2 gives two choices; logprobs cover the text, each with its alternatives."""
    found = await seen(daemon, "sampling")
    assert [choice["index"] for choice in found["two"]["choices"]] == [0, 1]
    assert all(choice["message"]["content"] for choice in found["two"]["choices"])
    [choice] = found["logprobs"]["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


async def test_raw_prompts(daemon: Daemon) -> None:
    """completions.create continues a prompt, with logprobs and as a stream."""
    found = await seen(daemon, "completions")
    [choice] = found["answer"]["choices"]
    assert choice["text"].startswith(" Paris")
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert "".join(chunk["choices"][0]["text"] for chunk in found["chunks"]) == choice["text"]


async def test_refusals_are_the_sdks_own_errors(daemon: Daemon) -> None:
    """Each refusal is its class, with code, param and request id, before a stream begins as well."""
    found = await seen(daemon, "errors")
    assert all(error["requestID"].startswith("req_") for error in found.values())
    assert (found["model"]["name"], found["model"]["code"]) == ("NotFoundError", "model_not_found")
    for which in ("value", "streamed"):
        assert (found[which]["name"], found[which]["param"]) == ("BadRequestError", "temperature")
    assert found["context"]["name"] == "BadRequestError"
    assert found["context"]["code"] == "context_length_exceeded"


async def test_keys(locked: Daemon) -> None:
    """A wrong key is AuthenticationError, the right one is served."""
    refusal = (await seen(locked, "key", "sk-wrong"))["refusal"]
    assert (refusal["name"], refusal["code"]) == ("AuthenticationError", "invalid_api_key")
    assert [model["id"] for model in (await seen(locked, "keyed", KEY))["listed"]] == ["scripted"]


async def test_leaving_a_stream_stops_the_engine(daemon: Daemon) -> None:
    """A stream that is aborted, or whose loop is left, is over for the daemon while the client lives on."""
    async with node.scenario("openai.mjs", daemon.url, "leave") as found:
        await daemon.until_idle("plain", within=60.0)
        for request_id in found["ids"]:
            assert "status=499" in await daemon.line(request_id)

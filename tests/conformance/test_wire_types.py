"""Bodies and chunks, as they come, against the Python SDK's own types: nothing of another type, nothing the
types do not know, nothing left out that OpenAI always sends.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.conformance.questions import ASK, FORMAT, NAMED, STEADY, TOOL
from tests.harness.daemon import Daemon
from tests.harness.sse import Reader

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CHATS: dict[str, dict[str, Any]] = {
    "text": {"model": "plain", "max_tokens": 4},
    "choices": {"model": "plain", "max_tokens": 4, "n": 2},
    "logprobs": {"model": "plain", "max_tokens": 4, "logprobs": True, "top_logprobs": 2},
    "tools": {"model": "plain", "max_tokens": 200, "tools": [TOOL], "tool_choice": NAMED},
    "schema": {"model": "plain", "max_tokens": 200, "response_format": FORMAT},
    "thinking": {"model": "aware", "max_tokens": 40, "chat_template_kwargs": {"enable_thinking": True}},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": {},
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True, "n": 2},
}


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


async def post(daemon: Daemon, path: str, body: dict[str, Any]) -> bytes:
    """Post and return the body's bytes."""
    async with aiohttp.ClientSession() as session, session.post(daemon.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.read()


async def stream(daemon: Daemon, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Post with streaming and usage on, and return the chunks."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with aiohttp.ClientSession() as session, session.post(daemon.url + path, json=body) as response:
        answer = await Reader(response).to_end()
    assert answer.status == 200
    assert answer.done
    assert answer.error is None
    return answer.chunks


@pytest.mark.parametrize("kind", CHATS)
async def test_chat(daemon: Daemon, kind: str) -> None:
    """A chat answer is an exact ChatCompletion, all its customary keys there, null or not."""
    raw = await post(daemon, "/v1/chat/completions", {"messages": ASK, **CHATS[kind], **STEADY})
    answer = ChatCompletion.model_validate_json(raw, strict=True)
    thoughts = {".choices[].message.reasoning_content"} if kind == "thinking" else set()
    assert unknown(answer) == thoughts
    assert answer.model_fields_set >= {"id", "object", "created", "model", "choices", "usage"}
    for choice in answer.choices:
        assert choice.model_fields_set >= {"index", "message", "logprobs", "finish_reason"}
        assert choice.message.model_fields_set >= {"role", "content", "refusal"}


@pytest.mark.parametrize("kind", CHATS)
async def test_chat_chunks(daemon: Daemon, kind: str) -> None:
    """Every chunk is an exact ChatCompletionChunk, with finish_reason and usage there even while null."""
    payloads = await stream(daemon, "/v1/chat/completions", {"messages": ASK, **CHATS[kind], **STEADY})
    chunks = [ChatCompletionChunk.model_validate(payload, strict=True) for payload in payloads]
    found = set().union(*(unknown(chunk) for chunk in chunks))
    assert found == ({".choices[].delta.reasoning_content"} if kind == "thinking" else set())
    for chunk in chunks:
        assert chunk.model_fields_set >= {"id", "object", "created", "model", "choices", "usage"}
        for choice in chunk.choices:
            assert choice.model_fields_set >= {"index", "delta", "finish_reason"}


@pytest.mark.parametrize("kind", COMPLETIONS)
async def test_completions(daemon: Daemon, kind: str) -> None:
    """A completion and its chunks are exact Completions, but that a chunk's finish_reason may be null."""
    body = {"model": "plain", "prompt": "One, two,", "max_tokens": 3, **COMPLETIONS[kind], **STEADY}
    answer = Completion.model_validate_json(await post(daemon, "/v1/completions", body), strict=True)
    assert unknown(answer) == set()
    payloads = await stream(daemon, "/v1/completions", body)
    assert {reason for p in payloads for c in p["choices"] if (reason := c["finish_reason"])} == {"length"}
    for payload in payloads:
        for choice in payload["choices"]:
            choice["finish_reason"] = "length"  # the type has no null, though OpenAI sends it
        assert unknown(Completion.model_validate(payload, strict=True)) == set()


async def test_models(daemon: Daemon) -> None:
    """A model card is an exact Model, with modeld's own knowledge under one key beside it."""
    async with aiohttp.ClientSession() as session, session.get(f"{daemon.url}/v1/models") as response:
        listed = await response.json()
    assert set(listed) == {"object", "data"}
    for card in listed["data"]:
        assert unknown(Model.model_validate(card, strict=True)) == {".modeld"}

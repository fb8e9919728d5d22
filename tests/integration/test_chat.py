"""Chat and completions on a real engine with a real (small) model, over HTTP, as a client sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
import pytest_asyncio

from tests.harness.daemon import Daemon
from tests.harness.models import demo_twice
from tests.harness.sse import chat

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city",
        "parameters": PARAMETERS,
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "description": "Tell the time"}}
STEADY = {"temperature": 0, "cache_prompt": False}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with the demo model twice: `plain` and `aware`."""
    async with demo_twice(demo_gguf) as started:
        yield started


async def ask(
    daemon: Daemon, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> tuple[int, dict[str, Any]]:
    """Post and return status and body."""
    async with aiohttp.ClientSession() as session, session.post(daemon.url + path, json=body) as response:
        return response.status, await response.json()


async def test_stream_and_plain_answer_are_the_same_text(daemon: Daemon) -> None:
    """At temperature 0 both forms give the same content, finish reason and usage, under the owner's model
    name.
    """
    body = {
        "model": "plain",
        "messages": [{"role": "user", "content": "Name a colour."}],
        "max_tokens": 12,
        **STEADY,
    }
    status, plain = await ask(daemon, body)
    assert status == 200
    async with aiohttp.ClientSession() as session:
        streamed = await chat(
            session,
            daemon.url,
            "plain",
            "Name a colour.",
            max_tokens=12,
            stream_options={"include_usage": True},
            **STEADY,
        )
    assert streamed.done
    assert streamed.text == plain["choices"][0]["message"]["content"] != ""
    assert streamed.chunks[-1]["usage"] == plain["usage"]
    assert plain["usage"]["completion_tokens"] == 12
    assert plain["choices"][0]["finish_reason"] == "length"
    assert {chunk["model"] for chunk in streamed.chunks} == {plain["model"]} == {"plain"}


async def test_cached_tokens_are_counted(daemon: Daemon) -> None:
    """The second time, most of a prompt comes from the engine's cache, and usage says so."""
    messages = [
        {"role": "user", "content": "Count the sheep on the hill, one after the other, until you sleep."}
    ]
    body = {"model": "plain", "messages": messages, "max_tokens": 1}
    await ask(daemon, body)
    _, answer = await ask(daemon, body)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 10


@pytest.mark.parametrize("model", ["plain", "aware"])
async def test_required_tools_are_called_whatever_the_template_knows(daemon: Daemon, model: str) -> None:
    """tool_choice "required" gives calls of the tools given, with valid arguments, and no prose."""
    body = {
        "model": model,
        "messages": ASK,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 200,
        **STEADY,
    }
    body["parallel_tool_calls"] = False
    status, answer = await ask(daemon, body)
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS)
    assert "Paris" in call["function"]["arguments"]
    assert not choice["message"]["content"]


@pytest.mark.parametrize("model", ["plain", "aware"])
async def test_a_named_function_is_called_and_streams_its_arguments(daemon: Daemon, model: str) -> None:
    """A named function is the one called; in a stream, id and name come once, and the argument pieces join
    to JSON.
    """
    choice = {"type": "function", "function": {"name": "get_weather"}}
    async with aiohttp.ClientSession() as session:
        answer = await chat(
            session,
            daemon.url,
            model,
            "What is the weather in Paris?",
            tools=[CLOCK, WEATHER],
            tool_choice=choice,
            max_tokens=200,
            **STEADY,
        )
    deltas = [
        delta
        for chunk in answer.chunks
        for c in chunk["choices"]
        for delta in c["delta"].get("tool_calls") or []
    ]
    assert [delta["function"]["name"] for delta in deltas if "name" in delta["function"]] == ["get_weather"]
    assert sum("id" in delta for delta in deltas) == 1
    assert {delta["index"] for delta in deltas} == {0}
    assert "city" in json.loads("".join(delta["function"].get("arguments", "") for delta in deltas))
    assert answer.chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_tools_reach_the_prompt_of_a_template_that_knows_none(daemon: Daemon) -> None:
    """With tool_choice auto the prompt grows by the tool list, and with none it does not."""
    body = {"model": "plain", "messages": ASK, "max_tokens": 1, **STEADY}
    _, bare = await ask(daemon, body)
    _, auto = await ask(daemon, {**body, "tools": [WEATHER]})
    _, none = await ask(daemon, {**body, "tools": [WEATHER], "tool_choice": "none"})
    assert auto["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"] + 30
    assert none["usage"]["prompt_tokens"] == bare["usage"]["prompt_tokens"]


@pytest.mark.parametrize("model", ["plain", "aware"])
async def test_json_schema_holds_with_and_without_tools(daemon: Daemon, model: str) -> None:
    """A json_schema answer validates; with tools beside it, the answer is a call of a tool or validates."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}
    body = {"model": model, "messages": ASK, "response_format": form, "max_tokens": 300, **STEADY}
    status, answer = await ask(daemon, body)
    assert status == 200, answer
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), schema)
    status, answer = await ask(daemon, {**body, "tools": [WEATHER]})
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["finish_reason"] in ("stop", "tool_calls")
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    else:
        assert {call["function"]["name"] for call in choice["message"]["tool_calls"]} == {"get_weather"}


async def test_json_object_is_an_object(daemon: Daemon) -> None:
    """response_format json_object gives one JSON object."""
    messages = [{"role": "user", "content": "Give a JSON object with the key name."}]
    form = {"type": "json_object"}
    _, answer = await ask(
        daemon, {"model": "plain", "messages": messages, "response_format": form, "max_tokens": 400, **STEADY}
    )
    choice = answer["choices"][0]
    assert choice["message"]["content"].lstrip().startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_n_stop_seed_and_logprobs(daemon: Daemon) -> None:
    """n=2 gives two choices that a seed repeats; stop is cut out; logprobs cover the tokens with
    alternatives.
    """
    body = {
        "model": "plain",
        "messages": [{"role": "user", "content": "Say a word"}],
        "n": 2,
        "seed": 7,
        "max_tokens": 8,
    }
    body |= {"cache_prompt": False, "temperature": 1.0}
    first, second = (await ask(daemon, body))[1], (await ask(daemon, body))[1]
    texts = [[choice["message"]["content"] for choice in answer["choices"]] for answer in (first, second)]
    assert texts[0] == texts[1]
    assert [choice["index"] for choice in first["choices"]] == [0, 1]
    assert texts[0][0] != texts[0][1]

    body = {
        "model": "plain",
        "messages": [{"role": "user", "content": "Count: one two"}],
        "max_tokens": 24,
        **STEADY,
    }
    _, whole = await ask(daemon, {**body, "logprobs": True, "top_logprobs": 3})
    content = whole["choices"][0]["logprobs"]["content"]
    assert (
        len(content) == whole["usage"]["completion_tokens"] or whole["choices"][0]["finish_reason"] == "stop"
    )
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in content)
    _, bare = await ask(daemon, {**body, "logprobs": True})
    assert all(entry["top_logprobs"] == [] for entry in bare["choices"][0]["logprobs"]["content"])

    text = whole["choices"][0]["message"]["content"]
    word = text.split()[1]
    _, stopped = await ask(daemon, {**body, "stop": word})
    assert stopped["choices"][0]["message"]["content"] == text[: text.index(word)]
    assert stopped["choices"][0]["finish_reason"] == "stop"


async def test_reasoning_comes_apart_from_the_answer(daemon: Daemon) -> None:
    """A template that opens a thought gives reasoning_content; switched off by the request, it gives none."""
    body = {
        "model": "aware",
        "messages": [{"role": "user", "content": "Is snow cold?"}],
        "max_tokens": 60,
        **STEADY,
    }
    _, thinking = await ask(daemon, {**body, "chat_template_kwargs": {"enable_thinking": True}})
    assert thinking["choices"][0]["message"]["reasoning_content"]
    counted = thinking["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < counted <= thinking["usage"]["completion_tokens"]
    _, silent = await ask(daemon, {**body, "chat_template_kwargs": {"enable_thinking": False}})
    assert not silent["choices"][0]["message"].get("reasoning_content")
    assert silent["choices"][0]["message"]["content"]


@pytest.mark.parametrize("model", ["plain", "aware"])
async def test_roles_that_strict_templates_refuse_are_put_right(daemon: Daemon, model: str) -> None:
    """A developer message and a late system message are served by any template; so is assistant content
    null.
    """
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": "Answer in English."},
        {"role": "user", "content": "So?"},
    ]
    body = {"model": model, "messages": messages, "tools": [WEATHER], "max_tokens": 4, **STEADY}
    status, answer = await ask(daemon, {**body, "tool_choice": "none"})
    assert status == 200, answer


async def test_a_prompt_over_the_context_is_refused_with_both_sizes(daemon: Daemon) -> None:
    """400 context_length_exceeded names what was sent and what fits; nothing is cut in silence."""
    body = {"model": "plain", "messages": [{"role": "user", "content": "sheep " * 4000}]}
    for streaming in (False, True):
        status, answer = await ask(daemon, {**body, "stream": streaming})
        assert status == 400
        assert answer["error"]["code"] == "context_length_exceeded"
        assert "2048" in answer["error"]["message"]


async def test_a_schema_the_engine_cannot_enforce_is_the_callers_fault(daemon: Daemon) -> None:
    """A broken JSON schema is a 400 that names response_format."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "bogus"}}}
    body = {"model": "plain", "messages": ASK, "response_format": form}
    status, answer = await ask(daemon, body)
    assert (status, answer["error"]["param"]) == (400, "response_format"), answer


async def test_completions(daemon: Daemon) -> None:
    """Raw prompts, several at once, with echo, logprobs and token ids."""
    body = {"model": "plain", "prompt": ["The capital of France is", "One, two,"], "max_tokens": 3, **STEADY}
    status, answer = await ask(daemon, {**body, "echo": True}, "/v1/completions")
    assert status == 200, answer
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["text"].startswith("The capital of France is")
    assert "Paris" in answer["choices"][0]["text"]
    status, answer = await ask(daemon, {**body, "logprobs": 2}, "/v1/completions")
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 3
    ids = [504, 3575, 282, 4649, 314]
    status, answer = await ask(daemon, {**body, "prompt": ids, "echo": True}, "/v1/completions")
    assert status == 200, answer
    assert answer["choices"][0]["text"].startswith("The capital of France is")


@pytest.mark.parametrize("more", [{"echo": True, "logprobs": 1}, {"suffix": "."}])
async def test_what_the_engine_cannot_do_is_refused_and_not_left_out(
    daemon: Daemon, more: dict[str, Any]
) -> None:
    """Prompt log probabilities and fill-in-the-middle are 400 with the parameter's name, never ignored."""
    status, answer = await ask(daemon, {"model": "plain", "prompt": "Hi", **more}, "/v1/completions")
    assert (status, answer["error"]["param"]) == (400, next(iter(more)))


async def test_the_model_list_tells_state_and_context(daemon: Daemon) -> None:
    """GET /v1/models has every model with OpenAI's fields and what modeld knows of it."""
    async with aiohttp.ClientSession() as session, session.get(f"{daemon.url}/v1/models") as response:
        models = {model["id"]: model for model in (await response.json())["data"]}
    assert set(models) == {"plain", "aware"}
    assert models["plain"]["object"] == "model"
    assert models["plain"]["modeld"]["state"] == "ready"
    assert models["plain"]["modeld"]["context_length"] == 2048

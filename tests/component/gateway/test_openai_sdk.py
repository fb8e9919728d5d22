"""The stock SDK with strict validation: every body and every chunk must be what OpenAI would send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
    ChatCompletionTokenLogprob,
)

from modeld.errors import ModelFailed, WorkerDied
from modeld.protocol.tasks import Finish, Reasoning, Text, TokenLogprob, ToolCallDelta, TopLogprob, Usage
from modeld.supervisor.admission import Priority
from tests.component.gateway.served import Serve, Served
from tests.fakes.pool import Answer, FakePool, choices_of, last_chat, model, said

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
TOOLS: list[ChatCompletionFunctionToolParam] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
]
USAGE = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2, reasoning_tokens=1)
CALLS: list[Answer] = [
    [ToolCallDelta(0, "", "call_a", "f")],
    [ToolCallDelta(0, '{"x"'), ToolCallDelta(0, ":1}")],
    [ToolCallDelta(1, "{}", "call_b", "f")],
    [Finish("tool_calls"), USAGE],
    None,
]
TOKEN = TokenLogprob(
    "Hi", -0.25, (72, 105), (TopLogprob("Hi", -0.25, (72, 105)), TopLogprob("Yo", -2.0, None))
)


@asynccontextmanager
async def _client(gateway: Served, key: str = "any", *, at: str = "") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}{at}/v1", api_key=key, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def _serve(serve: Serve, *script: Answer) -> Served:
    return await serve(FakePool(answer=lambda _name, _task: list(script)) if script else FakePool())


async def test_models(serve: Serve) -> None:
    """Listing and retrieving."""
    async with _client(await serve()) as client:
        assert [card.id async for card in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "modeld"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("nope")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("at", ["", "/side"])
@pytest.mark.parametrize("name", ["tiny", "gpt-4o"])
async def test_any_gateway_and_any_name_of_a_model(serve: Serve, at: str, name: str) -> None:
    """With nothing but another base_url, the SDK lists, finds and calls a gateway's models, by alias too."""
    side = at.removeprefix("/")
    pool = FakePool.of(
        model("tiny", gateway=side, aliases=("gpt-4o",)), model("tiny", gateway="elsewhere", aliases=("x",))
    )
    async with _client(await serve(pool), at=at) as client:
        assert [card.id async for card in client.models.list()] == ["tiny", "gpt-4o"]
        assert (await client.models.retrieve(name)).id == name
        answer = await client.chat.completions.create(
            model=name,
            messages=MESSAGES,
            extra_body={"keep_alive": "1h"},
            extra_headers={"X-Modeld-Priority": "background"},
        )
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=name, messages=MESSAGES, stream=True
            )
        ]
        completion = await client.completions.create(model=name, prompt="x")
        with pytest.raises(openai.NotFoundError, match="did you mean 'tiny'"):
            await client.chat.completions.create(model="TINY", messages=MESSAGES)
    assert {answer.model, completion.model, *(chunk.model for chunk in chunks)} == {name}
    assert {call.model for call in pool.calls} == {f"{side}/tiny".lstrip("/")}
    assert [(call.keep_alive, call.priority) for call in pool.calls] == [
        (3600.0, Priority.BACKGROUND),
        (None, Priority.INTERACTIVE),
        (None, Priority.INTERACTIVE),
    ]


async def test_an_unknown_gateway_is_the_sdk_s_not_found(serve: Serve) -> None:
    """A wrong base_url is told from a wrong model by its code."""
    async with _client(await serve(), at="/nope") as client:
        with pytest.raises(openai.NotFoundError, match="no gateway 'nope'") as caught:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert caught.value.code == "gateway_not_found"


async def test_chat(serve: Serve) -> None:
    """A plain answer, with the request id where the SDK looks for it."""
    async with _client(await serve()) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello."
    assert answer.choices[0].finish_reason == "stop"
    assert answer._request_id is not None


async def test_chat_stream(serve: Serve) -> None:
    """Deltas in order, usage in the last chunk when asked for."""
    gateway = await _serve(serve, [Text("Hel")], [Text("lo")], [Finish("length")], [USAGE], None)
    async with _client(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hello"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    assert (usage.total_tokens, usage.prompt_tokens_details.cached_tokens) == (7, 2)
    assert usage.completion_tokens_details.reasoning_tokens == 1


async def test_tools(serve: Serve) -> None:
    """Two parallel calls, whole: content is None, arguments are text."""
    gateway = await _serve(serve, *CALLS)
    async with _client(gateway) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="required"
        )
    message = answer.choices[0].message
    assert message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    calls = [(call.id, call.function.arguments) for call in message.tool_calls if call.type == "function"]
    assert calls == [("call_a", '{"x":1}'), ("call_b", "{}")]
    assert last_chat(gateway.pool).tool_choice.mode == "required"


async def test_tools_in_the_stream_helper(serve: Serve) -> None:
    """The SDK's own accumulator puts two parallel calls together."""
    async with (
        _client(await _serve(serve, *CALLS)) as client,
        client.chat.completions.stream(model="tiny", messages=MESSAGES, tools=TOOLS) as stream,
    ):
        answer = await stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("call_a", "f", '{"x":1}'),
        ("call_b", "f", "{}"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(serve: Serve, stream: bool) -> None:
    """Chat's log probabilities, whole and in chunks."""
    gateway = await _serve(serve, [Text("Hi", logprobs=(TOKEN,))], [Finish("stop"), USAGE], None)
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    found: list[ChatCompletionTokenLogprob] = []
    async with _client(gateway) as client:
        if stream:
            async for chunk in await client.chat.completions.create(**options, stream=True):
                logprobs = chunk.choices[0].logprobs
                found += logprobs.content or [] if logprobs else []
        else:
            answer = await client.chat.completions.create(**options)
            assert answer.choices[0].logprobs is not None
            found = answer.choices[0].logprobs.content or []
    assert [(token.token, token.logprob, token.bytes) for token in found] == [("Hi", -0.25, [72, 105])]
    assert [(top.token, top.bytes) for top in found[0].top_logprobs] == [("Hi", [72, 105]), ("Yo", None)]
    assert last_chat(gateway.pool).top_logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_two_choices(serve: Serve, stream: bool) -> None:
    """n=2 gives two choices with their own indexes and finishes."""
    gateway = await serve(FakePool(answer=lambda _name, task: said("a b", n=choices_of(task))))
    async with _client(gateway) as client:
        if stream:
            texts = {0: "", 1: ""}
            finishes: dict[int, str] = {}
            async for chunk in await client.chat.completions.create(
                model="tiny", messages=MESSAGES, n=2, stream=True
            ):
                for part in chunk.choices:
                    texts[part.index] += part.delta.content or ""
                    if part.finish_reason:
                        finishes[part.index] = part.finish_reason
            assert texts == {0: "a b", 1: "a b"}
            assert finishes == {0: "stop", 1: "stop"}
        else:
            answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
            assert [(choice.index, choice.message.content) for choice in answer.choices] == [
                (0, "a b"),
                (1, "a b"),
            ]


async def test_reasoning_is_beside_the_answer(serve: Serve) -> None:
    """Thinking is readable as reasoning_content and not mixed with the text."""
    gateway = await _serve(serve, [Reasoning("hm")], [Text("4")], [Finish("stop"), USAGE], None)
    async with _client(gateway) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    message = answer.choices[0].message
    assert (message.content, getattr(message, "reasoning_content", None)) == ("4", "hm")


async def test_completions(serve: Serve) -> None:
    """The older API, with its own logprobs."""
    gateway = await _serve(serve, [Text("Hi", logprobs=(TOKEN,))], [Finish("stop"), USAGE], None)
    async with _client(gateway) as client:
        answer = await client.completions.create(model="tiny", prompt="x", logprobs=2)
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert (choice.text, choice.logprobs.tokens, choice.logprobs.text_offset) == ("Hi", ["Hi"], [0])
    assert choice.logprobs.top_logprobs == [{"Hi": -0.25, "Yo": -2.0}]


async def test_keep_alives_are_invisible(serve: Serve) -> None:
    """Comments during a long load do not disturb the SDK's parser."""
    pool = FakePool(answer=lambda _name, _task: [])
    gateway = await serve(pool, keepalive_interval=0.01)
    async with _client(gateway) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        pool.streams[0].feed(*said("late"))
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == "late"


async def test_errors_are_the_sdk_s_exceptions(serve: Serve) -> None:
    """Status, code and param arrive in the exception a caller catches."""
    gateway = await serve(FakePool(answer=lambda _name, _task: ModelFailed("no such file")), api_keys=("k",))
    async with _client(gateway, "k") as client:
        with pytest.raises(openai.InternalServerError, match="no such file") as failed:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    async with _client(gateway, "wrong") as client:
        with pytest.raises(openai.AuthenticationError) as stranger:
            await client.models.list()
    assert (failed.value.status_code, failed.value.code) == (503, "model_failed")
    assert failed.value.request_id is not None
    assert (bad.value.code, bad.value.param) == ("invalid_value", "temperature")
    assert stranger.value.code == "invalid_api_key"


async def test_a_death_in_the_middle_raises(serve: Serve) -> None:
    """The SDK raises at the error event; nobody takes the broken answer for a whole one."""
    gateway = await _serve(serve, [Text("Hel")], WorkerDied("killed by signal 9"))
    async with _client(gateway) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="killed by signal 9"):
            async for _ in stream:
                pass

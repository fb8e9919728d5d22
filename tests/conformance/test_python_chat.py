"""`openai` for Python, strict, on chat: models, plain answers, streams, sampling, leaving early."""

from __future__ import annotations

import secrets

import openai
import pytest

from tests.conformance.python_sdk import Sdk
from tests.conformance.questions import ASK, STEADY, user
from tests.harness.daemon import Daemon

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

COLOUR = {"model": "plain", "messages": user("Name a colour."), "max_tokens": 12, **STEADY}
LONG = 1500
"""Tokens that take seconds on any machine: what ends earlier was stopped."""


async def test_models_are_listed_and_retrieved(sdk: Sdk) -> None:
    """models.list gives every model, and models.retrieve the same card."""
    listed = {model.id: model for model in await sdk.models()}
    assert set(listed) == {"plain", "aware"}
    one = await sdk.call("models.retrieve", model="plain")
    assert one == listed["plain"]
    assert one.object == "model"


async def test_a_plain_answer(sdk: Sdk) -> None:
    """chat.completions.create gives text, finish reason, usage that adds up and a request id."""
    answer = await sdk.chat(**COLOUR)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "length"
    assert answer.model == "plain"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert (answer._request_id or "").startswith("req_")


async def test_a_stream_is_the_plain_answer_in_pieces(sdk: Sdk) -> None:
    """Chunks share id, time and model; the first has the role, the last the finish reason; the pieces join to
    the plain answer; nobody gets usage unasked.
    """
    plain = await sdk.chat(**COLOUR)
    chunks = await sdk.chunks(**COLOUR)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == plain.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_include_usage_adds_one_chunk_without_choices(sdk: Sdk) -> None:
    """With include_usage the last chunk has usage and no choices, and all others have null."""
    *before, last = await sdk.chunks(**COLOUR, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 12
    assert before
    assert all(chunk.usage is None and chunk.choices for chunk in before)


async def test_the_stream_helper_puts_the_answer_together(sdk: Sdk) -> None:
    """chat.completions.stream gives content events that join to its own final answer; it is one that ends by
    itself, since the helper takes one that is cut off for an error.
    """
    whole = (await sdk.chat(**COLOUR)).choices[0].message.content or ""
    body = {**COLOUR, "stop": whole.split()[-1]}
    streamed = await sdk.helper(**body, stream_options={"include_usage": True})
    text = "".join(event.delta for event in streamed.events if event.type == "content.delta")
    assert text == streamed.final.choices[0].message.content != ""
    assert [event.content for event in streamed.events if event.type == "content.done"] == [text]
    assert streamed.final.usage is not None
    assert streamed.final.choices[0].finish_reason == "stop"


async def test_two_choices_plain_and_streamed(sdk: Sdk) -> None:
    """n=2 gives choices 0 and 1, in a stream too, each with its own text and finish reason."""
    body = {**COLOUR, "n": 2, "temperature": 1.0, "max_tokens": 6}
    answer = await sdk.chat(**body)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.content for choice in answer.choices)
    chunks = await sdk.chunks(**body)
    for index in (0, 1):
        parts = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(part.delta.content or "" for part in parts)
        assert parts[-1].finish_reason in ("length", "stop")
        assert all(part.finish_reason is None for part in parts[:-1])


async def test_logprobs_are_the_text_token_by_token(sdk: Sdk) -> None:
    """The tokens' bytes join to the text; each has as many alternatives as asked for; a stream has the same
    tokens.
    """
    body = {**COLOUR, "logprobs": True, "top_logprobs": 3}
    [choice] = (await sdk.chat(**body)).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == choice.message.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens)
    streamed = [
        token.token
        for chunk in await sdk.chunks(**body)
        if (logprobs := chunk.choices[0].logprobs) is not None
        for token in logprobs.content or ()
    ]
    assert streamed == [token.token for token in tokens]
    [bare] = (await sdk.chat(**COLOUR, logprobs=True)).choices
    assert bare.logprobs is not None
    assert bare.logprobs.content
    assert all(token.top_logprobs == [] for token in bare.logprobs.content)


async def test_stop_is_cut_out(sdk: Sdk) -> None:
    """The text ends before the stop sequence, given as text or as a list, also when streamed."""
    text = (await sdk.chat(**COLOUR)).choices[0].message.content or ""
    word = text.split()[2]
    for stop in (word, ["never said", word]):
        [choice] = (await sdk.chat(**COLOUR, stop=stop)).choices
        assert choice.message.content == text[: text.index(word)]
        assert choice.finish_reason == "stop"
    chunks = await sdk.chunks(**COLOUR, stop=word)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text[: text.index(word)]
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_seed_repeats_an_answer(sdk: Sdk) -> None:
    """The same seed gives the same text at a temperature that gives others without it."""
    body = {**COLOUR, "temperature": 1.5, "extra_body": {"cache_prompt": False}}
    texts = [(await sdk.chat(**body, seed=seed)).choices[0].message.content for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


async def test_the_developer_role_is_the_system_role(sdk: Sdk) -> None:
    """A developer message reaches the prompt as a system message does."""
    lengths = []
    for role in ("developer", "system"):
        messages = [{"role": role, "content": "Answer in one word."}, *ASK]
        answer = await sdk.chat(model="plain", messages=messages, max_tokens=1)
        assert answer.usage is not None
        lengths.append(answer.usage.prompt_tokens)
    assert lengths[0] == lengths[1]


async def test_raw_responses_carry_the_headers(sdk: Sdk) -> None:
    """with_raw_response shows x-request-id and openai-processing-ms, for answers and streams alike."""
    for extra in ({}, {"stream": True}):
        headers = await sdk.headers(**COLOUR, **extra)
        assert headers["x-request-id"].startswith("req_")
        assert int(headers["openai-processing-ms"]) >= 0


async def test_leaving_a_stream_stops_the_engine(sdk: Sdk, daemon: Daemon) -> None:
    """A client that closes its stream after one chunk leaves no request behind, and the log says that it
    left.
    """
    body = {**COLOUR, "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
    ids = [await sdk.leave(**body) for _ in range(3)]  # more than there are slots
    await daemon.until_idle("plain", within=60.0)
    for request_id in ids:
        assert "status=499" in await daemon.line(request_id)
    assert (await sdk.chat(**{**COLOUR, "max_tokens": 1})).choices


async def test_giving_up_on_a_plain_answer_stops_the_engine(sdk: Sdk, daemon: Daemon) -> None:
    """A client whose own time limit passes leaves no request behind either; the log has it under the client's
    id.
    """
    mine = f"mine-{secrets.token_hex(4)}"
    body = {**COLOUR, "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        await sdk.chat(**body, timeout=1.0, extra_headers={"x-request-id": mine})
    await daemon.until_idle("plain", within=60.0)
    assert "status=499" in await daemon.line(mine)

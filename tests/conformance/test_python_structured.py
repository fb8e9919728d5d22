"""`openai` for Python, strict, on what must have a form: tools and schemas."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.conformance.python_sdk import Sdk
from tests.conformance.questions import ASK, CLOCK, FORMAT, NAMED, SCHEMA, STEADY, TOOL, Weather, user

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

FORCED: dict[str, Any] = {"model": "plain", "messages": ASK, "max_tokens": 200, **STEADY}
TWO_CALLS = (
    "Weather in Paris?",
    "What is the weather in Paris, and what is it in Rome?",
    "Call get_weather for Paris, then for Rome.",
    "Paris, Rome.",
)
"""Questions of which at least one makes the model call twice; how often it calls is its own choice."""

MODELS = pytest.mark.parametrize("model", ["plain", "aware"])


@MODELS
async def test_required_tools_are_called_and_their_answer_taken_back(sdk: Sdk, model: str) -> None:
    """tool_choice "required" without parallel calls gives one valid call; its message, with content null,
    goes back as the SDK holds it, with the tool's result, and is answered.
    """
    body = {**FORCED, "model": model, "tools": [TOOL]}
    answer = await sdk.chat(**body, tool_choice="required", parallel_tool_calls=False)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)

    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*ASK, choice.message, result]
    silent = {"chat_template_kwargs": {"enable_thinking": False}}
    again = await sdk.chat(
        **{**body, "messages": messages, "max_tokens": 4}, tool_choice="none", extra_body=silent
    )
    assert again.choices[0].message.tool_calls is None
    assert again.choices[0].message.content


@MODELS
async def test_a_named_function_streams_its_arguments(sdk: Sdk, model: str) -> None:
    """Id, type and name come once, first; argument pieces, several of them, join to JSON that fits the
    schema.
    """
    chunks = await sdk.chunks(**{**FORCED, "model": model}, tools=[CLOCK, TOOL], tool_choice=NAMED)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert {call.index for call in calls} == {0}
    functions = [call.function for call in calls]
    assert all(function is not None for function in functions)
    assert [call.id is not None for call in calls] == [True] + [False] * (len(calls) - 1)
    assert [function.name for function in functions if function] == ["get_weather"] + [None] * (
        len(calls) - 1
    )
    pieces = [function.arguments or "" for function in functions if function]
    assert sum(map(bool, pieces)) > 1
    jsonschema.validate(json.loads("".join(pieces)), SCHEMA)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_several_calls_have_their_own_index_in_a_stream(sdk: Sdk) -> None:
    """With parallel calls allowed, a stream's calls are numbered from 0, each with an id of its own, each
    whole.
    """
    most = 0
    for question in TWO_CALLS:
        body = {**FORCED, "messages": user(question), "max_tokens": 400}
        chunks = await sdk.chunks(**body, tools=[TOOL], tool_choice="required")
        arguments: dict[int, str] = {}
        ids: list[str] = []
        for call in (call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()):
            assert call.function is not None
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
            ids += [call.id] if call.id else []
        assert list(arguments) == list(range(len(ids)))
        assert len(set(ids)) == len(ids)
        for text in arguments.values():
            jsonschema.validate(json.loads(text), SCHEMA)
        most = max(most, len(ids))
        if most > 1:
            break
    assert most > 1, "no question made the model call twice"


async def test_the_sdk_parses_calls_into_the_callers_type(sdk: Sdk) -> None:
    """parse and the stream helper both give the call's arguments as the caller's pydantic model."""
    body = {**FORCED, "tools": [TOOL], "tool_choice": NAMED}
    parsed = await sdk.parse(**body)
    [call] = parsed.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    streamed = await sdk.helper(**body)
    [done] = [event for event in streamed.events if event.type == "tool_calls.function.arguments.done"]
    assert done.name == "get_weather"
    assert done.parsed_arguments == call.function.parsed_arguments
    [final] = streamed.final.choices[0].message.tool_calls or []
    assert final.function.parsed_arguments == done.parsed_arguments


@MODELS
async def test_json_schema_holds(sdk: Sdk, model: str) -> None:
    """A json_schema answer validates, plain and streamed."""
    body = {**FORCED, "model": model, "response_format": FORMAT}
    [choice] = (await sdk.chat(**body)).choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in await sdk.chunks(**body))
    jsonschema.validate(json.loads(text), SCHEMA)


async def test_the_sdk_parses_an_answer_into_the_callers_type(sdk: Sdk) -> None:
    """parse and the stream helper, given a pydantic model, give an instance of it."""
    parsed = await sdk.parse(**FORCED, response_format=Weather)
    assert isinstance(parsed.choices[0].message.parsed, Weather)
    streamed = await sdk.helper(**FORCED, response_format=Weather)
    assert streamed.final.choices[0].message.parsed == parsed.choices[0].message.parsed


async def test_json_object_is_an_object(sdk: Sdk) -> None:
    """response_format json_object gives one JSON object, or as much of it as fits."""
    messages = user('Answer with this JSON: {"name": "Rex"}')
    form = {"type": "json_object"}
    [choice] = (await sdk.chat(**{**FORCED, "messages": messages}, response_format=form)).choices
    text = choice.message.content or ""
    assert text.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    else:
        assert choice.finish_reason == "length"

"""`openai` for Python, strict, on the Responses API with the real SmolLM2: answers, streams, forms, chains,
conversations, tool calls that its grammar forces, and what is kept of them.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.responses import ParsedResponse, Response

from tests.conformance.python_sdk import Sdk
from tests.conformance.questions import SCHEMA, Weather
from tests.conformance.responses_daemon import CREATE, FORCED, RETRIEVE, WEATHER, helped, until
from tests.harness.daemon import Daemon
from tests.harness.responses import check_stream

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

COLOUR: dict[str, Any] = {
    "model": "plain",
    "input": "Name a colour.",
    "max_output_tokens": 8,
    "temperature": 0,
}
FORMED: dict[str, Any] = {
    "model": "plain",
    "input": "What is the weather in Paris?",
    "text": {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}},
    "temperature": 0,
    "max_output_tokens": 100,
}
"""Ends by itself within its limit, since its form leaves no room for more."""


async def respond(sdk: Sdk, **body: Any) -> Response:
    """Ask for a response."""
    answer = await sdk.call(CREATE, **body)
    assert isinstance(answer, Response)
    return answer


def length(response: Response) -> int:
    """Return how many tokens a response has read."""
    assert response.usage is not None
    return response.usage.input_tokens


async def test_an_answer(sdk: Sdk) -> None:
    """responses.create gives one finished message, the parameters it was asked with, usage that adds up."""
    answer = await respond(sdk, **FORMED, metadata={"who": "me"}, user="someone", safety_identifier="s")
    assert answer.status == "completed"
    assert answer.completed_at is not None
    assert answer.completed_at >= answer.created_at
    [message] = answer.output
    assert message.type == "message"
    assert (message.role, message.status) == ("assistant", "completed")
    jsonschema.validate(json.loads(answer.output_text), SCHEMA)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens > 4
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert (answer.model, answer.temperature, answer.max_output_tokens) == ("plain", 0, 100)
    assert (answer.metadata, answer.user, answer.safety_identifier) == ({"who": "me"}, "someone", "s")
    assert answer.service_tier == "default"
    assert (answer._request_id or "").startswith("req_")
    assert await sdk.call(RETRIEVE, response_id=answer.id) == answer


async def test_an_answer_that_is_cut(sdk: Sdk) -> None:
    """max_output_tokens ends an answer as incomplete; the stream helper has its own words for that."""
    answer = await respond(sdk, **COLOUR)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.completed_at is None
    assert answer.usage is not None
    assert answer.usage.output_tokens == 8
    [message] = answer.output
    assert message.type == "message"
    assert message.status == "incomplete"
    with pytest.raises(RuntimeError, match=r"response\.completed"):
        await helped(sdk, **COLOUR)


async def test_a_stream_is_the_plain_answer_in_pieces(sdk: Sdk) -> None:
    """The events are in order and whole, and their text is the plain answer's."""
    plain = await respond(sdk, **COLOUR)
    events = await sdk.items(CREATE, stream=True, **COLOUR)
    final = check_stream([event.to_dict() for event in events])
    assert [event.type for event in events].count("response.output_text.delta") > 1
    assert final["output"][0]["content"][0]["text"] == plain.output_text != ""
    assert final["usage"]["output_tokens"] == 8
    kept = await respond(sdk, **{**COLOUR, "max_output_tokens": 1}, previous_response_id=final["id"])
    assert kept.previous_response_id == final["id"]


async def test_the_callers_own_type(sdk: Sdk) -> None:
    """responses.parse and the stream helper read an answer as the caller's pydantic model."""
    body = {key: value for key, value in FORMED.items() if key != "text"}
    parsed = await sdk.call("responses.parse", **body, text_format=Weather)
    assert isinstance(parsed, ParsedResponse)
    assert isinstance(parsed.output_parsed, Weather)
    streamed = await helped(sdk, **body, text_format=Weather)
    assert streamed.final.output_parsed == parsed.output_parsed
    [done] = [event for event in streamed.events if event.type == "response.output_text.done"]
    assert done.parsed == parsed.output_parsed
    assert streamed.final.output_text == "".join(
        event.delta for event in streamed.events if event.type == "response.output_text.delta"
    )


async def test_json_object(sdk: Sdk) -> None:
    """text.format json_object gives an object, cut short or whole."""
    answer = await respond(sdk, **{**COLOUR, "text": {"format": {"type": "json_object"}}})
    assert answer.output_text.lstrip().startswith("{")
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_object"


async def test_a_chain(sdk: Sdk) -> None:
    """A response goes on from an earlier one: it reads what that read and said, its instructions excepted."""
    short = {**COLOUR, "max_output_tokens": 2}
    told = {**short, "instructions": "Answer in one word, and never in two."}
    first = await respond(sdk, **told)
    second = await respond(sdk, **short, previous_response_id=first.id)
    third = await respond(sdk, **short, previous_response_id=second.id)
    fork = await respond(sdk, **short, previous_response_id=first.id)
    question = {"role": "user", "content": COLOUR["input"]}
    said = {"role": "assistant", "content": first.output_text}
    spelled = await respond(sdk, **{**short, "input": [question, said, question]})
    assert first.instructions is not None
    assert second.instructions is None
    assert length(second) == length(fork) == length(spelled) < length(third)
    items = await sdk.items("responses.input_items.list", response_id=third.id, order="asc")
    assert [item.content[0].text for item in items][-1] == "Name a colour."


async def test_a_conversation(sdk: Sdk) -> None:
    """Responses read a conversation's items and add their own; it can be read and changed in between."""
    made = await sdk.call(
        "conversations.create",
        metadata={"topic": "colours"},
        items=[{"type": "message", "role": "user", "content": "I like blue."}],
    )
    assert (made.id[:5], made.metadata) == ("conv_", {"topic": "colours"})
    short = {**COLOUR, "max_output_tokens": 2, "conversation": made.id}
    alone = await respond(sdk, **{**COLOUR, "max_output_tokens": 2})
    first = await respond(sdk, **short)
    second = await respond(sdk, **{**short, "conversation": {"id": made.id}})
    assert length(alone) < length(first) < length(second)
    assert second.conversation is not None
    assert second.conversation.id == made.id
    items = await sdk.items("conversations.items.list", conversation_id=made.id, order="asc")
    assert [item.role for item in items] == ["user", "user", "assistant", "user", "assistant"]
    await sdk.call("conversations.items.delete", conversation_id=made.id, item_id=items[0].id)
    [added] = (
        await sdk.call(
            "conversations.items.create",
            conversation_id=made.id,
            items=[
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Or red."}]}
            ],
        )
    ).data
    one = await sdk.call("conversations.items.retrieve", conversation_id=made.id, item_id=added.id)
    assert one == added
    changed = await sdk.call("conversations.update", conversation_id=made.id, metadata={"topic": "red"})
    assert changed.metadata == {"topic": "red"}
    assert await sdk.call("conversations.retrieve", conversation_id=made.id) == changed
    newest = await sdk.items("conversations.items.list", conversation_id=made.id, limit=2)
    assert newest[0].id == added.id
    assert len(newest) == 5
    gone = await sdk.call("conversations.delete", conversation_id=made.id)
    assert gone.deleted
    with pytest.raises(openai.NotFoundError):
        await respond(sdk, **short)


async def test_a_tool_loop(sdk: Sdk) -> None:
    """A forced call has arguments that fit; its output, sent to the chain, gives an answer in words."""
    body = {
        "model": "aware",
        "temperature": 0,
        "max_output_tokens": 100,
        "tools": [WEATHER],
        "reasoning": {"effort": "none"},
    }
    first = await respond(sdk, **body, input="What is the weather in Paris?", tool_choice=FORCED)
    [call] = first.output
    assert call.type == "function_call"
    assert (call.name, call.status, first.status) == ("get_weather", "completed", "completed")
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 22 degrees"}
    second = await respond(
        sdk,
        **{**body, "max_output_tokens": 6},
        input=[output],
        previous_response_id=first.id,
        tool_choice="none",
    )
    assert second.output_text
    # the same without a chain: the caller sends all items back, as they came
    third = await respond(
        sdk,
        **{**body, "max_output_tokens": 6},
        input=[{"role": "user", "content": "What is the weather in Paris?"}, call.to_dict(), output],
        tool_choice="none",
        store=False,
    )
    assert third.output_text == second.output_text
    assert length(third) == length(second)


async def test_a_streamed_tool_call(sdk: Sdk) -> None:
    """A call's arguments come in pieces, and the helper parses them as the caller's model."""
    body = {
        "model": "plain",
        "input": "What is the weather in Paris?",
        "tools": [openai.pydantic_function_tool(Weather, name="get_weather")],
        "tool_choice": "required",
        "temperature": 0,
        "max_output_tokens": 100,
    }
    streamed = await helped(sdk, **body)
    deltas = [event for event in streamed.events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    [call] = streamed.final.output
    assert call.type == "function_call"
    assert deltas[-1].snapshot == call.arguments
    assert isinstance(call.parsed_arguments, Weather)


async def test_thoughts(sdk: Sdk) -> None:
    """SmolLM2, whose template has it think, does so in an item of its own; sealed, the thought can be sent
    back and is read again, though nothing of it was kept.
    """
    body: dict[str, Any] = {
        "model": "aware",
        "input": [{"role": "user", "content": "Name a colour."}],
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 40,
        "temperature": 0,
        "store": False,
    }
    first = await respond(sdk, **body)
    thought, *answer = first.output
    assert thought.type == "reasoning"
    assert thought.encrypted_content
    assert thought.content
    assert thought.content[0].text not in thought.encrypted_content
    assert first.usage is not None
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    rest = [*(item.to_dict() for item in answer), {"role": "user", "content": "And another?"}]
    short = {**body, "max_output_tokens": 1}
    with_it = await respond(sdk, **{**short, "input": [*body["input"], sealed, *rest]})
    without = await respond(sdk, **{**short, "input": [*body["input"], *rest]})
    assert length(with_it) > length(without)
    events = await sdk.items(CREATE, stream=True, **body, reasoning={"summary": "auto"})
    final = check_stream([event.to_dict() for event in events])
    assert final["output"][0]["summary"][0]["text"] == thought.content[0].text
    assert final["output"][0]["encrypted_content"]


async def test_allowed_tools(sdk: Sdk) -> None:
    """Of two tools only the allowed one can be called, here required: the engine's grammar has no other."""
    clock = {"type": "function", "name": "get_time", "parameters": None, "strict": False}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [FORCED]}
    answer = await respond(
        sdk,
        model="plain",
        input="What time is it?",
        tools=[clock, WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_output_tokens=100,
        temperature=0,
    )
    [call] = answer.output
    assert call.type == "function_call"
    assert call.name == "get_weather"


async def test_logprobs(sdk: Sdk) -> None:
    """Log probabilities come where they are asked for, token by token, in a stream as in the plain answer."""
    body = {**COLOUR, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = await respond(sdk, **body)
    [message] = answer.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs
    assert b"".join(bytes(token.bytes) for token in part.logprobs).decode() == part.text
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)
    events = await sdk.items(CREATE, stream=True, **body)
    check_stream([event.to_dict() for event in events])
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [one.token for delta in deltas for one in delta.logprobs] == [one.token for one in part.logprobs]


async def test_input_items_in_pages(sdk: Sdk) -> None:
    """What a response was given is listed, newest first or in order, in pages, with ids for all."""
    turns = [{"role": "user", "content": f"Number {number}."} for number in range(5)]
    answer = await respond(sdk, **{**COLOUR, "input": turns, "max_output_tokens": 1})
    both = [
        await sdk.items("responses.input_items.list", response_id=answer.id, order=order, limit=2)
        for order in ("asc", "desc")
    ]
    assert [item.content[0].text for item in both[0]] == [turn["content"] for turn in turns]
    assert both[1] == both[0][::-1]
    assert len({item.id for item in both[0]}) == 5
    rest = await sdk.call("responses.input_items.list", response_id=answer.id, after=both[1][1].id, limit=100)
    assert [item.id for item in rest.data] == [item.id for item in both[1][2:]]
    assert rest.has_more is False


async def test_deleting(sdk: Sdk) -> None:
    """A deleted response is gone: for retrieve, for its items, and for who wants to go on from it."""
    answer = await respond(sdk, **COLOUR)
    assert await sdk.call("responses.delete", response_id=answer.id) is None
    for method, arguments in (
        (RETRIEVE, {"response_id": answer.id}),
        ("responses.delete", {"response_id": answer.id}),
        ("responses.input_items.list", {"response_id": answer.id}),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.call(method, **arguments)
        assert answer.id in caught.value.message
        assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(sdk, **COLOUR, previous_response_id=answer.id)
    assert (refused.value.code, refused.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )


async def test_nothing_is_kept_unasked(sdk: Sdk) -> None:
    """With store=False a response can neither be read nor continued."""
    answer = await respond(sdk, **COLOUR, store=False)
    with pytest.raises(openai.NotFoundError):
        await sdk.call(RETRIEVE, response_id=answer.id)
    with pytest.raises(openai.BadRequestError):
        await respond(sdk, **COLOUR, previous_response_id=answer.id)


async def test_tokens_are_counted_beforehand(sdk: Sdk) -> None:
    """responses.input_tokens.count gives what a response then reads, also on a chain and with tools."""
    count = "responses.input_tokens.count"
    text = {"model": "aware", "input": "Name a colour."}
    first = await respond(sdk, **text, max_output_tokens=1)
    assert (await sdk.call(count, **text)).input_tokens == length(first)
    more = {**text, "previous_response_id": first.id, "tools": [WEATHER], "instructions": "Be brief."}
    second = await respond(sdk, **more, max_output_tokens=1)
    assert (await sdk.call(count, **more)).input_tokens == length(second) > length(first)


@pytest.mark.parametrize(
    ("more", "kind", "code", "param"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 9}, openai.BadRequestError, None, "temperature"),
        ({"max_tool_calls": 0}, openai.BadRequestError, None, "max_tool_calls"),
        ({"metadata": {"a" * 65: "x"}}, openai.BadRequestError, None, "metadata"),
        ({"input": []}, openai.BadRequestError, None, "input"),
        ({"input": "sheep " * 4000}, openai.BadRequestError, "context_length_exceeded", None),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, None, "tools[0].type"),
        ({"tool_choice": "required"}, openai.BadRequestError, None, "tool_choice"),
        (
            {"tool_choice": {"type": "mcp", "server_label": "s"}},
            openai.BadRequestError,
            None,
            "tool_choice",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            openai.BadRequestError,
            None,
            "text.format.schema",
        ),
        ({"include": ["everything"]}, openai.BadRequestError, None, "include[0]"),
        (
            {"previous_response_id": "resp_0", "conversation": "conv_0"},
            openai.BadRequestError,
            None,
            None,
        ),
        (
            {"previous_response_id": "resp_0"},
            openai.BadRequestError,
            "previous_response_not_found",
            "previous_response_id",
        ),
        ({"conversation": "conv_0"}, openai.NotFoundError, None, None),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            openai.BadRequestError,
            None,
            "input",
        ),
    ],
)
async def test_refusals(
    sdk: Sdk, more: dict[str, Any], kind: Any, code: str | None, param: str | None
) -> None:
    """What cannot be is the SDK's own exception with its param, plain and before a stream begins."""
    body = {**COLOUR, **more}
    with pytest.raises(kind) as plain:
        await respond(sdk, **body)
    with pytest.raises(kind) as streamed:
        await sdk.items(CREATE, stream=True, **body)
    for error in (plain.value, streamed.value):
        assert error.type == "invalid_request_error"
        assert error.request_id.startswith("req_")
        if code is not None:
            assert error.code == code
        if param is not None:
            assert (error.param or "").startswith(param)


async def test_leaving_a_stream_stops_the_engine(sdk: Sdk, daemon: Daemon) -> None:
    """A caller that leaves frees the model, and nothing is kept of what it left."""
    body = {**COLOUR, "input": "Count from one to a thousand.", "max_output_tokens": 1500}
    events = await until(sdk, CREATE, lambda event: event.type == "response.output_text.delta", **body)
    await daemon.until_idle("plain", within=60.0)
    with pytest.raises(openai.NotFoundError):
        await sdk.call(RETRIEVE, response_id=events[0].response.id)

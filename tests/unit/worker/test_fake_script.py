from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from modeld.config.engines import FakeConfig
from modeld.errors import BadRequest, EngineError
from modeld.protocol.messages import LoadSpec
from modeld.protocol.tasks import (
    ChatTask,
    CountTask,
    Event,
    Finish,
    FunctionTool,
    ImagePart,
    Message,
    Reasoning,
    Sampling,
    Task,
    Text,
    TextPart,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from modeld.worker.loaders.fake import load

USER = Message(role="user", content="hello there")
TOOLS = (FunctionTool(name="add"), FunctionTool(name="sub"))
CALLED = Message(role="assistant", tool_calls=(ToolCall(id="call_1", name="add", arguments="{}"),))
RESULT = Message(role="tool", tool_call_id="call_1", content="3")
ADD: dict[str, Any] = {"call": {"name": "add", "arguments": {"a": 1, "b": "two words"}}}
SUB: dict[str, Any] = {"call": {"name": "sub", "arguments": "[not json"}}


async def events(task: Task, *turns: list[dict[str, Any]], **options: Any) -> list[Event]:
    """Run a task on a model whose script went the way of the configuration."""
    written = FakeConfig.model_validate({"turns": turns, **options}).model_dump(mode="json")
    spec = LoadSpec(
        name="m",
        loader="fake",
        usecase="generate",
        path="",
        runtime_dir="",
        options=json.loads(json.dumps(written)),
    )
    model = await load(spec, lambda stage, fraction: None)
    found: list[Event] = []

    async def emit(event: Event) -> None:
        found.append(event)

    await model.run(task, emit, "local")
    return found


def chat(*messages: Message, **fields: Any) -> ChatTask:
    """Return a chat that offers both tools."""
    return ChatTask(messages=messages or (USER,), **{"tools": TOOLS, **fields})


def text(found: list[Event], kind: type[Text | Reasoning] = Text) -> str:
    """Return what was said, or thought."""
    return "".join(event.text for event in found if isinstance(event, kind))


def calls(found: list[Event]) -> list[tuple[str | None, str]]:
    """Return name and arguments of each call, joined from its pieces."""
    joined: dict[int, tuple[str | None, str]] = {}
    for event in found:
        if isinstance(event, ToolCallDelta):
            name, arguments = joined.get(event.call, (event.name, ""))
            joined[event.call] = (name, arguments + event.arguments)
    assert list(joined) == list(range(len(joined)))
    return list(joined.values())


def reason(found: list[Event]) -> str:
    """Return why the first choice ended."""
    return next(event.reason for event in found if isinstance(event, Finish))


async def test_a_turn_thinks_speaks_and_calls_in_order() -> None:
    """Thoughts and text come in words, calls in pieces with their own ids, then the reason and the usage."""
    found = await events(chat(), [{"reasoning": "let me see"}, {"text": "a sum: "}, ADD, SUB])
    assert text(found, Reasoning) == "let me see"
    assert text(found) == "a sum: "
    assert calls(found) == [("add", '{"a": 1, "b": "two words"}'), ("sub", "[not json")]
    ids = [event.id for event in found if isinstance(event, ToolCallDelta) and event.id]
    assert len(set(ids)) == 2
    assert all(each.startswith("call_") for each in ids)
    assert [type(event) for event in found[:3]] == [Reasoning] * 3
    assert len([event for event in found if isinstance(event, ToolCallDelta) and event.call == 0]) > 3
    assert reason(found) == "tool_calls"
    said = len(found) - 2
    assert found[-1] == Usage(2 + 2, said, reasoning_tokens=3)


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ((USER,), "first"),
        ((USER, CALLED, RESULT), "second"),
        ((USER, CALLED, RESULT, CALLED, RESULT), "third"),
        ((USER, CALLED, RESULT, CALLED, RESULT, CALLED, RESULT), "third"),
        ((USER, CALLED, RESULT, USER), "first"),
        ((CALLED, RESULT), "second"),
    ],
)
async def test_the_turn_is_that_of_the_assistants_messages_since_the_user_spoke(
    messages: tuple[Message, ...], wanted: str
) -> None:
    """Turns follow each other while tools answer, stay at the last, and begin anew with the user's word."""
    found = await events(chat(*messages), *([{"text": name}] for name in ("first", "second", "third")))
    assert text(found) == wanted
    assert reason(found) == "stop"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, ["add", "sub", "add"]),
        ({"tools": TOOLS[1:]}, ["sub"]),
        ({"tools": ()}, []),
        ({"tool_choice": ToolChoice(mode="none")}, []),
        ({"tool_choice": ToolChoice(mode="function", name="add")}, ["add", "add"]),
        ({"parallel_tool_calls": False}, ["add"]),
    ],
)
async def test_only_calls_that_the_request_allows_are_made(fields: dict[str, Any], wanted: list[str]) -> None:
    """A tool that is not offered is not called; the rest of the turn is played."""
    found = await events(chat(**fields), [{"text": "so"}, ADD, SUB, ADD])
    assert [name for name, _ in calls(found)] == wanted
    assert text(found) == "so"
    assert reason(found) == ("tool_calls" if wanted else "stop")


@pytest.mark.parametrize("limit", range(1, 9))
async def test_max_tokens_cuts_a_turn(limit: int) -> None:
    """A turn of eight tokens is cut to so many, and says so; one that fits is whole."""
    turn: list[dict[str, Any]] = [
        {"reasoning": "a b"},
        {"text": "c d"},
        {"call": {"name": "add", "arguments": "x" * 20}},
    ]
    found = await events(chat(sampling=Sampling(max_tokens=limit)), turn)
    assert len(found) - 2 == limit
    assert reason(found) == ("tool_calls" if limit == 8 else "length")


async def test_every_choice_is_a_turn_of_its_own() -> None:
    """With several choices each has its events, its ids and its end; the usage is that of all."""
    found = await events(chat(n=2), [{"text": "hi"}, ADD])
    assert [event.index for event in found if isinstance(event, Finish)] == [0, 1]
    assert len({event.id for event in found if isinstance(event, ToolCallDelta) and event.id}) == 2
    assert found[-1] == Usage(4, len(found) - 3)


async def test_a_turn_can_end_early_fail_and_hang() -> None:
    """`finish` gives the reason and drops what follows; `fail` is an engine error; `hang` never ends."""
    found = await events(chat(), [{"text": "so"}, {"finish": "content_filter"}, {"text": "unsaid"}])
    assert (text(found), reason(found)) == ("so", "content_filter")
    with pytest.raises(EngineError, match="out of ink"):
        await events(chat(), [{"text": "so"}, {"delay": 0.001}, {"fail": "out of ink"}])
    hanging = asyncio.ensure_future(events(chat(), [{"hang": True}]))
    for _ in range(20):  # far more steps than such a turn takes to its end
        await asyncio.sleep(0)
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_what_is_counted_is_what_the_chat_reports() -> None:
    """The count of a chat is the `prompt_tokens` of the same chat, with tools, calls, thoughts, pictures."""
    looks = Message(role="user", content=(TextPart(text="see this"), ImagePart(url="data:,x")))
    thinks = Message(role="assistant", content="well then", reasoning="hm hm hm")
    tools = (FunctionTool(name="add", description="adds two", parameters={"type": "object", "x": [1, 2]}),)
    for task in (chat(), chat(tools=tools), chat(looks, thinks, CALLED, RESULT), chat(tools=())):
        usage = (await events(task, [{"text": "ok"}]))[-1]
        assert isinstance(usage, Usage)
        assert await events(CountTask(chat=task)) == [Usage(usage.prompt_tokens, 0)]
    assert await events(CountTask(chat=chat(looks, thinks, tools=()))) == [Usage(2 + 1 + 2 + 3, 0)]


async def test_a_chat_that_is_too_long_is_refused_like_an_engine_refuses_it() -> None:
    """One word over the context is the caller's fault, with both numbers; counting has no limit."""
    task = chat(Message(role="user", content="w " * 11), tools=())
    with pytest.raises(BadRequest, match=r"has 11 tokens.*holds 10") as caught:
        await events(task, context_length=10)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert await events(CountTask(chat=task), context_length=10) == [Usage(11, 0)]
    assert reason(await events(task, context_length=11)) == "stop"


@pytest.mark.parametrize(
    "step",
    [{}, {"text": "a", "hang": True}, {"crash": False}, {"call": {}}, {"finish": "never"}, {"say": "a"}],
)
def test_a_step_does_one_known_thing(step: dict[str, Any]) -> None:
    """Steps that do nothing, two things or an unknown one are mistakes in the configuration."""
    with pytest.raises(ValueError, match="turns"):
        FakeConfig.model_validate({"turns": [[step]]})


def test_the_plain_answer_is_as_it_was() -> None:
    """Without turns a chat gets `reply`, word by word."""
    found = asyncio.run(events(chat(), reply="one two"))
    assert found == [Text("one "), Text("two"), Finish("stop"), Usage(4, 2)]
    assert msgspec.json.encode(found)

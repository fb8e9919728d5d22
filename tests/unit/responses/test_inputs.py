"""What callers send becomes items that are kept, and turns that a model reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.protocol.tasks import Message, ToolCall
from modeld.responses.inputs import kept, messages

CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "42"}


def names() -> Callable[[str], str]:
    """Give ids that are counted."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


def turns(*items: dict[str, Any]) -> tuple[Message, ...]:
    """Return the turns of these items."""
    return messages((), kept(list(items), names()), None, album=None)


def test_text_is_a_message_of_the_users() -> None:
    """It is kept as OpenAI keeps it, with an id and a part, and read as one turn."""
    items = kept("hello", names())
    assert items == [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
            "id": "msg_0",
            "status": "completed",
        }
    ]
    assert messages((), items, "Be brief.", album=None) == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="hello"),
    )


def test_null_is_absent_and_a_given_id_stays() -> None:
    """Clients send back what they were given, with nulls for what they did not have."""
    items = kept([{"role": "assistant", "content": "hi", "id": None, "status": None}], names())
    assert items[0]["id"] == "msg_0"
    assert items[0]["content"] == [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}]
    assert kept(items, names()) == items


def test_a_thought_a_text_and_calls_are_one_turn() -> None:
    """As models were trained to read them; outputs follow as turns of the tool."""
    found = turns(
        {"role": "user", "content": "hm"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "think"}]},
        {"role": "assistant", "content": "let me see"},
        CALL,
        {**CALL, "call_id": "call_2", "name": "g"},
        OUTPUT,
        {**OUTPUT, "call_id": "call_2"},
    )
    assert [turn.role for turn in found] == ["user", "assistant", "tool", "tool"]
    assert found[1].reasoning == "think"
    assert found[1].content == "let me see"
    assert [call.name for call in found[1].tool_calls] == ["f", "g"]
    assert [turn.tool_call_id for turn in found[2:]] == ["call_1", "call_2"]


def test_a_call_alone_is_a_turn() -> None:
    """Also with a thought before it; a thought before the user's turn belongs to nobody and is dropped."""
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    assert turns({"role": "user", "content": "x"}, thought, CALL, OUTPUT)[1] == Message(
        role="assistant", tool_calls=(ToolCall(id="call_1", name="f", arguments="{}"),), reasoning="so"
    )
    assert turns(thought, {"role": "user", "content": "x"}) == (Message(role="user", content="x"),)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call", "id": "ws_1"}, "input[0].type"),
        ({"role": "robot", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": []}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "nonsense"}]}, "input[0].content"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]},
            "input[0].content[0].image_url",
        ),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "input[0].arguments"),
        (OUTPUT, "input"),
    ],
)
def test_what_cannot_be_read_is_named(item: dict[str, Any], param: str) -> None:
    """Each refusal names the item and the field."""
    with pytest.raises(BadRequest) as caught:
        turns(item)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
_KEYS = st.sampled_from(
    ["type", "role", "content", "call_id", "name", "arguments", "output", "id", "summary"]
)
_VALUES = _JSON | st.sampled_from(["message", "user", "assistant", "function_call", "reasoning", "text"])


@given(st.lists(st.dictionaries(_KEYS, _VALUES, max_size=5), max_size=4))
def test_nonsense_is_a_bad_request(items: list[dict[str, Any]]) -> None:
    """Whatever is sent, it is read or refused with a param; nothing else is raised."""
    try:
        found = messages((), kept(items, names()), None, album=None)
    except BadRequest as error:
        refused = error
    else:
        assert len(found) <= len(items)
        return
    assert refused.param is not None


def test_parts_are_kept_with_the_type_they_must_have() -> None:
    """Parts of thoughts, which have one type only, may come without it; a user's "refusal" is text."""
    thought = {"type": "reasoning", "summary": [{"text": "so"}], "content": [{"text": "because"}]}
    words = {"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}
    spoken = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    items = kept([thought, words, spoken], names())
    assert items[0]["summary"] == [{"type": "summary_text", "text": "so"}]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "because"}]
    assert items[1]["content"] == [{"type": "input_text", "text": "no"}]
    assert items[2]["content"] == [{"type": "refusal", "refusal": "no"}]

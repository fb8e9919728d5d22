"""What servers, seals and approvals leave in a conversation becomes turns that a model can read."""

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

Body = dict[str, Any]

ASKED: Body = {"role": "user", "content": "go"}
RAN: Body = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "srv",
    "name": "find",
    "arguments": '{"q":1}',
    "output": "42",
}
REQUEST: Body = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "srv",
    "name": "find",
    "arguments": "{}",
}
ANSWER: Body = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False}
CALL: Body = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT: Body = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}


def names() -> Callable[[str], str]:
    """Give ids that are counted."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


def unseal(kind: str, sealed: str) -> str:
    """Open what `seal` of these tests closed."""
    head, _, text = sealed.partition(":")
    if head != kind:
        raise ValueError("not mine")
    return text


def turns(*items: Body, **options: Any) -> tuple[Message, ...]:
    """Return the turns of these items."""
    return messages((), kept(list(items), names()), None, album=None, **options)


def test_a_call_at_a_server_is_a_call_and_its_answer() -> None:
    """Under the name that the model knows the tool by."""
    found = turns(ASKED, RAN, exposed=lambda label, name: f"{label}_{name}")
    assert found == (
        Message(role="user", content="go"),
        Message(role="assistant", tool_calls=(ToolCall(id="mcp_1", name="srv_find", arguments='{"q":1}'),)),
        Message(role="tool", tool_call_id="mcp_1", content="42"),
    )
    assert turns(ASKED, RAN)[1].tool_calls[0].name == "find"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"output": ""}, ""),
        ({"error": {"type": "http_error", "code": 503, "message": "unavailable"}}, "unavailable"),
        ({"error": {"type": "mcp_protocol_error", "code": -1, "message": "timed out"}}, "timed out"),
        ({"error": {"type": "mcp_tool_execution_error", "content": "no such city"}}, "no such city"),
        (
            {
                "error": {
                    "type": "mcp_tool_execution_error",
                    "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}],
                }
            },
            "no\nway",
        ),
        ({"error": {"type": "mcp_tool_execution_error", "content": [1]}}, "[1]"),
        ({"error": "it broke"}, "it broke"),
        ({"status": "incomplete"}, "The call did not finish."),
        ({"status": "completed"}, ""),
    ],
)
def test_the_model_is_told_what_came_of_a_call(more: Body, told: str) -> None:
    """The output, or the error's words; that there is neither, where it was cut off."""
    call = {key: value for key, value in RAN.items() if key != "output"}
    assert turns(ASKED, {**call, **more})[-1] == Message(role="tool", tool_call_id="mcp_1", content=told)


def test_calls_of_one_turn_are_one_turn() -> None:
    """While an answer is missing the model has not gone on; after that, the next call is another turn."""
    second = {**RAN, "id": "mcp_2"}
    found = turns(ASKED, CALL, RAN, second, OUTPUT)
    assert [turn.role for turn in found] == ["user", "assistant", "tool", "tool", "tool"]
    assert [call.id for call in found[1].tool_calls] == ["call_1", "mcp_1", "mcp_2"]
    found = turns(ASKED, RAN, second)
    assert [turn.role for turn in found] == ["user", "assistant", "tool", "assistant", "tool"]
    found = turns(ASKED, CALL, {"role": "assistant", "content": "wait"}, OUTPUT)
    assert [turn.role for turn in found] == ["user", "assistant", "tool"]
    assert (found[1].content, len(found[1].tool_calls)) == ("wait", 1)


def test_a_denied_call_is_answered() -> None:
    """The model is told why, where it asked, be the answer in the chain or in the request."""
    denied = {**ANSWER, "reason": "Too risky."}
    items = kept([ASKED, REQUEST, denied], names())
    for at in range(4):
        found = messages(items[:at], items[at:], None, album=None)
        assert [turn.role for turn in found] == ["user", "assistant", "tool"]
        assert found[1].tool_calls == (ToolCall(id="mcpr_1", name="find", arguments="{}"),)
        assert found[2].content == "The user denied this call. Too risky."
    assert turns(ASKED, REQUEST, ANSWER)[2].content == "The user denied this call."


def test_what_is_approved_or_open_makes_no_turn() -> None:
    """The call that follows stands for it; a list of tools is not said by anybody."""
    listed = {"type": "mcp_list_tools", "server_label": "srv", "tools": []}
    assert turns(listed, ASKED, REQUEST) == (Message(role="user", content="go"),)
    approved = {**ANSWER, "approve": True}
    found = turns(listed, ASKED, REQUEST, approved, {**RAN, "approval_request_id": "mcpr_1"})
    assert [turn.role for turn in found] == ["user", "assistant", "tool"]


def test_seals_are_opened() -> None:
    """A compaction stands in its place as a system's words; a sealed thought is the model's own."""
    compaction = {"type": "compaction", "encrypted_content": "compaction:They met."}
    thought = {"type": "reasoning", "encrypted_content": "reasoning:hm"}
    found = turns(ASKED, compaction, thought, {"role": "assistant", "content": "hi"}, unseal=unseal)
    assert found == (
        Message(role="user", content="go"),
        Message(role="system", content="Summary of the conversation so far: They met."),
        Message(role="assistant", content="hi", reasoning="hm"),
    )


def test_the_sealed_thought_is_the_whole_one() -> None:
    """It goes before the summary, and is not needed where the thought is there."""
    summary = [{"type": "summary_text", "text": "short"}]
    content = [{"type": "reasoning_text", "text": "plain"}]
    thought = {"type": "reasoning", "summary": summary, "encrypted_content": "reasoning:long"}
    said = {"role": "assistant", "content": "hi"}
    assert turns(thought, said, unseal=unseal)[0].reasoning == "long"
    assert turns(thought, said)[0].reasoning == "short"
    broken = {**thought, "content": content, "encrypted_content": "foreign"}
    assert turns(broken, said, unseal=unseal)[0].reasoning == "plain"


@pytest.mark.parametrize("kind", ["compaction", "reasoning"])
def test_a_foreign_seal_is_refused(kind: str) -> None:
    """By its place in the request, or as an earlier item where it is not of the request."""
    item = {"type": kind, "id": "x_1", "encrypted_content": "foreign:text"}
    with pytest.raises(BadRequest) as caught:
        turns(ASKED, item, unseal=unseal)
    assert caught.value.param == "input[1].encrypted_content"
    with pytest.raises(BadRequest, match="the earlier item x_1") as caught:
        messages(kept([item], names()), kept([ASKED], names()), None, album=None, unseal=unseal)
    assert caught.value.param == "input"


def test_the_fields_of_a_request_are_counted_from_its_own_first_item() -> None:
    """However long the chain before it is."""
    earlier = kept([ASKED, ASKED, ASKED], names())
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    with pytest.raises(BadRequest) as caught:
        messages(earlier, kept([{"role": "user", "content": [picture]}], names()), None, album=None)
    assert caught.value.param == "input[0].content[0].image_url"


def test_an_output_may_be_a_list() -> None:
    """Of texts: they are joined, as those of any message are."""
    parts = [{"type": "input_text", "text": "4"}, {"type": "output_text", "text": "2"}]
    assert turns(CALL, {**OUTPUT, "output": parts})[1].content == "42"


def test_a_system_in_the_middle_stays_there() -> None:
    """Templates that want it first move it; a developer is a system."""
    found = turns(ASKED, {"role": "developer", "content": "be brief"}, ASKED)
    assert [turn.role for turn in found] == ["user", "system", "user"]


def test_an_answer_of_nothing_is_no_turn() -> None:
    """An assistant's message that was cut before its first word."""
    assert turns(ASKED, {"role": "assistant", "content": []}) == (Message(role="user", content="go"),)


@pytest.mark.parametrize("sent", [{"id": "msg_9"}, {"type": "item_reference", "id": "msg_9"}])
def test_a_reference_is_left_to_be_resolved(sent: Body) -> None:
    """It is kept as what it is; one that nobody resolved is no turn, but refused."""
    items = kept([sent | {"status": None}], names())
    assert items == [{"type": "item_reference", "id": "msg_9"}]
    with pytest.raises(BadRequest) as caught:
        messages((), items, None, album=None)
    assert caught.value.param == "input[0].id"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "item_reference"}, "input[0]"),
        ({"type": "compaction"}, "input[0]"),
        ({**RAN, "error": 5}, "input[0].error"),
        ({**RAN, "status": "odd"}, "input[0].status"),
        ({**ANSWER, "approve": "yes"}, "input[0].approve"),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "x"}]}, "input[0].tools"),
        ({**ASKED, "id": "x" * 513}, "input[0].id"),
        ({**ASKED, "id": 5}, "input[0].id"),
        ({**ASKED, "status": "odd"}, "input[0].status"),
    ],
)
def test_an_item_of_another_shape_is_named(item: Body, param: str) -> None:
    """Before anything is done with it."""
    with pytest.raises(BadRequest) as caught:
        kept([item], names())
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


_STEPS = st.lists(
    st.sampled_from(["user", "text", "thought", "call", "server", "denied", "asked", "list"]), max_size=10
)


@given(_STEPS, st.data())
def test_every_answer_follows_its_call(steps: list[str], data: st.DataObject) -> None:
    """However items come, a tool's turn stands behind the assistant's with its call, only others between.

    And wherever the chain is cut between earlier items and those of the request, the turns are the same.
    """
    items: list[Body] = []
    for at, step in enumerate(steps):
        match step:
            case "user":
                items.append(ASKED)
            case "text":
                items.append({"role": "assistant", "content": f"t{at}"})
            case "thought":
                content = [{"type": "reasoning_text", "text": f"r{at}"}]
                items.append({"type": "reasoning", "content": content})
            case "call":
                items += [{**CALL, "call_id": f"c{at}"}, {**OUTPUT, "call_id": f"c{at}"}]
            case "server":
                items.append({**RAN, "id": f"mcp_{at}"})
            case "denied":
                items.append({**REQUEST, "id": f"mcpr_{at}"})
                items.append({**ANSWER, "approval_request_id": f"mcpr_{at}"})
            case "asked":
                items.append({**REQUEST, "id": f"mcpr_{at}"})
            case "list":
                items.append({"type": "mcp_list_tools", "server_label": "s", "tools": []})
    whole = kept(items, names())
    found = messages((), whole, None, album=None)
    open_calls: set[str] = set()
    for turn in found:
        if turn.role == "tool":
            assert turn.tool_call_id in open_calls
            open_calls.discard(str(turn.tool_call_id))
        else:
            assert not open_calls
            open_calls = {call.id for call in turn.tool_calls}
    assert not open_calls
    assert sum(turn.role == "tool" for turn in found) == sum(
        step in ("call", "server", "denied") for step in steps
    )
    cut = data.draw(st.integers(0, len(whole)))
    assert messages(whole[:cut], whole[cut:], None, album=None) == found

"""What is kept of an input is what OpenAI's types and published schema let a list of items hold."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.responses.inputs import kept, messages
from modeld.responses.items import (
    Compaction,
    FunctionCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    OutputMessage,
    OutputText,
    ReasoningItem,
    SummaryText,
)
from tests.fixtures.openai_schema.check import check

Body = dict[str, Any]


def names() -> Callable[[str], str]:
    """Give ids that are counted."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


_WORD = st.text(max_size=5)
_COMMON: dict[str, st.SearchStrategy[Any]] = {
    "id": st.none() | st.just("") | st.text(max_size=20),
    "status": st.none() | st.sampled_from(["in_progress", "completed", "incomplete"]),
}


def _item(kind: str, optional: dict[str, Any] | None = None, **required: Any) -> st.SearchStrategy[Body]:
    """Give items of a type as clients send them: keys left out, or null where they have nothing."""
    fixed = {"type": st.just(kind), **required}
    return st.fixed_dictionaries(fixed, optional=_COMMON | (optional or {}))


def _part(kind: str, optional: dict[str, Any] | None = None, **required: Any) -> st.SearchStrategy[Body]:
    return st.fixed_dictionaries({"type": st.just(kind), **required}, optional=optional or {})


_NULL_LIST: dict[str, Any] = {"annotations": st.none() | st.just([]), "logprobs": st.none() | st.just([])}
_TEXTS = (
    _part("input_text", text=_WORD) | _part("output_text", _NULL_LIST, text=_WORD) | _part("text", text=_WORD)
)
_REFUSAL = _part("refusal", refusal=_WORD)
_BARE = st.fixed_dictionaries({"text": _WORD})
"""A part that leaves out its type, where there is only one."""
_IMAGE = _part(
    "input_image",
    {"detail": st.none() | st.sampled_from(["auto", "low", "high"]), "file_id": st.none()},
    image_url=st.just("https://example.com/a.png"),
)
_ASKED = st.sampled_from(["user", "system", "developer"])
_TOOL = st.fixed_dictionaries(
    {"name": _WORD, "input_schema": st.just({"type": "object"})},
    optional={"description": st.none() | _WORD, "annotations": st.none() | st.just({"read_only": True})},
)
_ERROR = st.sampled_from(
    [
        "it broke",
        {"type": "http_error", "code": 500, "message": "x"},
        {"type": "mcp_tool_execution_error", "content": "x"},
    ]
)
_CALL: dict[str, Any] = {"server_label": _WORD, "name": _WORD, "arguments": _WORD}
ITEMS = st.one_of(
    _item("message", role=_ASKED, content=_WORD | st.lists(_TEXTS | _REFUSAL, min_size=1, max_size=3)),
    _item("message", role=st.just("user"), content=st.lists(_TEXTS | _IMAGE, min_size=1, max_size=3)),
    _item(
        "message",
        {"phase": st.none() | st.just("commentary")},
        role=st.just("assistant"),
        content=st.none() | _WORD | st.lists(_TEXTS | _REFUSAL, max_size=3),
    ),
    _item("function_call", call_id=st.just("call_1"), name=_WORD, arguments=_WORD),
    _item(
        "function_call_output",
        call_id=st.just("call_1"),
        output=_WORD | st.lists(_TEXTS | _IMAGE, max_size=3),
    ),
    _item(
        "reasoning",
        {
            "summary": st.none() | st.lists(_part("summary_text", text=_WORD) | _BARE, max_size=2),
            "content": st.none() | st.lists(_part("reasoning_text", text=_WORD) | _BARE, max_size=2),
            "encrypted_content": st.none() | _WORD,
        },
    ),
    _item("mcp_list_tools", {"error": st.none() | _WORD}, server_label=_WORD, tools=st.lists(_TOOL)),
    _item(
        "mcp_call",
        {
            "output": st.none() | _WORD,
            "error": st.none() | _ERROR,
            "approval_request_id": st.none() | _WORD,
            "status": st.none() | st.sampled_from(["completed", "failed", "calling"]),
        },
        **_CALL,
    ),
    _item("mcp_approval_request", None, **_CALL),
    _item(
        "mcp_approval_response",
        {"reason": st.none() | _WORD},
        approval_request_id=_WORD,
        approve=st.booleans(),
    ),
    _item("compaction", encrypted_content=_WORD),
)
"""Items of every type that is taken, in all the ways that clients write them."""


@given(st.lists(ITEMS, min_size=1, max_size=3))
@hypothesis.settings(max_examples=150)
def test_what_is_kept_can_be_listed(given: list[Body]) -> None:
    """As the input of a response and as the items of a conversation; kept once more, nothing changes."""
    items = kept(given, names())
    assert all(sent.get("id") in ("", None, item["id"]) for sent, item in zip(given, items, strict=True))
    assert kept(items, names()) == items
    body = {"object": "list", "data": items, "first_id": items[0]["id"], "last_id": items[-1]["id"]}
    check("ResponseItemList", {**body, "has_more": False})
    check("ConversationItemList", {**body, "has_more": False})


@pytest.mark.parametrize(
    "item",
    [
        OutputMessage("msg_1", "completed", content=[OutputText("hi")]),
        OutputMessage("msg_1", "incomplete"),
        ReasoningItem("rs_1", "completed", [SummaryText("so")], [], "sealed"),
        FunctionCall("fc_1", "call_1", "f", "{}", "completed"),
        McpListTools("mcpl_1", "srv", [], "no answer"),
        McpListTools("mcpl_1", "srv", [{"name": "f", "input_schema": {}}]),
        McpCall("mcp_1", "srv", "tool", "{}", None, "42", None, "completed"),
        McpApprovalRequest("mcpr_1", "srv", "tool", "{}"),
        Compaction("cmp_1", "sealed"),
    ],
)
def test_output_can_be_sent_back(item: msgspec.Struct) -> None:
    """What a response holds is valid as its output, and is kept unchanged when a client sends it."""
    body = json.loads(msgspec.json.encode(item))
    check("OutputItem", body)
    assert kept([body], names()) == [body]


def test_empty_lists() -> None:
    """A list of nothing has no first and no last item."""
    body: Body = {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    check("ConversationItemList", body)
    check("ResponseItemList", body)


_USAGE = {
    "input_tokens": 1,
    "output_tokens": 2,
    "total_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
_COMPACT = {
    "id": "resp_1",
    "object": "response.compaction",
    "created_at": 1,
    "output": [*kept("hello", names()), {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}],
    "usage": _USAGE,
}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("CompactResource", _COMPACT),
        ("TokenCountsResource", {"object": "response.input_tokens", "input_tokens": 3}),
        ("ConversationResource", {"id": "conv_1", "object": "conversation", "metadata": {}, "created_at": 1}),
        (
            "DeletedConversationResource",
            {"id": "conv_1", "object": "conversation.deleted", "deleted": True},
        ),
    ],
)
def test_the_check_misses_no_key(name: str, body: Body) -> None:
    """A body that is whole is valid; one that lacks a key is not, whichever it is."""
    check(name, body)
    for key in body:
        with pytest.raises((AssertionError, KeyError, ValueError), match=key):
            check(name, {other: value for other, value in body.items() if other != key})


def test_kept_messages_read_as_they_were_sent() -> None:
    """Filling in what was missing changes no turn."""
    sent: list[Body] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
    ]
    turns = messages((), kept(sent, names()), None, album=None)
    assert [(turn.role, turn.content) for turn in turns] == [("user", "a"), ("assistant", "b")]

"""What a request's fields become: a task's choice and tools, and the response as it is before any work."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.protocol.tasks import FunctionTool, ToolChoice
from modeld.responses.request import (
    HOSTED,
    check,
    check_shown,
    choice,
    functions,
    read,
    response,
    stored,
    to_task,
)
from tests.harness.responses import check_response

F, G = FunctionTool(name="f"), FunctionTool(name="g")


def asked(**fields: Any) -> Any:
    """Return a request as it is read."""
    return read(json.dumps({"model": "m", "input": "hi", **fields}).encode())


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "instructions": st.none() | st.text(st.characters(codec="utf-8"), max_size=9),
            "temperature": st.none() | st.floats(0, 2),
            "top_p": st.none() | st.floats(0.01, 1),
            "metadata": st.none()
            | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), st.just("v"), max_size=3),
            "max_tool_calls": st.none() | st.integers(1, 9),
            "service_tier": st.sampled_from([None, "auto", "default", "flex", "priority"]),
            "truncation": st.sampled_from([None, "auto", "disabled"]),
            "reasoning": st.sampled_from([None, {}, {"effort": "low"}, {"summary": "auto"}]),
            "text": st.sampled_from(
                [None, {}, {"format": {"type": "json_object"}}, {"verbosity": "low"}, {"format": None}]
            ),
            "tools": st.sampled_from([None, [], [{"type": "function", "name": "f"}]]),
            "tool_choice": st.sampled_from([None, "auto", "none"]),
            "background": st.none() | st.booleans(),
            "store": st.none() | st.booleans(),
            "user": st.none() | st.just("me"),
            "conversation": st.sampled_from([None, "conv_1", {"id": "conv_1"}]),
            "top_logprobs": st.none() | st.integers(0, 20),
        },
    )
)
def test_a_response_has_all_its_keys_from_the_beginning(fields: dict[str, Any]) -> None:
    """Whatever is asked for, left out or null, the response is sound by OpenAI's types."""
    shown = msgspec.to_builtins(response(asked(**fields), "resp_1", 1_700_000_000))
    check_response(shown)
    for name in ("instructions", "metadata", "temperature", "max_tool_calls"):
        if fields.get(name) is not None:
            assert shown[name] == fields[name]


@pytest.mark.parametrize(
    ("background", "store", "kept"),
    [
        (None, None, True),
        (None, True, True),
        (None, False, False),
        (False, None, True),
        (True, None, False),
        (True, False, False),
        (True, True, True),
    ],
)
def test_who_is_kept_for_long(background: bool | None, store: bool | None, kept: bool) -> None:
    """In the foreground all but what says store false; in the background only what says store true."""
    assert stored(asked(background=background, store=store)) is kept


@pytest.mark.parametrize("kind", sorted(HOSTED | {"web_search_2030_01_01", "computer_next"}))
def test_hosted_tools_are_refused_by_name(kind: str) -> None:
    """As a tool, and as a choice of one."""
    with pytest.raises(BadRequest, match=kind) as error:
        functions([{"type": kind}])
    assert (error.value.code, error.value.param) == ("unsupported_parameter", "tools[0].type")
    if kind in HOSTED:
        with pytest.raises(BadRequest, match=kind):
            choice({"type": kind}, (F,))


def test_choices() -> None:
    """Each form is a mode; what is not allowed is not shown; tools of servers can be required, not forced."""
    assert choice(None, (F, G)) == ((F, G), ToolChoice())
    assert choice("required", (), remote=True) == ((), ToolChoice(mode="required"))
    only_g = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    assert choice(only_g, (F, G)) == ((G,), ToolChoice(mode="required"))
    for wanted in ("required", {"type": "mcp", "server_label": "s"}, {"type": "function", "name": {}}):
        with pytest.raises(BadRequest):
            choice(wanted, ())


def test_a_choice_without_tools_binds_nothing() -> None:
    """A turn that shows no tool asks for none."""
    task = to_task(asked(), (), (), ToolChoice(mode="required"))
    assert task.tool_choice == ToolChoice()


@given(st.integers(65, 200))
def test_what_is_shown_again_has_bounds(depth: int) -> None:
    """A tool or a choice with JSON nested beyond what is honest is refused by its place."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    for fields, param in (
        ({"tools": [{"type": "function", "name": "f"}, {"x": value}]}, "tools[1]"),
        ({"tool_choice": {"x": value}}, "tool_choice"),
    ):
        with pytest.raises(BadRequest) as error:
            check_shown(asked(**fields))
        assert error.value.param == param


def test_what_does_not_fit_together() -> None:
    """Two things to continue; a stream of what may take hours; a stored prompt."""
    for fields, param in (
        ({"previous_response_id": "a", "conversation": "b"}, "previous_response_id"),
        ({"stream": True, "background_options": {"completion_window": "8h"}}, "stream"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["message.output_text.logprobs", "x"]}, "include[1]"),
    ):
        with pytest.raises(BadRequest) as error:
            check(asked(**fields))
        assert error.value.param == param

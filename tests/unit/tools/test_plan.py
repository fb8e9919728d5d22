"""What the engine is asked for, for every choice and every kind of template."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from modeld.errors import BadRequest
from modeld.protocol.tasks import ChatTask, FunctionTool, Message, TextFormat, ToolCall, ToolChoice
from modeld.worker.tools import TemplateFacts, plan
from modeld.worker.tools.schemas import MAX_CALLS

from .answers import TIME, WEATHER, parse

BLIND = TemplateFacts(renders_tools=False)
AWARE = TemplateFacts(renders_tools=True)
ENFORCING = TemplateFacts(renders_tools=True, enforces_choice=True)
OWN: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
JSON_SCHEMA = TextFormat(kind="json_schema", name="own", schema=OWN)
JSON_OBJECT = TextFormat(kind="json_object")
REQUIRED = ToolChoice(mode="required")
NAMED = ToolChoice(mode="function", name="get_weather")
NONE = ToolChoice(mode="none")
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


def task(**changes: Any) -> ChatTask:
    """Return a question with two tools, changed."""
    base = ChatTask(messages=(Message(role="user", content="Weather?"),), tools=(WEATHER, TIME))
    return msgspec.structs.replace(base, **changes)


def shown(asked: ChatTask, facts: TemplateFacts) -> str:
    """Return all the words the model gets to see."""
    return "\n".join(str(message.content) for message in plan(asked, facts).messages)


@pytest.mark.parametrize("facts", [BLIND, AWARE, ENFORCING])
@pytest.mark.parametrize("changes", [{"tools": ()}, {"tool_choice": NONE}])
def test_no_calls_wanted_is_plain(facts: TemplateFacts, changes: dict[str, Any]) -> None:
    """Without tools, or with choice none, the model sees no tool and its text is not searched for calls."""
    planned = plan(task(**changes), facts)
    assert planned.messages == task().messages
    assert (planned.native_tools, planned.native_calls, planned.schema, planned.json_object) == (
        False, False, None, False,
    )  # fmt: skip
    assert parse(planned.parser(), [CALL]) == [CALL]
    own = plan(task(**changes, format=JSON_SCHEMA), facts).schema
    assert own is not None
    assert OWN.items() <= own.items()
    assert plan(task(**changes, format=JSON_OBJECT), facts).json_object


def test_a_past_call_is_shown_to_a_blind_template_even_without_tools() -> None:
    """History keeps its calls and results as text."""
    history = (
        Message(role="user", content="Weather?"),
        Message(role="assistant", tool_calls=(ToolCall(id="1", name="get_weather", arguments="{}"),)),
        Message(role="tool", content="Rain", tool_call_id="1"),
    )
    planned = plan(task(messages=history, tools=()), BLIND)
    assert [message.role for message in planned.messages] == ["user", "assistant", "user"]
    assert plan(task(messages=history, tools=()), AWARE).messages == history


def test_auto_on_an_aware_template_is_the_engines() -> None:
    """The template shows the tools, the engine parses the calls."""
    planned = plan(task(), AWARE)
    assert planned.native_tools
    assert planned.native_calls
    assert planned.schema is None
    assert planned.messages == task().messages


def test_auto_where_the_engine_parses_no_calls() -> None:
    """The template shows the tools, modeld reads the text."""
    planned = plan(task(), TemplateFacts(renders_tools=True, parses_calls=False))
    assert planned.native_tools
    assert not planned.native_calls
    assert planned.messages == task().messages
    assert parse(planned.parser(), [f"<tool_call>{CALL}</tool_call>"]) == [
        ("get_weather", '{"city": "Paris"}')
    ]


def test_auto_on_a_blind_template_shows_the_tools_in_words() -> None:
    """Each tool's name, description and parameters reach the model, and so does how to call."""
    planned = plan(task(), BLIND)
    assert not planned.native_tools
    assert not planned.native_calls
    assert planned.schema is None
    text = shown(task(), BLIND)
    for word in ("get_weather", "Get the current weather", '"days"', "get.time", "<tool_call>"):
        assert word in text
    assert planned.messages[0].role == "system"
    assert parse(planned.parser(3), [CALL]) == [("get_weather", '{"city": "Paris"}')]
    assert planned.parser(3).feed("Hello")[0].index == 3


@pytest.mark.parametrize("facts", [BLIND, AWARE])
def test_required_is_enforced_by_schema(facts: TemplateFacts) -> None:
    """The answer is 1 to MAX_CALLS calls of any of the tools; a template that can shows them."""
    planned = plan(task(tool_choice=REQUIRED, format=JSON_SCHEMA), facts)
    assert planned.native_tools == facts.renders_tools
    assert not planned.native_calls
    assert planned.schema is not None
    calls = planned.schema["properties"]["tool_calls"]
    assert (calls["minItems"], calls["maxItems"]) == (1, MAX_CALLS)
    assert [one["properties"]["name"]["const"] for one in calls["items"]["anyOf"]] == [
        "get_weather",
        "get.time",
    ]
    assert parse(planned.parser(), [f'{{"tool_calls": [{CALL}]}}']) == [("get_weather", '{"city": "Paris"}')]
    assert "tool_calls" in shown(task(tool_choice=REQUIRED), facts)


@pytest.mark.parametrize("facts", [BLIND, AWARE])
def test_a_named_function_is_the_only_one_possible(facts: TemplateFacts) -> None:
    """One call, of that name."""
    planned = plan(task(tool_choice=NAMED), facts)
    assert planned.schema is not None
    calls = planned.schema["properties"]["tool_calls"]
    assert calls["maxItems"] == 1
    assert calls["items"]["properties"]["name"] == {"const": "get_weather"}
    assert calls["items"]["properties"]["arguments"]["properties"] == WEATHER.parameters["properties"]  # type: ignore[index]
    other = '{"tool_calls": [{"name": "get.time", "arguments": {}}]}'
    assert parse(planned.parser(), [other]) == [other]


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice()])
def test_one_call_where_parallel_calls_are_off(choice: ToolChoice) -> None:
    """parallel_tool_calls false bounds what is asked for, what is said and what comes out."""
    planned = plan(task(tool_choice=choice, parallel_tool_calls=False), BLIND)
    if planned.schema is not None:
        assert planned.schema["properties"]["tool_calls"]["maxItems"] == 1
    found = parse(planned.parser(), [f'{{"tool_calls": [{CALL}, {CALL}]}}'])
    assert found == [("get_weather", '{"city": "Paris"}')]


def test_an_enforcing_engine_is_asked_natively() -> None:
    """Where the engine is known to enforce choices, no schema is put in between."""
    for choice in (REQUIRED, NAMED):
        planned = plan(task(tool_choice=choice), ENFORCING)
        assert planned.native_calls
        assert planned.schema is None


@pytest.mark.parametrize("facts", [BLIND, AWARE, ENFORCING])
def test_auto_with_a_format_is_calls_or_that_format(facts: TemplateFacts) -> None:
    """One schema holds both branches; the parser tells them apart."""
    planned = plan(task(format=JSON_SCHEMA), facts)
    assert planned.native_tools == facts.renders_tools
    assert not planned.native_calls
    assert planned.schema is not None
    assert [list(branch["properties"]) for branch in planned.schema["anyOf"]] == [["tool_calls"], ["answer"]]
    assert parse(planned.parser(), [f'{{"tool_calls": [{CALL}]}}']) == [("get_weather", '{"city": "Paris"}')]
    assert parse(planned.parser(), ['{"answer": "x"}']) == ['{"answer": "x"}']
    loose = plan(task(format=JSON_OBJECT), facts)
    assert loose.schema is not None
    assert loose.schema["anyOf"][1] == {"type": "object"}
    assert not loose.json_object


def test_a_format_that_speaks_of_tool_calls_gets_another_key() -> None:
    """The key of the calls never clashes with one of the caller's own."""
    own = {"type": "object", "properties": {"tool_calls": {"type": "array"}}, "required": ["tool_calls"]}
    planned = plan(task(format=TextFormat(kind="json_schema", name="own", schema=own)), BLIND)
    assert planned.schema is not None
    [key] = planned.schema["anyOf"][0]["properties"]
    assert key != "tool_calls"
    assert parse(planned.parser(), [f'{{"{key}": [{CALL}]}}']) == [("get_weather", '{"city": "Paris"}')]
    assert parse(planned.parser(), [f'{{"tool_calls": [{CALL}]}}']) == [f'{{"tool_calls": [{CALL}]}}']


def tool(name: str = "f", parameters: Any = None) -> FunctionTool:
    """Return a strict tool."""
    return FunctionTool(name=name, parameters=parameters, strict=True)


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"tools": (), "tool_choice": REQUIRED}, "tool_choice", "invalid_value"),
        ({"tools": (), "tool_choice": NAMED}, "tool_choice", "invalid_value"),
        ({"tools": (TIME,), "tool_choice": NAMED}, "tool_choice", "invalid_value"),
        ({"tools": (TIME, WEATHER, TIME)}, "tools[2].function.name", "invalid_value"),
        ({"tools": (TIME, tool("two words"))}, "tools[1].function.name", "invalid_value"),
        ({"tools": (tool(""),)}, "tools[0].function.name", "invalid_value"),
        ({"tools": (tool("x" * 65),)}, "tools[0].function.name", "invalid_value"),
        ({"tools": (tool("f\n"),)}, "tools[0].function.name", "invalid_value"),
        (
            {"tools": (tool(parameters={"type": "array"}),)},
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
        (
            {"tools": (tool(parameters={"type": "object", "properties": []}),)},
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
        (
            {
                "tools": (TIME, tool(parameters={"properties": {"x": {"$ref": "#/$defs/missing"}}})),
                "tool_choice": REQUIRED,
            },
            "tools[1].function.parameters",
            "invalid_function_parameters",
        ),
        (
            {"format": TextFormat(kind="json_schema", name="x", schema={"$ref": "https://example.org/x"})},
            "response_format",
            "invalid_json_schema",
        ),
    ],
)
def test_what_can_never_work_is_the_callers_to_mend(changes: dict[str, Any], param: str, code: str) -> None:
    """Each is a BadRequest that names the place, for every template."""
    for facts in (BLIND, AWARE):
        with pytest.raises(BadRequest) as caught:
            plan(task(**changes), facts)
        assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize(
    "parameters",
    [None, {}, {"properties": {}}, {"type": ["object", "null"]}, {"anyOf": [{"type": "object"}]}],
)
def test_loose_object_schemas_are_accepted(parameters: Any) -> None:
    """strict, an empty schema, a missing type and a nullable object are no errors."""
    planned = plan(task(tools=(tool(parameters=parameters),), tool_choice=REQUIRED), BLIND)
    assert planned.schema is not None
    found = planned.schema["properties"]["tool_calls"]["items"]["properties"]["arguments"]
    assert found.get("type") == "object" or "anyOf" in found

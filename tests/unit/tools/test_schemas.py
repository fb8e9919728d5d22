"""Schemas that hold an engine to calls, and references that still work inside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from modeld.errors import BadRequest
from modeld.protocol.tasks import FunctionTool
from modeld.worker.tools.schemas import calls_schema, envelope_for, union_schema


def resolve(document: Any, reference: str) -> Any:
    """Follow a local JSON pointer, as engines do."""
    assert reference.startswith("#/$defs/")
    for step in reference[2:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def arguments(schema: dict[str, Any], at: int = 0) -> Any:
    """Return where the schema of a tool's arguments stands, references followed."""
    items = schema["properties"]["tool_calls"]["items"]
    found = items["anyOf"][at] if "anyOf" in items else items
    found = found["properties"]["arguments"]
    while "$ref" in found:
        found = resolve(schema, found["$ref"])
    return found


def tool(name: str, **parameters: Any) -> FunctionTool:
    """Return a tool with these parameters."""
    return FunctionTool(name=name, parameters=parameters)


def one(*tools: FunctionTool) -> dict[str, Any]:
    """Return the schema of one call."""
    return calls_schema(tools, most=1)


def test_definitions_of_two_tools_do_not_mix() -> None:
    """Equal names of definitions in different tools keep their own meaning."""
    first = tool(
        "a", type="object", properties={"x": {"$ref": "#/$defs/T"}}, **{"$defs": {"T": {"type": "string"}}}
    )
    second = tool(
        "b",
        type="object",
        properties={"x": {"items": {"$ref": "#/definitions/T"}}},
        definitions={"T": {"type": "array", "items": {"$ref": "#/definitions/U"}}, "U": {"type": "integer"}},
    )
    schema = one(first, second)
    assert resolve(schema, arguments(schema, 0)["properties"]["x"]["$ref"]) == {"type": "string"}
    inner = resolve(schema, arguments(schema, 1)["properties"]["x"]["items"]["$ref"])
    assert inner["type"] == "array"
    assert resolve(schema, inner["items"]["$ref"]) == {"type": "integer"}
    assert "$defs" not in arguments(schema, 0)
    assert "definitions" not in arguments(schema, 1)


@pytest.mark.parametrize("name", ["T", "a/b", "a~b", "a b", "é", "tool1"])
def test_definitions_may_have_any_name(name: str) -> None:
    """Names that are awkward in a pointer are followed."""
    escaped = name.replace("~", "~0").replace("/", "~1").replace(" ", "%20")
    schema = one(
        tool("f", properties={"x": {"$ref": f"#/$defs/{escaped}"}}, **{"$defs": {name: {"type": "null"}}})
    )
    assert resolve(schema, arguments(schema)["properties"]["x"]["$ref"]) == {"type": "null"}


def test_recursive_and_inner_references() -> None:
    """A reference to the whole schema, to a property, to a place in a list and inside a definition."""
    schema = one(
        tool(
            "f",
            type="object",
            properties={
                "child": {"$ref": "#"},
                "kind": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "same": {"$ref": "#/properties/kind/anyOf/1"},
                "deep": {"$ref": "#/$defs/T/properties/y"},
            },
            **{"$defs": {"T": {"properties": {"y": {"type": "boolean"}}}}},
        )
    )
    found = arguments(schema)
    assert resolve(schema, found["properties"]["child"]["$ref"]) is found
    assert resolve(schema, found["properties"]["same"]["$ref"]) == {"type": "string"}
    assert resolve(schema, found["properties"]["deep"]["$ref"]) == {"type": "boolean"}


def test_a_schema_that_is_a_reference() -> None:
    """Arguments may be one definition, as generators of schemas write them."""
    schema = one(
        tool("f", **{"$ref": "#/$defs/Args", "$defs": {"Args": {"type": "object", "properties": {"x": {}}}}})
    )
    assert arguments(schema)["properties"] == {"x": {}}


def test_data_and_property_names_are_not_keywords() -> None:
    """What only looks like a reference or a type is left alone."""
    properties = {
        "$ref": {"type": "string"},
        "type": {"enum": [{"$ref": "#/nowhere"}]},
        "definitions": {"const": {"type": "nothing"}, "x-note": {"type": "note"}},
    }
    schema = one(tool("f", type="object", properties=properties))
    assert arguments(schema)["properties"] == properties


def test_the_tools_own_schema_is_untouched() -> None:
    """Building copies: the request's schema stays what the caller sent."""
    parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"x": {"$ref": "#/$defs/T"}},
        "$defs": {"T": {}},
    }
    before = json.dumps(parameters)
    schema = one(tool("f", **parameters))
    assert json.dumps(parameters) == before
    assert "$schema" not in json.dumps(schema)


def test_arguments_are_closed_where_the_tool_left_it_open() -> None:
    """No model can ramble on in arguments nobody named, at any depth; what the tool says itself stands."""
    inner = {"type": "array", "items": {"properties": {"y": {}}}}
    found = arguments(one(tool("f", properties={"x": inner})))
    assert found["additionalProperties"] is False
    assert found["properties"]["x"]["items"]["additionalProperties"] is False
    assert (
        arguments(one(tool("f", properties={"x": {}}, additionalProperties=True)))["additionalProperties"]
        is True
    )
    assert "additionalProperties" not in arguments(one(tool("f", type="object")))
    assert arguments(one(FunctionTool(name="f")))["properties"] == {}


@pytest.mark.parametrize(
    "parameters",
    [
        {"allOf": [{"properties": {"x": {}}}, {"properties": {"y": {}}}]},
        {"properties": {"x": {}}, "anyOf": [{"properties": {"y": {}}, "required": ["y"]}]},
        {
            "properties": {"x": {"properties": {"a": {}}, "$ref": "#/$defs/T"}},
            "$defs": {"T": {"properties": {"b": {}}}},
        },
    ],
)
def test_schemas_that_combine_are_not_closed(parameters: dict[str, Any]) -> None:
    """Closing one part of a combination would forbid what another part asks for."""
    assert '"additionalProperties": false' not in json.dumps(arguments(one(tool("f", **parameters))))


def test_patterns_no_engine_can_follow_are_left_out() -> None:
    """A look-around would cost the whole constraint; other patterns stay."""
    schema = one(tool("f", properties={"x": {"pattern": "^(?!a).*$"}, "y": {"pattern": "^[a-z](?:b|c)$"}}))
    assert arguments(schema)["properties"] == {"x": {}, "y": {"pattern": "^[a-z](?:b|c)$"}}


def test_the_callers_answer_keeps_its_references() -> None:
    """In a union, the caller's definitions move too."""
    own = {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"type": "object", "properties": {"next": {"$ref": "#/$defs/A"}}}},
    }
    schema = union_schema([FunctionTool(name="f")], most=1, envelope="tool_calls", answer=own)
    answer = resolve(schema, schema["anyOf"][1]["$ref"])
    assert answer["type"] == "object"
    assert resolve(schema, answer["properties"]["next"]["$ref"]) is answer


def test_the_envelope_is_not_a_word_of_the_callers_schema() -> None:
    """The first key that the caller's schema does not hold is chosen."""
    assert envelope_for(None) == "tool_calls"
    taken: dict[str, Any] = {"properties": {"tool_calls": {}, "tool_calls_": {}}}
    assert envelope_for(taken) == "tool_calls__"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"properties": {"x": {"$ref": "other.json"}}}, "within the schema"),
        ({"properties": {"x": {"$ref": "#/$defs/T"}}}, "nothing stands there"),
        ({"properties": {"x": {"$ref": "#anchor"}}}, "anchors"),
        ({"properties": {"x": {"$ref": 5}}}, "within the schema"),
        ({"properties": {"x": {"type": "text"}}}, "unknown type 'text'"),
        ({"properties": {"x": {"type": ["string", 1]}}}, "unknown type 1"),
        ({"properties": {"x": {"properties": []}}}, "properties"),
    ],
)
def test_a_broken_schema_is_refused_with_its_reason(parameters: dict[str, Any], words: str) -> None:
    """The message says what is wrong, the param which tool."""
    with pytest.raises(BadRequest, match=words) as caught:
        one(FunctionTool(name="f"), tool("g", **parameters))
    assert caught.value.param == "tools[1].function.parameters"


def test_endless_nesting_is_refused() -> None:
    """A schema too deep to walk is the caller's fault, not a crash."""
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    with pytest.raises(BadRequest, match="nested too deeply"):
        one(tool("f", properties={"x": deep}))

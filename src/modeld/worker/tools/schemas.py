"""JSON Schemas that hold an engine to tool calls.

One outer shape serves every case: `{"tool_calls": [{"name": …, "arguments": …}, …]}`. Tried on a 135M model
beside a bare array and a bare object, it is the shape that most often names the right function and most often
ends; and its first key tells calls from the caller's own JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

from modeld.errors import BadRequest
from modeld.protocol.tasks import FunctionTool
from modeld.worker.tools.formats import ENVELOPE

Schema: TypeAlias = dict[str, Any]

MAX_CALLS = 8
"""Most calls in one enforced answer: a small model that loops must come to an end."""

WRITING = {
    "x-guidance": {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "coerce_one_of": True,
        "lenient": True,
    }
}
"""How llguidance (inside some builds of llama.cpp, and vLLM) is to read and write; other engines ignore it.

Without it a small model may fill its answer with line breaks, and a "oneOf" or "not" costs the whole
constraint, in silence.
"""

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value maps names to schemas."""

_NESTED = frozenset(
    (
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("not", "if", "then", "else", "anyOf", "oneOf", "allOf"),
    )
)
"""Keywords whose value is a schema or a list of schemas; all others hold data, where "$ref" means nothing."""

_COMBINING = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_EXCLUDING = frozenset({"allOf", "not", "if", "dependentSchemas", "unevaluatedProperties"})
_REGEX_LIMITS = re.compile(r"\(\?<?[=!]|\\[1-9]")
"""Look-around and back references: no grammar of an engine knows them."""

_HOMES = ("$defs", "definitions")
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})


def calls_schema(tools: Sequence[FunctionTool], *, most: int, envelope: str = ENVELOPE) -> Schema:
    """Return the schema of 1 to `most` calls of these tools. Raises BadRequest for a broken tool schema."""
    definitions: Schema = {}
    return _document(_calls(tools, most, envelope, definitions), definitions)


def answer_schema(answer: Schema | None) -> Schema | None:
    """Return the caller's own schema as engines are to get it where there are no tools beside it."""
    return None if answer is None else WRITING | answer


def union_schema(tools: Sequence[FunctionTool], *, most: int, envelope: str, answer: Schema | None) -> Schema:
    """Return the schema of calls or else the caller's own `answer` (None: any JSON object)."""
    definitions: Schema = {}
    calls = _calls(tools, most, envelope, definitions)
    own: Any = {"type": "object"}
    if answer is not None:
        own = _Embedding(answer, "answer", definitions, "response_format", "invalid_json_schema").root()
    return _document({"anyOf": [calls, own]}, definitions)


def envelope_for(answer: Schema | None) -> str:
    """Return a key for the calls that the caller's schema does not speak of."""
    text = json.dumps(answer)
    envelope = ENVELOPE
    while json.dumps(envelope) in text:
        envelope += "_"
    return envelope


def _document(schema: Schema, definitions: Schema) -> Schema:
    return schema | ({"$defs": definitions} if definitions else {}) | WRITING


def _calls(tools: Sequence[FunctionTool], most: int, envelope: str, definitions: Schema) -> Schema:
    calls = [
        _closed({"name": {"const": tool.name}, "arguments": _arguments(tool, at, definitions)})
        for at, tool in enumerate(tools)
    ]
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return _closed({envelope: {"type": "array", "items": items, "minItems": 1, "maxItems": most}})


def _closed(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _arguments(tool: FunctionTool, at: int, definitions: Schema) -> Schema:
    if tool.parameters is None:
        return _closed({})
    param = f"tools[{at}].function.parameters"
    code = "invalid_function_parameters"
    schema = _Embedding(tool.parameters, f"tool{at}", definitions, param, code, close=True).root()
    if not _COMBINING & schema.keys():
        schema["type"] = "object"
    return schema


def _combines(schema: Any) -> bool:
    """True where closing one object may make another part of the schema impossible to fulfil."""
    if isinstance(schema, list):
        return any(_combines(one) for one in schema)
    if not isinstance(schema, dict):
        return False
    if _EXCLUDING & schema.keys() or ("properties" in schema and _COMBINING & schema.keys()):
        return True
    return any(_combines(one) for one in schema.values())


class _Embedding:
    """Moves one document's schema into another: its definitions go to the new root under their own prefix."""

    def __init__(
        self,
        document: Schema,
        prefix: str,
        definitions: Schema,
        param: str,
        code: str,
        *,
        close: bool = False,
    ) -> None:
        self._document = document
        self._prefix = prefix
        self._definitions = definitions
        self._param = param
        self._code = code
        self._close = close

    def root(self) -> Schema:
        """Return the schema as it stands inside the new document. Raises BadRequest."""
        try:
            self._close = self._close and not _combines(self._document)
            root: Schema = self._rewritten(self._document)
            for home in _HOMES:
                for name, schema in root.pop(home, {}).items():
                    self._definitions[self._key(home, name)] = schema
        except RecursionError:
            raise self._error("is nested too deeply") from None
        for key in ("$schema", "$id", "id"):
            if isinstance(root.get(key), str):
                del root[key]
        if self._prefix in self._definitions:
            self._definitions[self._prefix] = root
            return {"$ref": f"#/$defs/{self._prefix}"}
        return root

    def _rewritten(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        kinds = schema.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if not isinstance(kind, str) or kind not in _TYPES:
                raise self._error(f"has the unknown type {kind!r}; known are {', '.join(sorted(_TYPES))}")
        result: Schema = {}
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str) and _REGEX_LIMITS.search(value):
                continue
            if key == "$ref":
                result[key] = self._target(value)
            elif key in _MAPS:
                if not isinstance(value, dict):
                    raise self._error(f'has a "{key}" that is no object of name → schema')
                result[key] = {name: self._rewritten(one) for name, one in value.items()}
            elif key not in _NESTED:
                result[key] = value
            elif isinstance(value, list):
                result[key] = [self._rewritten(one) for one in value]
            else:
                result[key] = self._rewritten(value)
        if self._close and result.get("properties"):
            # What fits this also fits the tool's own schema, and no model can ramble on in arguments that
            # nobody named: some engines let it, where a schema does not speak of more properties.
            result.setdefault("additionalProperties", False)
        return result

    def _target(self, reference: Any) -> str:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise self._error(
                f'has the "$ref" {reference!r}; only references within the schema work (#/$defs/…)'
            )
        steps = [part.replace("~1", "/").replace("~0", "~") for part in unquote(reference[1:]).split("/")[1:]]
        found: Any = self._document
        for step in steps:
            if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                raise self._error(f'has the "$ref" {reference!r}, but nothing stands there')
        if not steps and reference not in ("#", "#/"):
            raise self._error(f'has the "$ref" {reference!r}; anchors do not work, use #/$defs/…')
        if len(steps) >= 2 and steps[0] in _HOMES:
            kept, rest = self._key(steps[0], steps[1]), steps[2:]
        else:
            kept, rest = self._prefix, steps
            self._definitions.setdefault(kept, {})
        tail = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in rest)
        return f"#/$defs/{kept}{tail}"

    def _key(self, home: str, name: str) -> str:
        """A definition's new name: letters and digits only, since engines make grammar rules of it."""
        safe = "".join(c if c.isascii() and c.isalnum() else f"-{ord(c):x}-" for c in name)
        return f"{self._prefix}-{'' if home == '$defs' else 'old-'}{safe}"

    def _error(self, what: str) -> BadRequest:
        return BadRequest(f"The JSON Schema {what}.", param=self._param, code=self._code)

"""What can never work: tools and tool choices that no engine could serve."""

from __future__ import annotations

import re
from typing import Any

from modeld.errors import BadRequest
from modeld.protocol.tasks import ChatTask, FunctionTool

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""What a function may be called."""

_SHAPING = ("$ref", "anyOf", "oneOf", "allOf")
"""Keywords that may make a schema one of objects without its saying "type": "object" itself."""


def check_tools(task: ChatTask) -> None:
    """Raise BadRequest, `param` naming the place, for the first thing wrong with tools or tool_choice."""
    seen: dict[str, int] = {}
    for at, tool in enumerate(task.tools):
        if not NAME.fullmatch(tool.name):
            raise BadRequest(
                f"The function name {tool.name[:80]!r} is not allowed: use 1 to 64 letters, digits, "
                "underscores, dots or dashes.",
                param=f"tools[{at}].function.name",
                code="invalid_value",
            )
        if tool.name in seen:
            raise BadRequest(
                f"tools[{seen[tool.name]}] and tools[{at}] are both named {tool.name!r}; "
                "give every function its own name.",
                param=f"tools[{at}].function.name",
                code="invalid_value",
            )
        seen[tool.name] = at
        _check_parameters(tool, f"tools[{at}].function.parameters")
    choice = task.tool_choice
    if choice.mode in ("required", "function") and not task.tools:
        raise BadRequest(
            "tool_choice asks for a call, but the request has no tools; send tools or leave tool_choice out.",
            param="tool_choice",
            code="invalid_value",
        )
    if choice.mode == "function" and choice.name not in seen:
        raise BadRequest(
            f"tool_choice names {choice.name!r}, which is none of the {len(seen)} tools: "
            f"{', '.join(list(seen)[:10])}{', …' if len(seen) > 10 else ''}.",
            param="tool_choice",
            code="invalid_value",
        )


def _check_parameters(tool: FunctionTool, param: str) -> None:
    schema = tool.parameters
    if schema is None:
        return
    kind: Any = schema.get("type")
    if kind is None:
        kinds = [] if any(key in schema for key in _SHAPING) else ["object"]
    else:
        kinds = kind if isinstance(kind, list) else [kind]
    if kinds and "object" not in kinds:
        raise BadRequest(
            f"The parameters of {tool.name!r} are of type {kind!r}; arguments are always an object: "
            'use {"type": "object", "properties": {…}}.',
            param=param,
            code="invalid_function_parameters",
        )
    if not isinstance(schema.get("properties", {}), dict):
        raise BadRequest(
            f'"properties" in the parameters of {tool.name!r} must be an object of name → schema.',
            param=param,
            code="invalid_function_parameters",
        )

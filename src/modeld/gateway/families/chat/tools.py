"""The tools of a chat request, and which of them the model may or must call."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec

from modeld.errors import BadRequest
from modeld.gateway.decoding import check_free, invalid, missing
from modeld.protocol.tasks import FunctionTool, ToolChoice

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""OpenAI takes 64 of letters, digits, _ and -; names from MCP servers hold more."""


class _Definition(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct):
    """One tool as sent."""

    type: str
    function: _Definition | None = None


class _Named(msgspec.Struct):
    name: str


class _FunctionChoice(msgspec.Struct, tag="function"):
    function: _Named


class _AllowedTool(msgspec.Struct):
    function: _Named
    type: Literal["function"] | None = None


class _Allowed(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[_AllowedTool]


class _AllowedChoice(msgspec.Struct, tag="allowed_tools"):
    allowed_tools: _Allowed


ToolChoiceBody: TypeAlias = _FunctionChoice | _AllowedChoice
Choice: TypeAlias = Literal["none", "auto", "required"] | ToolChoiceBody | None


def to_tools(bodies: list[ToolBody], choice: Choice) -> tuple[tuple[FunctionTool, ...], ToolChoice]:
    """Return the tools a model is shown and its choice among them. Raises BadRequest naming the tool."""
    tools: dict[str, FunctionTool] = {}
    for at, body in enumerate(bodies):
        tool = _tool(body, f"tools[{at}]")
        if tool.name in tools:
            raise invalid(f"tools[{at}].function.name", f"{tool.name!r} is already the name of another tool")
        tools[tool.name] = tool
    match choice:
        case None | "auto":
            return tuple(tools.values()), ToolChoice()
        case "none":
            return tuple(tools.values()), ToolChoice(mode="none")
        case _ if not tools:
            raise invalid("tool_choice", "it asks for a tool call, but the request has no tools")
        case "required":
            return tuple(tools.values()), ToolChoice(mode="required")
        case _FunctionChoice(function=named):
            _known(named.name, tools, "tool_choice.function.name")
            return tuple(tools.values()), ToolChoice(mode="function", name=named.name)
        case _AllowedChoice(allowed_tools=allowed):
            if not allowed.tools:
                raise invalid("tool_choice.allowed_tools.tools", "it allows no tool")
            names = [tool.function.name for tool in allowed.tools]
            for at, name in enumerate(names):
                _known(name, tools, f"tool_choice.allowed_tools.tools[{at}].function.name")
            # A tool that may not be called need not be in the prompt.
            shown = tuple(tool for name, tool in tools.items() if name in names)
            return shown, ToolChoice(mode=allowed.mode)


def _tool(body: ToolBody, where: str) -> FunctionTool:
    if body.type != "function":
        raise BadRequest(
            f"invalid value for '{where}.type': {body.type[:40]!r}; only function tools are supported",
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    if body.function is None:
        raise missing(f"{where}.function", "a function tool is described by it")
    if not NAME.fullmatch(body.function.name):
        raise invalid(f"{where}.function.name", "expected 1 to 128 of letters, digits and _ . : / -")
    if body.function.parameters is not None:
        check_free(body.function.parameters, f"{where}.function.parameters")
    return FunctionTool(
        name=body.function.name,
        description=body.function.description,
        parameters=body.function.parameters,
        strict=body.function.strict,
    )


def _known(name: str, tools: dict[str, FunctionTool], param: str) -> None:
    if name not in tools:
        raise invalid(param, f"the request has no tool named {name[:128]!r}")

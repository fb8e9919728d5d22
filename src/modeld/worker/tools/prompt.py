"""How tools are told to a model whose chat template knows none: plain words in the system message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from modeld.protocol.tasks import FunctionTool

_CALL = '{"name": <function name>, "arguments": <arguments object>}'


def tool_list(tools: Sequence[FunctionTool]) -> str:
    """Return the tools, one JSON object a line, between tags that most tool-trained models have seen."""
    lines = "\n".join(json.dumps(_described(tool), ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call functions to help the user. The functions, one JSON object per line:\n"
        f"<tools>\n{lines}\n</tools>"
    )


def free_rule(*, parallel: bool) -> str:
    """Return how to call where the model is free to answer in words."""
    count = "For each call, write" if parallel else "To call one, write"
    return (
        f"{count} a JSON object between tags:\n<tool_call>\n{_CALL}\n</tool_call>\n"
        "When no function is needed, answer in plain words."
    )


def enforced_rule(envelope: str) -> str:
    """Return the form of the answer where a call is enforced."""
    return f"Answer only with JSON: {_envelope(envelope)}"


def union_rule(envelope: str) -> str:
    """Return the form of the answer where it is either calls or the JSON the caller asked for."""
    return (
        f"When a function helps, answer only with JSON: {_envelope(envelope)}\n"
        "Otherwise answer only with the JSON that the user asks for."
    )


def _envelope(envelope: str) -> str:
    return f'{{"{envelope}": [{_CALL}]}}'


def _described(tool: FunctionTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}

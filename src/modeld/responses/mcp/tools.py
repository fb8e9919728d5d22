"""The tools of MCP servers: what is taken from a list, and under which names a model sees them. Pure.

Everything that comes from a server is untrusted, and so is a list that a caller hands back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from modeld.errors import BadRequest
from modeld.gateway.decoding import check_free
from modeld.responses.mcp.servers import Approval, McpServer, ToolFilter, policy, public, read_servers

__all__ = [
    "Approval",
    "McpServer",
    "RemoteTool",
    "ToolFilter",
    "choose",
    "expose",
    "policy",
    "public",
    "read_servers",
    "read_tool",
]

LONGEST_NAME = 128
"""Characters of a name, as exposed and as listed; MCP's own limit."""

LONGEST_DESCRIPTION = 16 * 1024
"""Characters of a description that a model is shown; the rest is cut off."""

MOST_SCHEMA = 256 * 1024
"""Bytes of one tool's schema, as JSON."""

_UNFIT = re.compile(r"[^A-Za-z0-9_.:/-]+")
"""What no name of a function holds."""


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool that a model may call. `name` is the server's name for it, `exposed` the model's.

    `annotations` are those of the list item: {"read_only": bool}.
    """

    label: str
    name: str
    exposed: str
    description: str | None
    schema: dict[str, Any]
    annotations: Mapping[str, Any]
    needs_approval: bool


def read_tool(raw: Any) -> dict[str, Any] | str:
    """Return a tool of a server's list as an item of the response shows it, or why it is left out.

    `raw` is as MCP has it: name, description, inputSchema, annotations.
    """
    if not isinstance(raw, dict):
        return "it is not an object"
    name, schema = raw.get("name"), raw.get("inputSchema")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        return f"its name is not 1 to {LONGEST_NAME} printable characters"
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its schema is not that of an object"
    try:
        check_free(schema, "inputSchema")
        size = len(msgspec.json.encode(schema))
    except BadRequest as error:
        return error.message
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        return "its schema is no JSON"
    if size > MOST_SCHEMA:
        return f"its schema has {size} bytes, more than {MOST_SCHEMA}"
    description = raw.get("description")
    hints = raw.get("annotations")
    return {
        "name": name,
        "description": description[:LONGEST_DESCRIPTION] if isinstance(description, str) else None,
        "input_schema": schema,
        # A hint that is missing is read as MCP says: the tool may change things.
        "annotations": {"read_only": isinstance(hints, dict) and hints.get("readOnlyHint") is True},
    }


def choose(server: McpServer, listed: Iterable[Any]) -> tuple[RemoteTool, ...]:
    """Return the tools of a server that the request allows, in the list's order, each name once.

    `listed` are the tools of an mcp_list_tools item; those that are not whole are passed over.
    """
    found: dict[str, RemoteTool] = {}
    for tool in listed:
        if not isinstance(tool, dict):
            continue
        hints = tool.get("annotations")
        read_only = isinstance(hints, dict) and hints.get("read_only") is True
        raw = {**tool, "inputSchema": tool.get("input_schema"), "annotations": {"readOnlyHint": read_only}}
        known = read_tool(raw)
        if isinstance(known, str) or known["name"] in found:
            continue
        name = known["name"]
        if server.allowed is not None and not server.allowed.matches(name, read_only):
            continue
        found[name] = RemoteTool(
            label=server.label,
            name=name,
            exposed=name,
            description=known["description"],
            schema=known["input_schema"],
            annotations=known["annotations"],
            needs_approval=server.approval.needed(name, read_only),
        )
    return tuple(found.values())


def expose(tools: Iterable[RemoteTool], taken: Iterable[str]) -> tuple[RemoteTool, ...]:
    """Return tools under names that functions can have, each unique and none of `taken`.

    A tool keeps its name where that is possible; else its server's label stands before it, or a number after.
    """
    used = set(taken)
    found = []
    for tool in tools:
        clean = _UNFIT.sub("_", tool.name)[:LONGEST_NAME]
        labelled = f"{tool.label}_{clean}"[:LONGEST_NAME]
        exposed = clean if clean not in used else labelled
        number = 2
        while exposed in used:
            end = f"_{number}"
            exposed = labelled[: LONGEST_NAME - len(end)] + end
            number += 1
        used.add(exposed)
        found.append(replace(tool, exposed=exposed))
    return tuple(found)

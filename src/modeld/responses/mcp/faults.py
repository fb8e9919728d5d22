"""What goes wrong with a server, as responses tell it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

NO_CONNECTION = -32000
"""MCP's code for a connection that is not there (any more)."""

TIMED_OUT = -32001
"""MCP's code for an answer that did not come in time."""

INVALID_PARAMS = -32602
"""JSON-RPC's code for arguments that cannot be used."""

UNREADABLE = -32700
"""JSON-RPC's code for an answer that nobody can read."""

LONGEST_MESSAGE = 2000
"""Characters of a server's own words that are passed on; a tool's are its answer, which has its limit."""


class Fault(Exception):
    """A server, or a tool of it, did not do its part. The words are fit for whoever called it.

    `kind`: "http" for a status, which is `code`; "protocol" for an error of MCP's with its code; "tool" for
    a tool that ran and failed.
    """

    def __init__(self, kind: Literal["http", "protocol", "tool"], code: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message if kind == "tool" else message[:LONGEST_MESSAGE]

    def error(self) -> dict[str, Any]:
        """Return the error of an mcp_call item."""
        if self.kind == "tool":
            content = [{"type": "text", "text": self.message}]
            return {"type": "mcp_tool_execution_error", "content": content}
        kind = "http_error" if self.kind == "http" else "mcp_protocol_error"
        return {"type": kind, "code": self.code, "message": self.message}


def phrase(status: int) -> str:
    """Return a status as people read it: "401 (Unauthorized)"."""
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)

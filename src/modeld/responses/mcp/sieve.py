"""What of a server's messages reaches the SDK. Loads the SDK, as `client` does."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse

from modeld.responses.mcp.tools import read_tool

log = logging.getLogger("modeld.responses.mcp")

MOST_QUESTIONS = 32
"""What a server may ask back in one session; each is answered, with an error. More gets no answer."""


class Sieve:
    """The SDK's transport, without what nobody needs, and with lists of usable tools only.

    For one bad tool the SDK refuses a whole page, and for each notice or question it makes a task.
    """

    def __init__(self, inner: AbstractAsyncContextManager[Any], label: str) -> None:
        self._inner = inner
        self._label = label

    async def __aenter__(self) -> tuple[Any, Any]:
        """Give what is read and what is written."""
        read, write = await self._inner.__aenter__()
        return _Sieved(read, self._label), write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Close both."""
        return await self._inner.__aexit__(kind, error, trace)


class _Sieved:
    """What comes from a server, as the SDK reads it."""

    def __init__(self, inner: Any, label: str) -> None:
        self._inner = inner
        self._label = label
        self._questions = 0

    @property
    def last_context(self) -> Any:
        return self._inner.last_context

    async def receive(self) -> Any:
        while not self._needed(item := await self._inner.receive()):
            pass
        return self._sieved(item)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._needed(item := await self._inner.__anext__()):
            pass
        return self._sieved(item)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        done: bool | None = await self._inner.__aexit__(kind, error, trace)
        return done

    def _needed(self, item: Any) -> bool:
        """Say whether a message is for the SDK to see."""
        if not isinstance(item, SessionMessage) or isinstance(item.message, JSONRPCResponse | JSONRPCError):
            return True
        if isinstance(item.message, JSONRPCNotification):
            return False
        self._questions += 1
        return self._questions <= MOST_QUESTIONS

    def _sieved(self, item: Any) -> Any:
        if not isinstance(item, SessionMessage) or not isinstance(item.message, JSONRPCResponse):
            return item
        tools = item.message.result.get("tools")
        if isinstance(tools, list):
            item.message.result["tools"] = [kept for tool in tools if (kept := self._kept(tool)) is not None]
        return item

    def _kept(self, tool: Any) -> dict[str, Any] | None:
        known = read_tool(tool)
        if isinstance(known, str):
            name = tool.get("name") if isinstance(tool, dict) else None
            log.warning(
                "a tool of an MCP server is left out",
                extra={"server": self._label, "tool": str(name)[:128], "reason": known},
            )
            return None
        kept = {
            "name": known["name"],
            "inputSchema": known["input_schema"],
            "annotations": {"readOnlyHint": known["annotations"]["read_only"]},
        }
        return kept if known["description"] is None else {**kept, "description": known["description"]}

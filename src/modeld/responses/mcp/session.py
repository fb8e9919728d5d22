"""The servers of one run: a session with each, opened when first needed and closed at the end."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec

from modeld.errors import UpstreamFailed
from modeld.gateway.egress import Egress
from modeld.responses.mcp.faults import INVALID_PARAMS, NO_CONNECTION, Fault, phrase
from modeld.responses.mcp.limits import McpLimits
from modeld.responses.mcp.servers import McpServer

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["CallResult", "McpLimits", "Toolbox"]

ListedTools: TypeAlias = list[dict[str, Any]]
"""Tools as an mcp_list_tools item has them: name, description, input_schema, annotations."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What came of a call: `output`, or the `error` of an mcp_call item, never both."""

    output: str | None
    error: dict[str, Any] | None


class Toolbox:
    """The MCP servers of one run. Entered and left by one task; list and call may be awaited by any.

    A session is a task of the box, so that it ends with it, `close_s` after the end at the latest. Several
    calls run at once. Whoever is cancelled in a call cancels the tool at the server, and nothing else.
    """

    def __init__(self, servers: Iterable[McpServer], egress: Egress, limits: McpLimits | None = None) -> None:
        self._servers = {server.label: server for server in servers}
        self._egress = egress
        self._limits = limits or McpLimits()
        self._group = asyncio.TaskGroup()
        self._sessions: dict[str, _Session] = {}
        self._owners: dict[asyncio.Task[None], _Session] = {}
        self._left = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        for session in self._owners.values():
            session.ended.set()
        try:
            if self._owners:
                await asyncio.wait(self._owners, timeout=self._limits.close_s)
        finally:
            for owner in self._owners:
                owner.cancel()
            # Without the error: a group would wrap it, and it is no task's.
            await self._group.__aexit__(None, None, None)

    async def list(self, label: str) -> ListedTools:
        """Return a server's tools. Raises UpstreamFailed."""
        limits = self._limits
        loop = asyncio.get_running_loop()
        end = loop.time() + limits.list_s
        try:
            session = await self._session(label)
            return await session.list(end - loop.time())
        except Fault as fault:
            reason = f"Http status code: {phrase(fault.code)}" if fault.kind == "http" else fault.message
            if fault.kind == "tool":
                reason = f"its list has more than {limits.list_bytes} bytes"
            raise UpstreamFailed(
                f"Error retrieving tool list from MCP server: '{label}'. {reason}", param="tools"
            ) from None

    async def call(self, label: str, name: str, arguments: str) -> CallResult:
        """Return what a tool answers to `arguments`, a JSON object as text.

        Never raises for a server's fault. Being cancelled cancels the tool at the server.
        """
        try:
            given = _arguments(arguments)
            session = await self._session(label)
            fresh = session.fresh
            try:
                return await session.call(name, given)
            except Fault as fault:
                if fresh or (fault.kind, fault.code) != ("http", 404):
                    raise
                # The server has forgotten the session, so it did nothing: a new one may ask again.
                session.retire()
                return await (await self._session(label)).call(name, given)
        except Fault as fault:
            return CallResult(None, fault.error())

    async def _session(self, label: str) -> _Session:
        """Return an open session. Raises Fault."""
        if self._left:
            raise Fault("protocol", NO_CONNECTION, "the run that this call belongs to has ended")
        session = self._sessions.get(label)
        if session is None or session.over:
            session = self._sessions[label] = _Session(self._servers[label], self._egress, self._limits)
            owner = self._group.create_task(session.own())
            owner.add_done_callback(session.done)
            self._owners[owner] = session
        await session.opened.wait()
        if session.fault is not None:
            raise session.fault
        return session


class _Session:
    """One session with one server. `own` is the task that opens and closes it."""

    def __init__(self, server: McpServer, egress: Egress, limits: McpLimits) -> None:
        self._server = server
        self._egress = egress
        self._limits = limits
        self._list_time = f"{limits.list_s:g} s (mcp.list_timeout)"
        self._client: Client | None = None
        self.opened = asyncio.Event()
        """It is open, or failed to be."""
        self.ended = asyncio.Event()
        """Nobody needs it any more."""
        self.fault: Fault | None = None
        self.over = False
        """It is of no use any more."""
        self.fresh = True
        """Nothing was asked in it yet."""

    async def own(self) -> None:
        """Open the session, keep it until it is ended, close it. Raises nothing but cancellation."""
        # Loaded by a thread: it takes a second, for which everything else would stand still.
        await asyncio.to_thread(importlib.import_module, "modeld.responses.mcp.client")
        from modeld.responses.mcp import client, transport

        note = transport.Note(left=self._limits.list_bytes)
        transport.NOTE.set(note)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.list_s) as limit:
                async with client.connected(self._server, self._egress, self._limits) as self._client:
                    limit.reschedule(None)
                    self.opened.set()
                    try:
                        await self.ended.wait()
                    finally:
                        limit.reschedule(loop.time() + self._limits.close_s)
        except Exception as error:
            if not self.opened.is_set():
                self.fault = client.explain(error, note, self._server, self._list_time)

    def done(self, _: asyncio.Task[None]) -> None:
        """Have nobody wait for a session that is over, also when its task was cancelled before it began."""
        self._client = None
        self.over = True
        self.opened.set()

    def retire(self) -> None:
        """Have the next use open another session; what is under way in this one goes on."""
        self.over = True

    async def list(self, seconds: float) -> ListedTools:
        """Return the server's tools; `seconds` are left for that. Raises Fault."""
        from modeld.responses.mcp import client, transport

        limits, speaker = self._limits, self._open()
        note = transport.Note(left=limits.list_bytes)
        tools = await client.ask(
            note,
            seconds,
            self._list_time,
            self._server,
            lambda: client.listed(speaker, limits, self._server.label),
        )
        return client.without_token(tools, self._server)

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Return what a tool answers. Raises Fault."""
        from modeld.responses.mcp import client, transport

        limits, speaker = self._limits, self._open()
        note = transport.Note(left=limits.answer_bytes)
        try:
            result = await client.ask(
                note,
                limits.call_s,
                f"{limits.call_s:g} s (mcp.call_timeout)",
                self._server,
                lambda: client.called(speaker, name, arguments, limits, self._server.label),
            )
        except Fault as fault:
            if note.over:
                raise self._too_large(f"more than {limits.answer_bytes}") from None
            if (fault.kind, fault.code) == ("protocol", NO_CONNECTION):
                self.retire()
            raise
        text = client.without_token(client.text_of(result), self._server)
        if (size := len(text.encode())) > limits.result_bytes:
            raise self._too_large(str(size))
        if result.is_error:
            raise Fault("tool", 0, text)
        return CallResult(text, None)

    def _open(self) -> Client:
        """Return the open session's speaker. Raises Fault when it has ended meanwhile."""
        self.fresh, speaker = False, self._client
        if speaker is None:
            raise Fault("protocol", NO_CONNECTION, "the session with the server ended")
        return speaker

    def _too_large(self, size: str) -> Fault:
        limit = self._limits.result_bytes
        return Fault(
            "tool", 0, f"the tool's answer has {size} bytes; {limit} are the limit (mcp.result_bytes)"
        )


def _arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments. Raises Fault for what a model wrote and no server can read."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Fault("protocol", INVALID_PARAMS, "the call's arguments are not a JSON object") from None

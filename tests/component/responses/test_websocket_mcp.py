"""MCP servers' tools on a socket: calls end with it, and approvals work in chains that are not stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modeld.protocol.tasks import ChatTask, Finish, Task, Text, ToolCallDelta, Usage
from tests.component.responses.served import served
from tests.component.responses.sockets import connected, told
from tests.fakes.pool import Answer, FakePool
from tests.harness.mcp_server import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Run a real MCP server."""
    with serving() as started:
        yield started


def calling(name: str, arguments: str) -> FakePool:
    """Return a pool whose model calls a tool, and says what came of it when it has been answered."""

    def play(model: str, task: Task) -> list[Answer]:
        assert isinstance(task, ChatTask)
        last = task.messages[-1]
        if last.role == "tool":
            return [[Text("Done.")], [Finish("stop")], [Usage(9, 1)], None]
        call = ToolCallDelta(call=0, id="call_1", name=name, arguments=arguments)
        return [[call], [Finish("tool_calls")], [Usage(5, 3)], None]

    return FakePool(answer=play)


def tool(server: Server, approval: str = "never") -> list[dict[str, Any]]:
    """Return the tool of a request."""
    return [{"type": "mcp", "server_label": "box", "server_url": server.url, "require_approval": approval}]


async def test_leaving_cancels_a_tool(tmp_path: Path, server: Server) -> None:
    """When its socket is closed, a tool that runs for a response is cancelled at its server."""
    pool = calling("hang", '{"mark":"socket"}')
    async with served(tmp_path, pool) as api:
        async with connected(api) as client:
            await client.create(tools=tool(server))
            await server.seen("hang", "begin", mark="socket")
        await server.seen("hang", "cancelled", mark="socket")


async def test_an_approval_that_is_not_stored(tmp_path: Path, server: Server) -> None:
    """A call is asked for, approved and run on one socket, with nothing of it in the store, exactly once."""
    pool = calling("echo", '{"text":"fox"}')
    asking: dict[str, Any] = {"tools": tool(server, "always"), "store": False}
    async with served(tmp_path, pool) as api, connected(api) as client:
        first = await client.whole(**asking)
        request = first["output"][-1]
        assert request["type"] == "mcp_approval_request"
        answer = [{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}]
        second = await client.whole(answer, previous_response_id=first["id"], **asking)
        assert [item["type"] for item in second["output"]] == ["mcp_call", "message"]
        assert second["output"][0]["approval_request_id"] == request["id"]
        again = await client.refused(answer, previous_response_id=second["id"], **asking)
        assert told(again)[0] == 400
    begun = {"tool": "echo", "event": "begin", "arguments": {"text": "fox"}}
    assert server.calls().count(begun) == 1


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """A server that cannot be asked is told on the lane, and ends its response."""
    bad = [{"type": "mcp", "server_label": "box", "server_url": "http://127.0.0.1:9/mcp"}]
    async with served(tmp_path) as api, connected(api) as client:
        events = await client.turn(tools=bad, stream_id="a")
        assert {event["stream_id"] for event in events} == {"a"}
        assert "response.mcp_list_tools.failed" in [event["type"] for event in events]
        assert events[-1]["type"] == "response.failed"
        await client.whole(stream_id="a")

"""Lines of a batch that call tools of MCP servers: what cannot be undone is not done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from openai.types import Batch

from modeld.errors import ModeldError, ModelUnavailable, Overloaded, StoreFailed, WorkerDied
from modeld.jobs import runner
from modeld.protocol.tasks import ChatTask, Finish, Task, Text, ToolCallDelta, Usage
from modeld.responses import engine
from modeld.responses.mcp.session import CallResult
from modeld.store.jobs import Jobs
from tests.component.jobs.batches_served import RESPOND, Served, everything, line, serving
from tests.component.jobs.served import WAIT_S, JobPool
from tests.fakes.pool import Answer

SERVER = {
    "type": "mcp",
    "server_label": "sums",
    "server_url": "https://sums.example/mcp",
    "require_approval": "never",
}


class Tools:
    """A server with one tool, instead of the box of servers; `then` is what happens while it is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.called = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.then: Callable[[], object] = lambda: None

    def __call__(self, *_: Any) -> Tools:
        return self

    async def __aenter__(self) -> Tools:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def list(self, label: str) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {}}
        return [{"name": "add", "description": "Add.", "input_schema": schema, "annotations": None}]

    async def call(self, label: str, name: str, arguments: str) -> CallResult:
        self.calls.append(arguments)
        self.called.set()
        self.then()
        await self.go.wait()
        return CallResult("3", None)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Give the server."""
    monkeypatch.setattr(runner, "PAUSE_S", (0.01, 0.02))
    tools = Tools()
    monkeypatch.setattr(engine, "Toolbox", tools)
    return tools


def after_tools(task: Task) -> bool:
    """Say whether a turn comes after a tool's answer."""
    return isinstance(task, ChatTask) and task.messages[-1].role == "tool"


def calling(name: str, task: Task) -> list[Answer]:
    """Call the tool, and say what came of it; without tools, as usual."""
    if not isinstance(task, ChatTask) or not task.tools or after_tools(task):
        return everything(name, task)
    call = ToolCallDelta(call=0, id="call_1", name=task.tools[0].name, arguments="{}")
    return [[call], [Finish("tool_calls")], [Usage(5, 3)], None]


def asking(name: str) -> bytes:
    """Return a line that has the tool."""
    return line(name, {"model": "tiny", "input": "one and two?", "tools": [SERVER]}, RESPOND)


def plain(name: str) -> bytes:
    """Return a line without tools."""
    return line(name, {"model": "tiny", "input": "hello"}, RESPOND)


async def failed(api: Served, batch: Batch) -> dict[str, Any]:
    """Return the only line that failed."""
    [entry] = await api.lines(batch.error_file_id)
    return entry


async def test_a_tool_is_called_and_answered(tmp_path: Path, tools: Tools) -> None:
    """Once for each line."""
    async with serving(tmp_path, JobPool(answer=calling)) as api:
        batch = await api.over(await api.begin(asking("a") + asking("b"), RESPOND))
        for entry in await api.lines(batch.output_file_id):
            output = entry["response"]["body"]["output"]
            assert [item["type"] for item in output] == ["mcp_list_tools", "mcp_call", "message"]
            assert output[-1]["content"][0]["text"] == "3"
        assert len(tools.calls) == 2


@pytest.mark.parametrize("error", [WorkerDied("dead"), StoreFailed("the disk is full; make room")])
async def test_a_line_whose_engine_dies_after_a_tool_was_called_fails_and_says_so(
    tmp_path: Path, tools: Tools, error: ModeldError
) -> None:
    """It is not tried again, as one is that has called nothing yet."""

    def answer(name: str, task: Task) -> list[Answer]:
        return [error] if after_tools(task) else calling(name, task)

    async with serving(tmp_path, JobPool(answer=answer)) as api:
        batch = await api.over(await api.begin(asking("a") + plain("b"), RESPOND))
        entry = await failed(api, batch)
        assert entry["custom_id"] == "a"
        assert entry["error"]["message"] == (
            f"{error.message}; tools had been called by then, so it is not tried again: "
            "they would be called twice"
        )
        assert entry["response"]["status_code"] >= 500
        assert len(await api.lines(batch.output_file_id)) == 1
        assert len(tools.calls) == 1


@pytest.mark.parametrize("error", [WorkerDied("dead"), Overloaded("full")])
async def test_a_line_is_begun_anew_as_long_as_it_has_called_nothing(
    tmp_path: Path, tools: Tools, error: ModeldError
) -> None:
    """As any other."""
    errors = [error]

    def answer(name: str, task: Task) -> list[Answer]:
        return [errors.pop()] if errors else calling(name, task)

    async with serving(tmp_path, JobPool(answer=answer)) as api:
        batch = await api.over(await api.begin(asking("a"), RESPOND))
        assert len(await api.lines(batch.output_file_id)) == 1
        assert len(tools.calls) == 1


async def test_a_line_gives_way_only_before_it_calls_a_tool(tmp_path: Path, tools: Tools) -> None:
    """Its later turns keep their slots."""

    def answer(name: str, task: Task) -> list[Answer]:
        return [[Text("3")]] if after_tools(task) else []

    pool = JobPool(answer=answer, free=1)
    async with serving(tmp_path, pool) as api:
        batch = await api.begin(asking("a"), RESPOND)
        await pool.until(lambda: len(pool.begun) == 1)
        pool.begun[0].give_way()
        await pool.until(lambda: len(pool.begun) == 2)
        assert pool.begun[1].yields
        pool.begun[1].feed(*calling("tiny", pool.begun[1].task))
        await pool.until(lambda: len(pool.begun) == 3)
        assert not pool.begun[2].yields
        pool.begun[2].feed([Finish("stop")], [Usage(5, 1)], None)
        batch = await api.over(batch)
        assert len(await api.lines(batch.output_file_id)) == 1
        assert len(tools.calls) == 1


@pytest.mark.parametrize("error", [Overloaded("full"), ModelUnavailable("loading")])
async def test_a_line_that_has_called_a_tool_waits_for_its_model(
    tmp_path: Path, tools: Tools, error: ModeldError
) -> None:
    """Where it is, instead of being begun anew."""
    pool = JobPool(answer=calling)
    tools.then = lambda: pool.refusals.extend([error] * 5)
    async with serving(tmp_path, pool) as api:
        batch = await api.over(await api.begin(asking("a"), RESPOND))
        assert len(await api.lines(batch.output_file_id)) == 1
        assert pool.refusals == []
        assert len(tools.calls) == 1


async def test_a_line_that_a_life_leaves_in_a_tool_fails_in_the_next(tmp_path: Path, tools: Tools) -> None:
    """It says why; the others are done."""
    tools.go.clear()
    async with serving(tmp_path, JobPool(answer=calling, free=1)) as api:
        batch = await api.begin(asking("a") + plain("b"), RESPOND)
        async with asyncio.timeout(WAIT_S):
            await tools.called.wait()
    tools.go.set()
    async with serving(tmp_path, JobPool(answer=calling)) as api:
        batch = await api.over(batch)
        assert batch.status == "completed"
        entry = await failed(api, batch)
        assert (entry["custom_id"], entry["response"]) == ("a", None)
        assert entry["error"] == {
            "code": "interrupted",
            "message": "modeld ended while it worked on this, after it had begun to call tools; it is not "
            "tried again, since they would be called twice",
        }
        assert len(await api.lines(batch.output_file_id)) == 1
        assert len(tools.calls) == 1


async def test_no_tool_is_called_before_that_is_stored(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store that takes nothing the line is begun anew, and calls its tool when that can be noted."""
    commit, failures = Jobs.commit, [StoreFailed("the disk is full; make room")]

    async def full(self: Jobs, item: Any) -> bool:
        if failures:
            assert not tools.calls
            raise failures.pop()
        return await commit(self, item)

    monkeypatch.setattr(Jobs, "commit", full)
    async with serving(tmp_path, JobPool(answer=calling)) as api:
        batch = await api.over(await api.begin(asking("a"), RESPOND))
        assert len(await api.lines(batch.output_file_id)) == 1
        assert len(tools.calls) == 1

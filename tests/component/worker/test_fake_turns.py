"""The scripted turns in a real worker process: what only a process can do, and what goes over the link."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import WorkerDied
from modeld.protocol.tasks import (
    ChatTask,
    CountTask,
    Finish,
    FunctionTool,
    Message,
    Text,
    ToolCallDelta,
    Usage,
)
from tests.harness.loaded import loaded, rest

CHAT = ChatTask(messages=(Message(role="user", content="hello there"),), tools=(FunctionTool(name="add"),))
CALL: dict[str, Any] = {"call": {"name": "add", "arguments": {"a": 1}}}


async def test_a_turn_and_a_count_go_over_the_link(short_dir: Path) -> None:
    """A call comes in pieces that are one, with its id; the count is what the chat reports."""
    async with loaded(short_dir, Path("none"), "fake", "generate", turns=[[{"text": "so"}, CALL]]) as it:
        events = await it.ask(CHAT)
        assert events[0] == Text("so")
        pieces = [event for event in events if isinstance(event, ToolCallDelta)]
        assert "".join(piece.arguments for piece in pieces) == '{"a": 1}'
        assert (pieces[0].id or "").startswith("call_")
        assert events[-2] == Finish("tool_calls")
        assert isinstance(events[-1], Usage)
        assert await it.ask(CountTask(chat=CHAT)) == [Usage(events[-1].prompt_tokens, 0)]


async def test_a_crash_comes_after_what_was_said(short_dir: Path) -> None:
    """The text before it arrives, and then the call fails with the process's end."""
    async with loaded(
        short_dir, Path("none"), "fake", "generate", turns=[[{"text": "so"}, {"crash": True}]]
    ) as it:
        call = it.worker.call(CHAT, "local")
        assert await call.take(30.0) == [Text("so")]
        with pytest.raises(WorkerDied, match="SIGKILL"):
            await rest(call)


async def test_a_turn_that_hangs_can_be_cancelled(short_dir: Path) -> None:
    """It says what comes before, then nothing; a cancel ends it, and the model serves on."""
    turns = [[{"text": "so"}, {"hang": True}], [{"text": "on"}]]
    async with loaded(short_dir, Path("none"), "fake", "generate", turns=turns) as it:
        call = await it.begun(CHAT)
        call.cancel()
        await asyncio.wait_for(call.over, 60)
        again = ChatTask(messages=(*CHAT.messages, Message(role="assistant", content="so")))
        assert (await it.ask(again))[0] == Text("on")

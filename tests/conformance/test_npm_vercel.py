"""The Vercel AI SDK, which checks every chunk by a schema of its own; npm/vercel.mjs makes the calls."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.conformance import node
from tests.conformance.questions import SCHEMA
from tests.harness.daemon import Daemon

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


async def seen(daemon: Daemon, scenario: str) -> Any:
    """Run a scenario of vercel.mjs, which must not have warned."""
    found = await node.seen("vercel.mjs", daemon.url, scenario)
    assert found["warnings"] == []
    return found


async def test_text(daemon: Daemon) -> None:
    """streamText gives text in pieces, why it ended, and how many tokens there were."""
    found = await seen(daemon, "text")
    assert found["text"]
    assert found["types"].count("text-delta") > 1
    assert found["finish"] == "length"
    assert found["usage"]["outputTokens"] == 8
    assert found["usage"]["inputTokens"] > 8


async def test_thoughts(daemon: Daemon) -> None:
    """reasoning_content arrives as reasoning parts, ahead of any text."""
    found = await seen(daemon, "thinking")
    assert found["reasoning"].strip()
    assert found["types"].count("reasoning-delta") > 1
    assert "text-start" not in found["types"][: found["types"].index("reasoning-end")]


async def test_a_tool_call(daemon: Daemon) -> None:
    """A named tool's call streams its input, which the SDK takes as valid."""
    found = await seen(daemon, "tool")
    [call] = found["calls"]
    assert call["toolName"] == "get_weather"
    assert not call["invalid"]
    jsonschema.validate(call["input"], SCHEMA)
    assert found["types"].count("tool-input-delta") > 1
    assert found["finish"] == "tool-calls"
    assert found["text"] == ""


async def test_an_object(daemon: Daemon) -> None:
    """Output.object gives an object that fits the caller's zod schema."""
    found = await seen(daemon, "object")
    jsonschema.validate(found["output"], SCHEMA)
    assert found["finish"] == "stop"

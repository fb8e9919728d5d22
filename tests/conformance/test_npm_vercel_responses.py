"""The Vercel AI SDK on the Responses API, which checks every chunk by a schema of its own;
npm/vercel_responses.mjs makes the calls.

Text and forms are SmolLM2's; the models that think and call tools by themselves are scripted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from tests.conformance import node
from tests.conformance.questions import SCHEMA
from tests.conformance.responses_daemon import ANSWER, PARIS, SUM, THOUGHT, scripted
from tests.harness.daemon import Daemon
from tests.harness.mcp_server import Server, mcp_server
from tests.harness.models import llama

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Any) -> AsyncIterator[Daemon]:
    """Run a daemon with SmolLM2 and scripted models."""
    names = ("thinker", "caller", "remote")
    async with scripted(*names, more=(llama("plain", demo_gguf),)) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sums() -> AsyncIterator[Server]:
    """Run a server whose tools add."""
    async with mcp_server() as started:
        yield started


async def seen(daemon: Daemon, scenario: str, *more: str) -> Any:
    """Run a scenario of vercel_responses.mjs, which must not have warned."""
    found = await node.seen("vercel_responses.mjs", daemon.url, scenario, *more)
    assert found.get("warnings", []) == []
    return found


async def test_text(daemon: Daemon) -> None:
    """streamText gives text in pieces, why it ended, and how many tokens there were."""
    found = await seen(daemon, "text")
    assert found["text"]
    assert found["types"].count("text-delta") > 1
    assert found["finish"] == "length"
    assert found["usage"]["outputTokens"] == 8
    assert found["usage"]["inputTokens"] > 8


async def test_an_object(daemon: Daemon) -> None:
    """Output.object gives an object that fits the caller's zod schema."""
    found = await seen(daemon, "object")
    jsonschema.validate(found["output"], SCHEMA)
    assert found["finish"] == "stop"


async def test_generated(daemon: Daemon) -> None:
    """generateText reads an answer; the raw thought, which it does not know, does not disturb it."""
    found = await seen(daemon, "generated")
    assert (found["text"], found["finish"]) == (ANSWER, "stop")


async def test_thoughts(daemon: Daemon) -> None:
    """A summary that was asked for arrives as reasoning parts, ahead of the text."""
    found = await seen(daemon, "thinking")
    assert found["reasoning"] == THOUGHT
    assert found["types"].count("reasoning-delta") > 1
    assert found["types"].index("reasoning-end") < found["types"].index("text-start")


@pytest.mark.parametrize("scenario", ["loop", "stateless"])
async def test_a_tool_loop(daemon: Daemon, scenario: str) -> None:
    """Tools are run and their results sent, by reference to what is kept or all over again, until the answer
    comes.
    """
    found = await seen(daemon, scenario)
    assert found["given"] == [PARIS, PARIS]
    assert found["text"] == ANSWER
    assert len(found["steps"]) == 2
    assert found["finish"] == "stop"


async def test_a_chain(daemon: Daemon) -> None:
    """A text goes on from the response that the one before it was."""
    found = await seen(daemon, "chain")
    assert found["id"].startswith("resp_")
    assert found["texts"] == [ANSWER, ANSWER]
    assert found["lengths"][0] < found["lengths"][1]


async def test_tools_of_a_server(daemon: Daemon, sums: Server) -> None:
    """A server's tools are called on the way, and their results are parts of the stream."""
    found = await seen(daemon, "mcp", sums.url)
    assert found["text"] == SUM
    [kinds] = found["steps"]
    assert [kind for kind in kinds if kind.startswith("tool")] == ["tool-call", "tool-result"]


async def test_tools_that_need_approval(daemon: Daemon, sums: Server) -> None:
    """A call waits for approval: granted it is run, denied it is not, and the model goes on either way."""
    found = await seen(daemon, "approval", sums.url)
    for answered in found.values():
        assert answered["asked"]["name"] == "mcp.add"
        assert answered["asked"]["id"].startswith("mcpr_")
    assert found["true"]["text"] == found["false"]["text"] == SUM
    assert [result["output"] for result in found["true"]["results"]] == ["3"]
    assert found["false"]["results"] == []

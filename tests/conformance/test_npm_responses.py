"""`openai` for npm on the Responses API: npm/responses.mjs makes the calls, npm/responses_ws.mjs those on the
SDK's WebSocket; what they saw is checked here.

Forms and forced calls are SmolLM2's; what takes a model that calls tools by itself, thinks, or takes its time
is scripted.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from tests.conformance import node
from tests.conformance.questions import SCHEMA
from tests.conformance.responses_daemon import ANSWER, SUM, THOUGHT, said, scripted
from tests.harness.daemon import Daemon
from tests.harness.mcp_server import Server, mcp_server
from tests.harness.models import llama
from tests.harness.responses import check_response, check_stream

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Any) -> AsyncIterator[Daemon]:
    """Run a daemon with SmolLM2 and scripted models."""
    names = ("thinker", "caller", "remote", "slow")
    async with scripted(*names, more=(llama("plain", demo_gguf),)) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sums() -> AsyncIterator[Server]:
    """Run a server whose tools add."""
    async with mcp_server() as started:
        yield started


async def seen(daemon: Daemon, scenario: str, *more: str) -> Any:
    """Run a scenario of responses.mjs."""
    return await node.seen("responses.mjs", daemon.url, scenario, *more)


async def test_an_answer_and_what_is_kept(daemon: Daemon) -> None:
    """parse reads an answer through the zod schema; it is kept with its input, until it is deleted."""
    found = await seen(daemon, "answer")
    jsonschema.validate(found["parsed"], SCHEMA)
    assert json.loads(found["text"]) == found["parsed"]
    check_response({key: value for key, value in found["kept"].items() if key != "output_text"})
    assert [item["content"][0]["text"] for item in found["items"]] == ["What is the weather in Paris?"]
    assert (found["gone"]["name"], found["gone"]["status"]) == ("NotFoundError", 404)
    assert found["id"].startswith("req_")


async def test_a_stream(daemon: Daemon) -> None:
    """A stream's events are whole and in order, and their text is the plain answer's."""
    found = await seen(daemon, "stream")
    assert said(check_stream(found["events"])["output"]) == said(found["plain"]["output"])


async def test_the_stream_helper(daemon: Daemon) -> None:
    """responses.stream puts a response together from its events, and reads it through the zod schema."""
    found = await seen(daemon, "helper")
    assert json.loads("".join(found["deltas"])) == found["parsed"]
    jsonschema.validate(found["parsed"], SCHEMA)
    assert found["final"]["status"] == "completed"


async def test_a_tool_loop(daemon: Daemon) -> None:
    """Calls, answered on a chain or with all items sent back, give an answer; a forced one has fitting
    arguments.
    """
    found = await seen(daemon, "tools")
    assert [item["type"] for item in found["first"]["output"]] == [
        "reasoning",
        "function_call",
        "function_call",
    ]
    assert said(found["second"]["output"]) == said(found["third"]["output"]) == [("message", ANSWER)]
    assert found["second"]["usage"]["input_tokens"] == found["third"]["usage"]["input_tokens"]
    jsonschema.validate(found["forced"], SCHEMA)


async def test_background(daemon: Daemon) -> None:
    """A run is cancelled; another goes on without its reader, whose stream is taken up where it was left, and
    read again when it is over.
    """
    found = await seen(daemon, "background")
    assert found["begun"]["status"] == "queued"
    assert found["cancelled"]["status"] == "cancelled"
    final = check_stream(found["seen"] + found["rest"])
    assert final["status"] == found["over"]["status"] == "completed"
    assert said(found["over"]["output"]) == [("reasoning", THOUGHT), ("message", ANSWER)]
    assert found["helped"] == ANSWER
    assert found["later"] == found["rest"]


async def test_a_conversation(daemon: Daemon) -> None:
    """A conversation's items are read, and a response's own are added to it."""
    found = await seen(daemon, "conversation")
    assert found["first"]["conversation"] == {"id": found["made"]["id"]}
    assert [item["type"] for item in found["items"]] == ["message", "message", "reasoning", "message"]


async def test_tools_of_a_server(daemon: Daemon, sums: Server) -> None:
    """A server's tools are listed and called, plain and in a stream of whole events."""
    found = await seen(daemon, "mcp", sums.url)
    final = check_stream(found["events"])
    kinds = [item["type"] for item in final["output"]]
    assert kinds == ["mcp_list_tools", "mcp_call", "message"]
    assert (
        said(final["output"])[1:]
        == said(found["plain"]["output"])[1:]
        == [("mcp_call", "3"), ("message", SUM)]
    )


async def test_tools_that_need_approval(daemon: Daemon, sums: Server) -> None:
    """A call waits for approval, is then run once and says what approved it; a denied one is not run."""
    found = await seen(daemon, "approval", sums.url)
    assert found["asked"]["status"] == "completed"
    request = found["asked"]["output"][-1]
    assert json.loads(request["arguments"]) == {"a": 1, "b": 2}
    call, message = found["approved"]["output"]
    assert (call["type"], call["output"], call["status"]) == ("mcp_call", "3", "completed")
    assert call["approval_request_id"] == request["id"]
    assert message["content"][0]["text"] == SUM
    assert (found["twice"]["name"], found["twice"]["status"]) == ("BadRequestError", 400)
    assert said(found["denied"]["output"]) == [("message", SUM)]


async def test_counting_and_compacting(daemon: Daemon) -> None:
    """Tokens counted beforehand are those that are read; a compaction ends in an item of its kind."""
    found = await seen(daemon, "counting")
    assert found["counted"]["input_tokens"] == found["answer"]["usage"]["input_tokens"]
    assert found["compacted"]["output"][-1]["type"] == "compaction"


async def test_refusals_are_the_sdks_own_errors(daemon: Daemon) -> None:
    """Each refusal is its class, with code, param and request id, before a stream begins as well."""
    found = await seen(daemon, "errors")
    assert all(error["requestID"].startswith("req_") for error in found.values())
    for which in ("model", "streamed"):
        assert (found[which]["name"], found[which]["code"]) == ("NotFoundError", "model_not_found")
    assert (found["hosted"]["name"], found["hosted"]["param"]) == ("BadRequestError", "tools[0].type")
    assert found["previous"]["code"] == "previous_response_not_found"


async def turns(daemon: Daemon, scenario: str, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a scenario of responses_ws.mjs: two turns of one socket; return their responses."""
    found = await node.seen("responses_ws.mjs", daemon.url, scenario, *more)
    return check_stream(found["first"]), check_stream(found["second"])


async def test_a_socket_remembers_what_is_not_stored(daemon: Daemon) -> None:
    """The second turn goes on from the first, which is kept on the socket only."""
    first, second = await turns(daemon, "chain")
    assert second["previous_response_id"] == first["id"]
    assert first["store"] is second["store"] is False
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + 4


async def test_a_tool_loop_on_a_socket(daemon: Daemon) -> None:
    """Calls are answered on the same socket."""
    first, second = await turns(daemon, "tools")
    assert [item["type"] for item in first["output"]][-1] == "function_call"
    assert said(second["output"]) == [("message", ANSWER)]


async def test_tools_that_need_approval_on_a_socket(daemon: Daemon, sums: Server) -> None:
    """A server's tool is approved on the same socket, and then run."""
    first, second = await turns(daemon, "mcp", sums.url)
    assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    assert said(second["output"]) == [("mcp_call", "3"), ("message", SUM)]

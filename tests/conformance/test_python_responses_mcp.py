"""`openai` for Python, strict, with tools of a real MCP server, which the daemon lists and calls itself.

The models are scripted, since a tiny one does not call tools by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.conformance.python_sdk import AsyncSdk, Sdk, SyncSdk
from tests.conformance.responses_daemon import (
    CREATE,
    RETRIEVE,
    SUM,
    WEATHER,
    helped,
    said,
    scripted,
    settled,
)
from tests.harness.daemon import Daemon
from tests.harness.mcp_server import Server, mcp_server
from tests.harness.responses import check_stream, connected, send, stream

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {"model": "remote", "input": "Add one and two."}
TOKEN = "good"
"""What the server that wants a token takes."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with scripted models."""
    async with scripted("remote", "mixed", "failer", "hanger", "again") as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    """Run a real server, with endpoints that misbehave."""
    async with mcp_server() as started:
        yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the Python SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client


def tool(url: str, approval: Any = "never", **more: Any) -> dict[str, Any]:
    """Return a server's tools as a request names them."""
    return {
        "type": "mcp",
        "server_label": "sums",
        "server_url": url,
        "require_approval": approval,
        **more,
    }


def kinds(response: Any) -> list[str]:
    """Return the types of a response's items."""
    return [item.type for item in response.output]


def answer_to(response: Any, approve: bool = True, **more: Any) -> dict[str, Any]:
    """Return the answer to a response's only request for approval."""
    [request] = [item for item in response.output if item.type == "mcp_approval_request"]
    return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve, **more}


async def test_a_call(sdk: Sdk, server: Server) -> None:
    """A server's tools are listed, called and read in one response; plain, streamed, and by the helper."""
    body = {**ASK, "tools": [tool(server.url, allowed_tools=["add"])]}
    plain = await sdk.call(CREATE, **body)
    assert kinds(plain) == ["mcp_list_tools", "mcp_call", "message"]
    listing, call, _ = plain.output
    [listed] = [each for each in listing.tools if each.name == "add"]
    assert listed.description == "Add two numbers."
    assert set(listed.input_schema["properties"]) == {"a", "b"}
    assert listed.annotations == {"read_only": False}
    assert (call.name, call.server_label, call.output, call.error) == ("add", "sums", "3", None)
    assert json.loads(call.arguments) == {"a": 1, "b": 2}
    events = await sdk.items(CREATE, stream=True, **body)
    assert said(check_stream([event.to_dict() for event in events])["output"]) == said(
        [item.to_dict() for item in plain.output]
    )
    assert (await helped(sdk, **body)).final.output_text == SUM
    assert plain.usage.output_tokens > 0


async def test_a_chain_lists_once(sdk: Sdk, server: Server) -> None:
    """A response that goes on from one that has listed a server's tools does not list them again."""
    body = {**ASK, "tools": [tool(server.url)]}
    first = await sdk.call(CREATE, **body)
    second = await sdk.call(CREATE, **body, previous_response_id=first.id)
    assert kinds(second) == ["mcp_call", "message"]


async def test_approval(sdk: Sdk, server: Server) -> None:
    """A call that needs approval waits for it, is then run once, with the arguments that were stored, and is
    never run again.
    """
    before = len(server.calls())
    body = {**ASK, "tools": [tool(server.url, "always")]}
    asked = await sdk.call(CREATE, **body)
    assert (asked.status, kinds(asked)) == ("completed", ["mcp_list_tools", "mcp_approval_request"])
    assert len(server.calls()) == before
    onward = {**body, "previous_response_id": asked.id}
    approved = await sdk.call(CREATE, **{**onward, "input": [answer_to(asked)]})
    call, message = approved.output
    assert (call.type, call.output, call.status) == ("mcp_call", "3", "completed")
    assert call.approval_request_id == asked.output[-1].id
    assert message.content[0].text == SUM
    assert len(server.calls()) == before + 1
    for previous in (asked.id, approved.id):
        again = {**onward, "previous_response_id": previous, "input": [answer_to(asked)]}
        with pytest.raises(openai.BadRequestError):
            await sdk.call(CREATE, **again)
    assert len(server.calls()) == before + 1


async def test_denial(sdk: Sdk, server: Server) -> None:
    """A denied call is not run; the model is told, with the reason, and goes on."""
    before = len(server.calls())
    body = {**ASK, "tools": [tool(server.url)]}
    asked = await sdk.call(
        CREATE, **{**body, "tools": [tool(server.url, {"always": {"tool_names": ["add"]}})]}
    )
    lengths = []
    for reason in ({}, {"reason": "not on a Monday, please"}):
        answer = answer_to(asked, False, **reason)
        denied = await sdk.call(CREATE, **{**body, "input": [answer], "previous_response_id": asked.id})
        assert said([item.to_dict() for item in denied.output]) == [("message", SUM)]
        lengths.append(denied.usage.input_tokens)
        asked = await sdk.call(CREATE, **{**body, "tools": [tool(server.url, "always")]})
    assert lengths[0] < lengths[1]
    assert len(server.calls()) == before


async def test_approval_without_a_chain(sdk: Sdk, server: Server) -> None:
    """With store=False a caller sends the request back with its answer; with a chain, not twice."""
    body = {**ASK, "tools": [tool(server.url, "always")]}
    asked = await sdk.call(CREATE, **body, store=False)
    items = [{"role": "user", "content": ASK["input"]}, *(item.to_dict() for item in asked.output)]
    done = await sdk.call(CREATE, **{**body, "input": [*items, answer_to(asked)]}, store=False)
    assert said([item.to_dict() for item in done.output]) == [("mcp_call", "3"), ("message", SUM)]
    kept = await sdk.call(CREATE, **body)
    with pytest.raises(openai.BadRequestError, match="Duplicate item"):
        await sdk.call(
            CREATE,
            **{**body, "input": [kept.output[-1].to_dict(), answer_to(kept)]},
            previous_response_id=kept.id,
        )
    stray = {"type": "mcp_approval_response", "approval_request_id": "mcpr_0", "approve": True}
    with pytest.raises(openai.BadRequestError, match="mcpr_0"):
        await sdk.call(CREATE, **{**body, "input": [stray]})


async def test_filters(sdk: Sdk, server: Server) -> None:
    """Tools are chosen by name, or as read-only ones; approval likewise."""
    for allowed, names in ((["add", "echo"], "add echo"), ({"read_only": True}, "echo")):
        found = await sdk.call(CREATE, **ASK, tools=[tool(server.url, allowed_tools=allowed)])
        assert ("add" in names) == ("mcp_call" in kinds(found))
    relaxed = {"never": {"tool_names": ["add"]}}
    assert "mcp_call" in kinds(await sdk.call(CREATE, **ASK, tools=[tool(server.url, relaxed)]))
    strict = {"never": {"read_only": True}}
    assert "mcp_approval_request" in kinds(await sdk.call(CREATE, **ASK, tools=[tool(server.url, strict)]))
    body = {key: value for key, value in tool(server.url).items() if key != "require_approval"}
    assert "mcp_approval_request" in kinds(await sdk.call(CREATE, **ASK, tools=[body]))


async def test_functions_beside_servers(sdk: Sdk, server: Server) -> None:
    """Of one turn's calls those of a server are run, those of functions are the caller's; so it goes on."""
    tools = [tool(server.url), WEATHER]
    body = {"model": "mixed", "input": "Add, and tell the weather.", "tools": tools}
    first = await sdk.call(CREATE, **body)
    assert kinds(first)[0] == "mcp_list_tools"
    assert sorted(kinds(first)[1:]) == ["function_call", "mcp_call"]
    [call] = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = await sdk.call(CREATE, **{**body, "input": [output]}, previous_response_id=first.id)
    assert said([item.to_dict() for item in second.output]) == [("message", SUM)]


@pytest.mark.parametrize("limit", [1, 2])
async def test_max_tool_calls(sdk: Sdk, server: Server, limit: int) -> None:
    """A model that would call for ever is given so many calls, and then has to answer."""
    found = await sdk.call(
        CREATE, **{**ASK, "model": "again"}, tools=[tool(server.url)], max_tool_calls=limit
    )
    assert kinds(found).count("mcp_call") == limit
    assert found.status == "completed"
    assert found.max_tool_calls == limit


async def test_a_tool_that_fails(sdk: Sdk, server: Server) -> None:
    """A failed call says why, in the SDK's own types; the model goes on and the response is completed."""
    body = {**ASK, "model": "failer", "tools": [tool(server.url)]}
    found = await sdk.call(CREATE, **body)
    call = found.output[1]
    assert (found.status, call.type, call.status, call.output) == ("completed", "mcp_call", "failed", None)
    assert call.error.type == "mcp_tool_execution_error"
    assert "fail" in json.dumps(call.error.content)
    assert found.output_text == SUM
    events = await sdk.items(CREATE, stream=True, **body)
    check_stream([event.to_dict() for event in events])
    assert "response.mcp_call.failed" in [event.type for event in events]


async def test_a_server_that_is_not_there(sdk: Sdk, daemon: Daemon) -> None:
    """Tools that cannot be listed are a 424 that says so; a stream that has begun ends as failed."""
    body = {**ASK, "tools": [tool("http://127.0.0.1:9/mcp")]}
    with pytest.raises(openai.APIStatusError) as caught:
        await sdk.call(CREATE, **body)
    assert caught.value.status_code == 424
    assert caught.value.type == "external_connector_error"
    assert "Error retrieving tool list from MCP server: 'sums'" in caught.value.message
    with pytest.raises(openai.APIError, match="'sums'"):
        await sdk.items(CREATE, stream=True, **body)
    answer = await stream(daemon.url, body)
    assert answer.whole()["error"]["code"] == "server_error"
    assert [event["type"] for event in answer.events][-4:] == [
        "response.mcp_list_tools.failed",
        "response.output_item.done",
        "error",
        "response.failed",
    ]


async def test_secrets_stay_here(sdk: Sdk, server: Server, daemon: Daemon) -> None:
    """What authorises is sent to the server, and is in no answer, no stored response, and no log; without it
    the server's refusal is told.
    """
    secret = tool(server.at("/auth"), authorization=TOKEN, headers={"X-Extra": "hush-hush"})
    found = await sdk.call(CREATE, **ASK, tools=[secret])
    assert "mcp_call" in kinds(found)
    kept = await sdk.call(RETRIEVE, response_id=found.id)
    for text in (found.to_json(), kept.to_json(), "\n".join(daemon.lines)):
        assert "hush-hush" not in text
        assert f'"{TOKEN}"' not in text
    assert found.tools[0].headers is None
    headers = [request["headers"] for request in server.requests() if request["path"] == "/auth"]
    assert all(sent.get("authorization") == f"Bearer {TOKEN}" for sent in headers[-2:])
    with pytest.raises(openai.APIStatusError) as caught:
        await sdk.call(CREATE, **ASK, tools=[tool(server.at("/auth"))])
    assert (caught.value.status_code, caught.value.type) == (424, "external_connector_error")
    assert "401" in caught.value.message


def hung(server: Server, event: str) -> int:
    """Return how often this has happened to the tool that hangs."""
    return len([call for call in server.calls() if (call["tool"], call["event"]) == ("hang", event)])


async def test_in_the_background(sdk: Sdk, server: Server) -> None:
    """A run calls tools without a caller; cancelling it reaches the tool."""
    done = await settled(sdk, (await sdk.call(CREATE, **ASK, tools=[tool(server.url)], background=True)).id)
    assert said([item.to_dict() for item in done.output])[1:] == [("mcp_call", "3"), ("message", SUM)]
    body = {**ASK, "model": "hanger", "tools": [tool(server.url)], "background": True}
    begun, stopped = hung(server, "begin"), hung(server, "cancelled")
    run = await sdk.call(CREATE, **body)
    async with asyncio.timeout(60):
        while hung(server, "begin") == begun:
            await asyncio.sleep(0.02)
        assert (await sdk.call("responses.cancel", response_id=run.id)).status == "cancelled"
        while hung(server, "cancelled") == stopped:
            await asyncio.sleep(0.02)


async def test_on_a_socket(daemon: Daemon, server: Server) -> None:
    """A socket's responses call tools too, and remember what waits for approval without storing it."""
    async with connected(daemon.url) as socket:
        done = await socket.whole(**ASK, tools=[tool(server.url)], store=False)
        assert said(done["output"])[1:] == [("mcp_call", "3"), ("message", SUM)]
        body = {**ASK, "tools": [tool(server.url, "always")], "store": False}
        asked = await socket.whole(**body)
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": asked["output"][-1]["id"],
            "approve": True,
        }
        onward = {**body, "previous_response_id": asked["id"], "input": [answer]}
        assert said((await socket.whole(**onward))["output"]) == [("mcp_call", "3"), ("message", SUM)]


@pytest.mark.parametrize(
    "change",
    [
        {"server_url": None, "connector_id": "connector_gmail"},
        {"server_url": None},
        {"server_url": "file:///etc/passwd"},
        {"server_label": "1 2"},
        {"headers": {"Authorization": "Bearer x"}},
        {"require_approval": "sometimes"},
    ],
)
async def test_refusals(daemon: Daemon, change: dict[str, Any]) -> None:
    """A server that cannot be, or may not be asked, is the caller's mistake, and named."""
    body = {key: value for key, value in {**tool("http://127.0.0.1:9/mcp"), **change}.items() if value}
    answer = await send(daemon.url, "responses", {**ASK, "tools": [body]})
    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"].startswith("tools[0]")


async def test_a_server_cannot_be_forced(daemon: Daemon, server: Server) -> None:
    """A choice that forces a server's tool is refused, by the server or by the tool."""
    for more in ({}, {"name": "add"}):
        forced = {"type": "mcp", "server_label": "sums", **more}
        answer = await send(
            daemon.url, "responses", {**ASK, "tools": [tool(server.url)], "tool_choice": forced}
        )
        assert answer.status == 400
        assert answer.json["error"]["param"] == "tool_choice"


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "2852039166", "[::ffff:169.254.169.254]", "metadata.google.internal"]
)
async def test_a_clouds_metadata_is_out_of_reach(daemon: Daemon, host: str) -> None:
    """However the address is written, nobody is asked there, and the refusal says why."""
    answer = await send(daemon.url, "responses", {**ASK, "tools": [tool(f"http://{host}/mcp")]})
    assert answer.status in (400, 424), answer.body
    reason = answer.json["error"]["message"]
    assert any(words in reason for words in ("no address that may be asked", "never asked", "neither a name"))

"""What servers do wrong, and what their callers are told of it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from modeld.errors import UpstreamFailed
from modeld.responses.mcp.session import CallResult
from tests.component.responses.mcp.conftest import Opened
from tests.harness.mcp_server import Server, mcp_server

LISTING = "Error retrieving tool list from MCP server: 'x'. "

BAD = [
    ("/auth", "http_error", 401, "Http status code: 401 (Unauthorized)"),
    ("/broken", "http_error", 500, "Http status code: 500 (Internal Server Error)"),
    ("/nowhere/at/all", "http_error", 404, "Http status code: 404 (Not Found)"),
    ("/elsewhere", "http_error", 307, "Http status code: 307 (Temporary Redirect)"),
    ("/metadata", "http_error", 307, "Http status code: 307 (Temporary Redirect)"),
    ("/round", "http_error", 307, "Http status code: 307 (Temporary Redirect)"),
    ("/get", "http_error", 302, "Http status code: 302 (Found)"),
    ("/page", "mcp_protocol_error", -32600, "Unexpected content type: text/html"),
    ("/junk", "mcp_protocol_error", -32700, "the server's answer is not one of MCP's"),
    ("/gzip", "mcp_protocol_error", -32000, "a compression that was not asked for"),
    ("/endless", "mcp_tool_execution_error", None, "its list has more than 4194304 bytes"),
]


@pytest.mark.parametrize(("path", "kind", "code", "words"), BAD)
async def test_no_session(
    server: Server, opened: Opened, path: str, kind: str, code: int | None, words: str
) -> None:
    """A list raises with the true status, a call returns it; both fail again when asked again."""
    async with opened(server.at(path)) as box:
        for _ in range(2):
            with pytest.raises(UpstreamFailed) as caught:
                await box.list("x")
            assert caught.value.message.startswith(LISTING)
            assert words in caught.value.message
        result = await box.call("x", "echo", '{"text": "a"}')
    assert result.output is None
    assert result.error is not None
    assert result.error["type"] == kind
    assert result.error.get("code") == code


async def test_nobody_listens(opened: Opened) -> None:
    """A closed port is told without the network's own words."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with opened(f"http://127.0.0.1:{port}/mcp") as box:
        with pytest.raises(UpstreamFailed, match="the server cannot be reached"):
            await box.list("x")
        error = {"type": "mcp_protocol_error", "code": -32000, "message": "the server cannot be reached"}
        assert await box.call("x", "echo", "{}") == CallResult(None, error)


@pytest.mark.parametrize("path", ["/silent", "/slow"])
async def test_a_slow_server(server: Server, opened: Opened, path: str) -> None:
    """Silence at the beginning, or at the list, ends with the limit's name."""
    async with opened(server.at(path), limits={"list_s": 1.5}) as box:
        with pytest.raises(UpstreamFailed, match=r"within 1\.5 s \(mcp\.list_timeout\)"):
            await box.list("x")


async def test_a_redirect_within_the_server(server: Server, opened: Opened) -> None:
    """The SDK follows it, as for a slash at the end that is missing."""
    async with opened(server.at("/there")) as box:
        assert (await box.call("x", "echo", '{"text": "a"}')).output == "a"


@pytest.mark.parametrize("path", ["/mcp", "/json", "/legacy"])
async def test_a_tool_that_fails(server: Server, opened: Opened, path: str) -> None:
    """Its own words are the content of the error; the session goes on."""
    async with opened(server.at(path)) as box:
        for name, arguments, words in (
            ("fail", "{}", "the tool failed on purpose"),
            ("nothing", "{}", "Unknown tool: nothing"),
            ("add", '{"a": "x"}', "validation error"),
        ):
            result = await box.call("x", name, arguments)
            assert result.output is None
            assert result.error is not None
            assert result.error["type"] == "mcp_tool_execution_error"
            assert words in result.error["content"][0]["text"]
        assert (await box.call("x", "add", '{"a": 1, "b": 1}')).output == "2"


@pytest.mark.parametrize("path", ["/mcp", "/json", "/legacy"])
async def test_an_answer_that_is_too_large(server: Server, opened: Opened, path: str) -> None:
    """As text, it is counted whole; what is far too large is not even read. Either way the limit is named."""
    async with opened(server.at(path)) as box:
        result = await box.call("x", "big", "{}")
        text = "the tool's answer has 2000000 bytes; 1048576 are the limit (mcp.result_bytes)"
        content = [{"type": "text", "text": text}]
        assert result == CallResult(None, {"type": "mcp_tool_execution_error", "content": content})
        assert len((await box.call("x", "big", '{"size": 1048576}')).output or "") == 1048576
    async with opened(server.at(path), limits={"result_bytes": 1000}) as box:
        result = await box.call("x", "big", "{}")
        assert result.error is not None
        text = result.error["content"][0]["text"]
        assert "more than 71536 bytes; 1000 are the limit (mcp.result_bytes)" in text
        assert (await box.call("x", "add", '{"a": 1, "b": 1}')).output == "2"


async def test_a_flood_of_notices(server: Server, opened: Opened) -> None:
    """It counts like an answer, and is not come back for."""
    async with opened(server.at("/flood"), limits={"result_bytes": 100_000}) as box:
        result = await box.call("x", "only", "{}")
        assert result.error is not None
        assert "mcp.result_bytes" in result.error["content"][0]["text"]
    asked = [line for line in server.requests() if line["path"] == "/flood" and line["method"] == "GET"]
    assert not [line for line in asked if "last-event-id" in line["headers"]]


async def test_an_answer_that_breaks_off(server: Server, opened: Opened) -> None:
    """It is come back for where the server lets one; elsewhere it is an error of no status."""
    async with opened(server.at("/resumes")) as box:
        assert await box.call("x", "only", "{}") == CallResult("fine", None)
    async with opened(server.at("/breaks")) as box:
        error = (await box.call("x", "only", "{}")).error
    assert error is not None
    assert (error["type"], error["code"]) == ("mcp_protocol_error", -32000)


async def test_a_flood_of_questions(server: Server, opened: Opened) -> None:
    """A few are answered, the rest is passed over, and how the server takes that is no status of the call."""
    before = len(server.requests())
    async with opened(server.at("/asking")) as box:
        assert await box.call("x", "only", "{}") == CallResult("fine", None)
    assert len(server.requests()) - before <= 4 + 32


@pytest.mark.parametrize("path", ["/mcp", "/json", "/legacy"])
async def test_a_server_that_dies_in_a_call(opened: Opened, path: str) -> None:
    """The call ends with an error, others as well, and so do later ones; leaving is no trouble."""
    async with mcp_server() as server, opened(server.at(path)) as box:
        await box.list("x")
        other = asyncio.ensure_future(box.call("x", "hang", "{}"))
        await server.seen("hang", "begin", mark="")
        results = [await box.call("x", "die", "{}"), await other, await box.call("x", "die", "{}")]
        for result in results:
            assert result.output is None
            assert result.error is not None
            assert (result.error["type"], result.error["code"]) == ("mcp_protocol_error", -32000)
            assert result.error["message"].startswith(("the server", "the session"))
        with pytest.raises(UpstreamFailed, match="the server cannot be reached"):
            await box.list("x")


async def test_an_error_of_the_protocol(server: Server, opened: Opened) -> None:
    """A status whose body says it in MCP's way is an error of MCP's; the token is not passed on."""
    async with opened(
        server.at("/protocol"), authorization="tok-123456", headers={"X-Key": "key-654321"}
    ) as box:
        result = await box.call("x", "only", '{"say": "tok-123456 key-654321"}')
    assert result.error == {
        "type": "mcp_protocol_error",
        "code": -32602,
        "message": "the arguments are wrong; [removed] [removed]",
    }


async def test_a_list_that_tells_the_token(server: Server, opened: Opened) -> None:
    """What may be kept is without it."""
    async with opened(server.at("/telling"), authorization="tok-123456") as box:
        [tool] = await box.list("x")
    assert tool["description"] == "Bearer [removed]"
    assert tool["input_schema"] == {"type": "object", "title": "Bearer [removed]"}


async def test_a_session_that_was_forgotten(server: Server, opened: Opened) -> None:
    """It is opened again once; a server that keeps forgetting is an error with its status."""
    before = sum(line["path"] == "/forgets" for line in server.requests())
    async with opened(server.at("/forgets")) as box:
        await box.list("x")
        result = await box.call("x", "only", "{}")
    assert result.error == {
        "type": "http_error",
        "code": 404,
        "message": "the server answered HTTP 404 (Not Found)",
    }
    # Each session: asked for as today, then as before 2026, and confirmed. Then a list, and two calls.
    assert sum(line["path"] == "/forgets" for line in server.requests()) - before == 2 * 3 + 1 + 2


async def test_answers_that_are_none(server: Server, opened: Opened) -> None:
    """A result of another shape, arguments that are no object, a tool that asks the user."""
    async with opened(server.at("/nonsense")) as box:
        assert (await box.call("x", "only", "{}")).error == {
            "type": "mcp_protocol_error",
            "code": -32700,
            "message": "the server's answer is not one of MCP's",
        }
    async with opened(server.url) as box:
        for text in ("{", "[]", "5", '"text"', "null", "[" * 100_000, '{"text": "\ud800"}'):
            error = (await box.call("x", "echo", text)).error
            assert error is not None
            assert (error["code"], error["type"]) == (-32602, "mcp_protocol_error")
        asking = await box.call("x", "ask", "")
        assert asking.output is None
        assert asking.error is not None


async def test_lists_have_limits(server: Server, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """Of 5,000 tools in endless pages 512 are taken; pages without tools end; a cursor counts once."""
    async with opened(server.at("/many")) as box:
        tools = await box.list("x")
    assert [tool["name"] for tool in tools] == [f"tool_{number}" for number in range(512)]
    assert "more tools than are taken" in caplog.text
    async with opened(server.at("/pages")) as box:
        assert await box.list("x") == []
    assert sum(line["path"] == "/pages" for line in server.requests()) == 100 + 3
    async with opened(server.at("/same")) as box:
        assert [tool["name"] for tool in await box.list("x")] == ["only"]
    async with opened(server.at("/heavy")) as box:
        with pytest.raises(UpstreamFailed, match="more than 4194304 bytes"):
            await box.list("x")


async def test_tools_that_cannot_be_used(
    server: Server, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out, each with a line in the log; the others are listed."""
    caplog.set_level(logging.WARNING)
    async with opened(server.at("/odd")) as box:
        tools = await box.list("x")
    assert [tool["name"] for tool in tools] == ["good", "get weather/now é", "icons"]
    assert tools[0]["description"] == "fine"
    assert tools[0]["annotations"] == {"read_only": True}
    assert tools[2]["description"] is None
    left_out: list[Any] = [record.__dict__ for record in caplog.records if "left out" in record.message]
    reasons = {str(line["tool"])[:20]: line["reason"] for line in left_out}
    assert len(left_out) == 9
    assert "64 levels" in reasons["deep"]
    assert "bytes" in reasons["large"]
    assert "64 bits" in reasons["number"]
    assert "object" in reasons["list"]


@pytest.mark.parametrize("path", ["/mcp", "/legacy", "/auth", "/protocol", "/broken", "/page", "/odd"])
async def test_secrets_stay_out_of_the_log(
    server: Server, opened: Opened, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """Of everything, the SDK's and the HTTP library's lines included, with all logged that there is."""
    caplog.set_level(logging.DEBUG)
    for name in ("mcp", "httpx2", "httpcore2", "httpcore2.http11", "mcp.client.streamable_http", "client"):
        caplog.set_level(logging.DEBUG, logger=name)
    token, key, argument = "tok-123456", "key-654321", "private words"
    said = []
    async with opened(server.at(path), authorization=token, headers={"X-Key": key}) as box:
        try:
            said.append(json.dumps(await box.list("x")))
        except UpstreamFailed as error:
            said.append(error.message)
        for name in ("headers", "fail"):
            said.append(repr(await box.call("x", name, json.dumps({"say": f"{token} {key} {argument}"}))))
        said.append(repr(box))
    logged = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    for secret in (token, key, argument):
        assert [r.name for r in caplog.records if secret in r.getMessage()] == []
        assert secret not in logged
    assert token not in "".join(said)
    assert sum(key in text for text in said) <= 1  # what a tool says of a header is its answer

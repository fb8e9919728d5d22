"""Sessions with a real server: what its tools answer, all at once, cancelled, and to the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest

from modeld.errors import UpstreamFailed
from modeld.gateway.egress import Egress
from modeld.responses.mcp.servers import policy, read_servers
from modeld.responses.mcp.session import CallResult, Toolbox
from tests.component.responses.mcp.conftest import LIMITS, Opened
from tests.harness.mcp_server import Server

PATHS = ["/mcp", "/json", "/legacy"]
"""Today's protocol over events and over plain JSON, and the one with sessions."""

CANCELLING = ["/mcp", "/legacy"]
"""Where the SDK's server hears that nobody waits any more; over plain JSON it does not listen for it."""


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_is_listed_and_called(server: Server, opened: Opened, path: str) -> None:
    """Tools are listed as items show them; each kind of answer is text."""
    async with opened(server.at(path)) as box:
        tools = {tool["name"]: tool for tool in await box.list("x")}
        assert set(tools["echo"]) == {"name", "description", "input_schema", "annotations"}
        assert tools["echo"]["description"] == "Say it again."
        assert tools["echo"]["annotations"] == {"read_only": True}
        assert tools["add"]["annotations"] == {"read_only": False}
        assert set(tools["add"]["input_schema"]["properties"]) == {"a", "b"}
        assert await box.call("x", "echo", '{"text": "grün"}') == CallResult("grün", None)
        assert await box.call("x", "add", '{"a": 1, "b": 2}') == CallResult("3", None)
        output = (await box.call("x", "parts", "{}")).output
        assert output == "one\n[an image, image/png]\ntwo"
        structured = (await box.call("x", "weather", '{"city": "Bonn"}')).output
        assert json.loads(structured or "") == {"city": "Bonn", "celsius": 21}


@pytest.mark.parametrize("path", PATHS)
async def test_a_tool_that_wants_a_header(server: Server, opened: Opened, path: str) -> None:
    """It is called in a session in which nobody listed it, as after a list that a chain holds."""
    async with opened(server.at(path)) as box:
        assert (await box.call("x", "region", '{"name": "north"}')).output == "north"
    sent = [line["headers"] for line in server.requests() if line["path"] == path]
    assert any(headers.get("mcp-param-region") == "north" for headers in sent) is (path != "/legacy")


async def test_the_right_token(server: Server, opened: Opened) -> None:
    """It opens a server for those who have it; a caller's own Bearer before it does no harm."""
    for token in ("good", "Bearer good"):
        async with opened(server.at("/auth"), authorization=token) as box:
            assert (await box.call("x", "echo", '{"text": "a"}')).output == "a"


@pytest.mark.parametrize("path", CANCELLING)
async def test_calls_run_at_once_and_one_is_cancelled(server: Server, opened: Opened, path: str) -> None:
    """The cancelled one is cancelled at the server; the others and the session go on."""
    mark = f"at once {path}"
    async with opened(server.at(path)) as box, asyncio.TaskGroup() as group:
        hanging = group.create_task(box.call("x", "hang", json.dumps({"mark": mark})))
        await server.seen("hang", "begin", mark=mark)
        adding = [group.create_task(box.call("x", "add", f'{{"a": {n}, "b": 1}}')) for n in range(8)]
        assert [(await task).output for task in adding] == [str(n + 1) for n in range(8)]
        assert not hanging.done()
        hanging.cancel()
        await server.seen("hang", "cancelled", mark=mark)
        assert (await box.call("x", "add", '{"a": 40, "b": 2}')).output == "42"
    assert hanging.cancelled()


@pytest.mark.parametrize("path", CANCELLING)
async def test_time_is_limited(server: Server, opened: Opened, path: str) -> None:
    """A call that takes too long ends with the limit's name, also at the server; the session stays."""
    mark = f"time {path}"
    async with opened(server.at(path)) as box:
        await box.list("x")
    async with opened(server.at(path), limits={"call_s": 4}) as box:
        result = await box.call("x", "hang", json.dumps({"mark": mark}))
        assert result.output is None
        assert result.error == {
            "type": "mcp_protocol_error",
            "code": -32001,
            "message": "the server did not answer within 4 s (mcp.call_timeout)",
        }
        await server.seen("hang", "cancelled", mark=mark)
        assert (await box.call("x", "echo", '{"text": "still here"}')).output == "still here"


async def test_a_box_that_nobody_uses_asks_nobody(server: Server, opened: Opened) -> None:
    """Sessions are opened when first used."""
    before = len(server.requests())
    async with opened(server.url):
        pass
    assert len(server.requests()) == before


@pytest.mark.parametrize("path", CANCELLING)
async def test_leaving_ends_the_session(server: Server, opened: Opened, path: str) -> None:
    """With a call under way as well: the server is told, no task is left, and no limit of time is needed."""
    before = asyncio.all_tasks()
    mark = f"leaving {path}"
    async with asyncio.timeout(60), opened(server.at(path), limits={"close_s": 600}) as box:
        hanging = asyncio.ensure_future(box.call("x", "hang", json.dumps({"mark": mark})))
        await server.seen("hang", "begin", mark=mark)
    result = await hanging
    assert result.error is not None
    assert result.error["code"] == -32000
    await server.seen("hang", "cancelled", mark=mark)
    assert asyncio.all_tasks() == before
    assert not [
        line for line in server.requests() if line["method"] == "GET"
    ]  # nobody hears what comes unasked
    if path == "/legacy":
        assert any((line["method"], line["path"]) == ("DELETE", path) for line in server.requests())


async def test_leaving_is_bounded(server: Server, opened: Opened) -> None:
    """A server that does not answer the end of its session keeps nobody."""
    loop = asyncio.get_running_loop()
    async with opened(server.at("/stubborn"), limits={"close_s": 600}) as box:
        await box.list("x")
        began = loop.time()
    assert loop.time() - began < 60


async def test_leaving_while_a_session_opens(server: Server, opened: Opened) -> None:
    """A server that says nothing is not waited for; whoever does gets an error, and no task is left."""
    before = asyncio.all_tasks()
    asked = len(server.requests())
    async with opened(server.at("/silent"), limits={"list_s": 600, "call_s": 600, "close_s": 0.2}) as box:
        call = asyncio.ensure_future(box.call("x", "echo", "{}"))
        async with asyncio.timeout(60):
            while len(server.requests()) == asked:
                await asyncio.sleep(0.02)
    error = (await call).error
    assert error is not None
    assert error["code"] == -32000
    assert asyncio.all_tasks() == before


async def test_leaving_is_cancelled(server: Server, opened: Opened) -> None:
    """Who waits for a server's goodbye and is cancelled a second time leaves nothing behind either."""
    before = asyncio.all_tasks()
    left = asyncio.Event()

    async def run() -> None:
        async with opened(server.at("/stubborn"), limits={"close_s": 600}) as box:
            await box.list("x")
            left.set()

    task = asyncio.ensure_future(run())
    await left.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


async def test_what_the_block_raises_is_what_is_raised(server: Server, opened: Opened) -> None:
    """Without a group around it; so is being cancelled."""

    async def fail() -> None:
        async with opened(server.url) as box:
            await box.list("x")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()

    async def run() -> None:
        async with opened(server.url) as box:
            await box.call("x", "hang", '{"mark": "all"}')

    task = asyncio.ensure_future(run())
    await server.seen("hang", "begin", mark="all")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.seen("hang", "cancelled", mark="all")


async def test_two_servers_and_one_of_them_bad(server: Server) -> None:
    """Each has a session of its own."""
    tools = [
        {"type": "mcp", "server_label": "good", "server_url": server.url},
        {"type": "mcp", "server_label": "bad", "server_url": server.at("/broken")},
    ]
    async with Toolbox(read_servers(tools), Egress(policy()), LIMITS) as box:
        bad, good = await asyncio.gather(
            box.call("bad", "echo", '{"text": "a"}'), box.call("good", "echo", '{"text": "a"}')
        )
    assert good.output == "a"
    assert bad.error == {
        "type": "http_error",
        "code": 500,
        "message": "the server answered HTTP 500 (Internal Server Error)",
    }


async def test_headers_and_token_are_sent(server: Server, opened: Opened) -> None:
    """With every request, the token as Bearer; what the tool tells of the token is not passed on."""
    async with opened(server.url, authorization="tok-123456", headers={"X-Mine": "yes"}) as box:
        output = (await box.call("x", "headers", "{}")).output
    seen = json.loads(output or "")
    assert seen["x-mine"] == "yes"
    assert seen["authorization"] == "Bearer [removed]"
    assert seen["accept-encoding"] == "identity"
    sent = [line["headers"] for line in server.requests() if line["headers"].get("x-mine") == "yes"]
    assert len(sent) >= 2
    assert all(headers["authorization"] == "Bearer tok-123456" for headers in sent)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seed", range(4))
async def test_calls_cancels_and_leaving_in_any_order(
    server: Server, opened: Opened, path: str, seed: int
) -> None:
    """Every call ends, cancelled, with an output or with an error, and no task is left.

    So do those that begin after the end, and those of a block that fails.
    """
    chance = random.Random(seed)
    before = asyncio.all_tasks()
    arguments = {"add": {"a": 1, "b": 2}, "hang": {"mark": f"any {path} {seed}"}, "fail": {}, "big": {}}

    async def one(box: Toolbox, name: str, wait: float) -> CallResult:
        await asyncio.sleep(wait)
        return await box.call("x", name, json.dumps(arguments[name]))

    async def run(calls: list[asyncio.Task[CallResult]]) -> None:
        loop = asyncio.get_running_loop()
        async with opened(server.at(path)) as box:
            for name in chance.choices(list(arguments), k=20):
                call = loop.create_task(one(box, name, chance.random() * 0.3))
                calls.append(call)
                if chance.random() < 0.6:
                    loop.call_later(chance.random() * 0.5, call.cancel)
            await asyncio.sleep(chance.random() * 0.5)
            if chance.random() < 0.5:
                assert (await box.call("x", "add", '{"a": 1, "b": 2}')).output == "3"
            if chance.random() < 0.3:
                raise KeyError("mine")

    made: list[asyncio.Task[CallResult]] = []
    with contextlib.suppress(KeyError):
        await run(made)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*made, return_exceptions=True)
    for result in results:
        if isinstance(result, CallResult):
            assert (result.output is None) is not (result.error is None)
        else:
            assert isinstance(result, asyncio.CancelledError)
    assert asyncio.all_tasks() == before


async def test_a_call_after_the_end(server: Server, opened: Opened) -> None:
    """It is an error, and asks nobody."""
    async with opened(server.url) as box:
        await box.list("x")
    before = len(server.requests())
    for _ in range(2):
        result = await box.call("x", "echo", '{"text": "a"}')
        assert result.error is not None
        assert "has ended" in result.error["message"]
    with pytest.raises(UpstreamFailed, match="has ended"):
        await box.list("x")
    assert len(server.requests()) == before

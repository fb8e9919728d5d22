"""A socket's life: who may open one, what ends it, and what ends with it."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from pathlib import Path
from random import Random

import pytest
from aiohttp import WSMsgType, WSServerHandshakeError

from modeld.errors import Forbidden, ModelUnavailable
from modeld.gateway.access import Places
from modeld.ids import LOCAL
from modeld.protocol.tasks import Text
from modeld.responses.websocket.connection import LIFETIME_S, Connection
from modeld.responses.websocket.routes import OPEN, check_origin
from modeld.supervisor.admission import Priority
from tests.component.responses.served import Served, served
from tests.component.responses.sockets import PATIENCE_S, Client, Fed, all_gone, connected, told
from tests.fakes.clock import FakeClock
from tests.fakes.pool import Answer, FakePool

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def raw(api: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a socket by hand, which answers nothing by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(HANDSHAKE)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


def text_frame(fields: object) -> bytes:
    """Return a client's text frame of less than 64 KiB; its mask is zero."""
    data = json.dumps(fields).encode()
    return b"\x81" + struct.pack(">BH", 0x80 | 126, len(data)) + bytes(4) + data


# --- who may open one ---------------------------------------------------------------------------------------


async def refused(api: Served, path: str = "/v1/responses", **headers: str) -> int:
    """Return the status with which a handshake is refused."""
    with pytest.raises(WSServerHandshakeError) as caught:
        async with connected(api, path, **headers):
            pass
    return caught.value.status


async def test_web_pages(tmp_path: Path) -> None:
    """A page from elsewhere is refused before the upgrade, also from another port; those allowed come in."""
    async with served(tmp_path, cors_origins=("https://good.example",)) as api:
        assert await refused(api, origin="https://evil.example") == 403
        assert await refused(api, origin="null") == 403
        assert await refused(api, origin=f"http://127.0.0.1:{api.port + 1}") == 403
        for origin in (
            f"http://127.0.0.1:{api.port}",
            f"http://localhost:{api.port}",
            "https://good.example",
        ):
            async with connected(api, origin=origin) as client:
                await client.whole(store=False)
        assert api.value("modeld_auth_failures_total", reason="origin_not_allowed") == 3


@pytest.mark.parametrize(
    ("origin", "host", "comes_in"),
    [
        (None, "localhost:8000", True),
        ("http://localhost:8000", "localhost:8000", True),
        ("http://127.0.0.1:8000", "localhost:8000", True),
        ("http://[::1]:8000", "127.0.0.1:8000", True),
        ("http://localhost", "localhost:8000", False),
        ("http://localhost:8000", "localhost", False),
        ("http://localhost:80", "localhost", True),
        ("https://box.example", "box.example", True),
        ("https://box.example", "box.example:443", True),
        ("https://box.example:8443", "box.example", False),
        ("https://evil.example", "box.example", False),
        ("http://localhost:99999", "localhost:99999", False),
        ("http://localhost:x", "localhost:8000", False),
        ("http://[", "localhost:8000", False),
        ("null", "localhost:8000", False),
        ("file://", "localhost:8000", False),
        ("", "localhost:8000", False),
        ("http://localhost:8000", None, False),
    ],
)
def test_origins(origin: str | None, host: str | None, comes_in: bool) -> None:
    """Only the API's own host and port, or no page at all, need no leave; bad values are refused in words."""
    places = Places(loopback=False, allowed_hosts=(), cors_origins=())
    try:
        check_origin(places, origin, host)
        found = True
    except Forbidden:
        found = False
    assert found is comes_in


async def test_keys(tmp_path: Path) -> None:
    """Without a key, or with a wrong one, there is no socket."""
    async with served(tmp_path, api_keys=("secret",)) as api:
        assert await refused(api) == 401
        assert await refused(api, authorization="Bearer wrong") == 401
        async with connected(api, authorization="Bearer secret") as client:
            await client.whole()
        assert api.pool.calls[-1].identity.startswith("key_")


async def test_what_is_agreed(tmp_path: Path) -> None:
    """No compression and no subprotocol, whatever is offered; the handshake carries the request's id."""
    async with (
        served(tmp_path) as api,
        api.http.ws_connect(api.url + "/v1/responses", compress=15, protocols=("realtime",)) as ws,
    ):
        assert (ws.compress, ws.protocol) == (0, None)
        assert ws._response.headers["x-request-id"].startswith("req_")
        await Client(ws).whole(store=False)


async def test_what_is_no_handshake(tmp_path: Path) -> None:
    """A plain GET is told to upgrade, a wrong handshake what is wrong, a gateway that is not there 404."""
    async with served(tmp_path) as api:
        async with api.http.get(api.url + "/v1/responses") as response:
            body = await response.json()
            assert (response.status, response.headers["upgrade"]) == (426, "websocket")
            assert body["error"]["code"] == "upgrade_required"
        for name, value in (("sec-websocket-version", "99"), ("sec-websocket-key", "x"), ("connection", "x")):
            head = {
                "upgrade": "websocket",
                "connection": "upgrade",
                "sec-websocket-version": "13",
                "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
                name: value,
            }
            status, body = await api.ask("GET", "/v1/responses", headers=head)
            assert (status, body["error"]["code"]) == (400, "invalid_handshake"), name
        assert await refused(api, "/nowhere/v1/responses") == 404
        assert await refused(api, **{"x-modeld-priority": "urgent"}) == 400


@pytest.mark.parametrize("seed", range(4))
async def test_noise(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no frames, or are frames with flipped bits, harm nobody: no bug, nothing left open."""
    random = Random(seed)
    create = {"type": "response.create", "model": "tiny", "input": "hi", "stream_id": "a", "store": False}
    async with served(tmp_path) as api, connected(api) as stays:
        for number in range(12):
            _, writer = await raw(api)
            noise = bytearray(text_frame(create) * 3 if number % 2 else random.randbytes(400))
            for _ in range(random.randrange(6)):
                noise[random.randrange(len(noise))] ^= 1 << random.randrange(8)
            writer.write(noise)
            await writer.drain()
            writer.close()
        await stays.whole()
        await stays.ws.close()
        await all_gone(api)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# --- what ends with it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "abort", "half a frame"])
async def test_leaving_ends_what_runs(tmp_path: Path, how: str) -> None:
    """However a client goes, its calls are cancelled, what waited is never begun, and nothing is stored."""
    pool = Fed()
    async with served(tmp_path, pool) as api:
        reader, writer = await raw(api)
        for lane in ("a", "b", "b", "a"):
            body = {"type": "response.create", "model": "tiny", "input": "hi", "stream_id": lane}
            writer.write(text_frame(body))
        (await pool.stream(0)).feed([Text("a")])
        await pool.stream(1)
        while b"response.output_text.delta" not in (data := await reader.read(1 << 16)):
            assert data
        if how == "close":
            writer.write(b"\x88\x80" + bytes(4))
        elif how == "half a frame":
            writer.write(b"\x81\xfe\xff")
            await writer.drain()
        if how != "close":
            writer.transport.abort()
        for stream in pool.streams:
            await asyncio.wait_for(stream.closed.wait(), PATIENCE_S)
            assert stream.cancelled
        await all_gone(api)
        await api.runner.cleanup()
        assert len(pool.calls) == 2
        writer.close()
        status = "101" if how == "close" else "499"
        assert _requests(api, status) == 1


async def test_a_lost_connection_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that learns first that the client is gone does not make room for one that waits."""
    pool = Fed()

    async def lost(*args: object) -> None:
        raise ConnectionResetError("lost")

    async with served(tmp_path, pool) as api:
        async with connected(api) as client:
            await client.create()
            await client.create("waits")
            stream = await pool.stream(0)
            [connection] = api.runner.app[OPEN]
            monkeypatch.setattr(connection._socket, "send_frame", lost)
            stream.feed([Text("a")])
            await asyncio.wait_for(stream.closed.wait(), PATIENCE_S)
        await all_gone(api)
        assert len(pool.calls) == 1


def _requests(api: Served, status: str) -> float:
    return api.value("modeld_requests_total", model="unknown", endpoint="/v1/responses", status=status)


async def test_the_daemons_end(tmp_path: Path) -> None:
    """When the server stops, sockets are closed as going away; what has just failed is told, and stored."""
    pool = Fed()
    async with served(tmp_path, pool) as api, connected(api) as idle, connected(api) as busy:
        await busy.create()
        (await pool.stream(0)).feed([Text("a")])
        while (await busy.event())["type"] != "response.output_text.delta":
            pass
        stopping = asyncio.ensure_future(api.runner.cleanup())
        pool.streams[0].feed(ModelUnavailable("the model is stopped", code="model_stopped"))
        failed = await busy.until_over()
        assert failed[-1]["response"]["status"] == "failed"
        stored = await api.context.responses.get(LOCAL, failed[-1]["response"]["id"])
        assert stored is not None
        assert stored.status == "failed"
        assert await idle.closed() == 1001
        assert await busy.closed() == 1001
        await stopping
        assert not api.runner.app[OPEN]


async def test_the_daemons_end_without_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not answer the close, and a call that does not end, hold nobody up."""
    monkeypatch.setattr("modeld.responses.websocket.connection.LAST_WRITES_S", 0.01)
    monkeypatch.setattr("modeld.responses.websocket.connection.CLOSE_S", 1e9)
    pool = Fed()
    async with served(tmp_path, pool) as api:
        reader, writer = await raw(api)
        writer.write(text_frame({"type": "response.create", "model": "tiny", "input": "hi"}))
        await pool.stream(0)
        await asyncio.wait_for(api.runner.cleanup(), PATIENCE_S)
        assert pool.streams[0].cancelled
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"\x88\x12" + (1001).to_bytes(2, "big") + b"the server stops"
        writer.close()


async def test_a_bug_of_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug of the connection's own closes it as an internal error, is logged, and ends what runs there."""

    async def take(*args: object) -> None:
        raise ZeroDivisionError("secret")

    pool = Fed()
    async with served(tmp_path, pool) as api, connected(api) as client:
        await client.create()
        await pool.stream(0)
        monkeypatch.setattr(Connection, "_take", take)
        await client.send("{}")
        while (message := await client.ws.receive(timeout=PATIENCE_S)).type is WSMsgType.TEXT:
            pass
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 1011, "")
        await asyncio.wait_for(pool.streams[0].closed.wait(), PATIENCE_S)
        await api.runner.cleanup()
        assert "bug on a socket" in caplog.text
        assert api.value("modeld_internal_errors_total", endpoint="/v1/responses") == 1
        assert _requests(api, "500") == 1


async def test_an_hour(tmp_path: Path) -> None:
    """After sixty minutes a socket is told why, and closed; before that it is not."""
    clock, pool = FakeClock(), Fed()
    async with served(tmp_path, pool, clock=clock, keepalive_interval=0.01) as api, connected(api) as client:
        await client.create()
        await pool.finish(0)
        await client.until_over()
        clock.advance(LIFETIME_S - 1)
        await client.create(stream_id="a")
        await pool.finish(1)
        await client.until_over()
        await client.create()
        await pool.stream(2)
        clock.advance(1)
        while (event := await client.event())["type"] != "error":
            assert event["type"] in ("response.created", "response.in_progress")
        assert told(event) == (400, "websocket_connection_limit_reached", None)
        assert "60 minutes" in event["error"]["message"]
        assert await client.closed() == 1000
        await asyncio.wait_for(pool.streams[2].closed.wait(), PATIENCE_S)
        assert pool.streams[2].cancelled


async def test_pings(tmp_path: Path) -> None:
    """A client gets pings; one that answers none is gone after the stall limit, one that answers is not."""
    async with served(tmp_path, keepalive_interval=0.02, client_stall_timeout=2.0) as api:
        async with api.http.ws_connect(api.url + "/v1/responses", autoping=False) as ws:
            for _ in range(15):
                message = await ws.receive(timeout=PATIENCE_S)
                assert message.type is WSMsgType.PING
                await ws.pong(message.data)
            await Client(ws).create(store=False)
            while (message := await ws.receive(timeout=PATIENCE_S)).type is WSMsgType.PING:
                await ws.pong(message.data)
            assert message.type is WSMsgType.TEXT
        reader, writer = await raw(api)
        await all_gone(api)
        assert await reader.readexactly(2) == b"\x89\x00"
        writer.close()


async def test_a_ping_is_answered(tmp_path: Path) -> None:
    """A client's ping comes back as a pong with what it carried."""
    async with (
        served(tmp_path) as api,
        api.http.ws_connect(api.url + "/v1/responses", autoping=False) as ws,
    ):
        await ws.ping(b"are you there")
        message = await ws.receive(timeout=PATIENCE_S)
        assert (message.type, message.data) == (WSMsgType.PONG, b"are you there")


async def test_a_client_that_reads_nothing(tmp_path: Path) -> None:
    """What is written to a client that reads nothing is bounded, and after the stall limit it is cut off."""
    big: list[Answer] = [[Text("x" * 100_000)] for _ in range(2_000)]
    pool = FakePool(answer=lambda model, task: list(big))
    async with served(tmp_path, pool, client_stall_timeout=0.3) as api:
        _, writer = await raw(api)  # whose reader stops by itself when nobody takes from it
        writer.write(text_frame({"type": "response.create", "model": "tiny", "input": "hi", "store": False}))
        await asyncio.wait_for(pool.opened.wait(), PATIENCE_S)
        await asyncio.wait_for(pool.streams[0].closed.wait(), PATIENCE_S)
        assert pool.streams[0].takes < len(big)
        await all_gone(api)
        writer.transport.abort()


async def test_nothing_but_pings_from_a_slow_engine(tmp_path: Path) -> None:
    """While an engine says nothing, a response has begun and the socket lives."""
    pool = Fed()
    async with served(tmp_path, pool, keepalive_interval=0.02) as api, connected(api) as client:
        await client.create()
        kinds = [(await client.event())["type"] for _ in range(2)]
        assert kinds == ["response.created", "response.in_progress"]
        await pool.finish(0)
        assert (await client.until_over())[-1]["type"] == "response.completed"


# --- what the owner sees ------------------------------------------------------------------------------------


async def test_metrics_and_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each response counts its tokens; each has a line, and the connection one at its end, with the sum."""
    caplog.set_level(logging.INFO)
    async with served(tmp_path) as api:
        async with connected(api) as client:
            for lane in ("a", "b"):
                await client.whole(stream_id=lane)
            await client.refused(model="nope")
            assert api.value("modeld_requests_in_progress", endpoint="/v1/responses") == 1
        await api.runner.cleanup()
        assert _requests(api, "101") == 1
        assert api.value("modeld_requests_in_progress", endpoint="/v1/responses") == 0
        assert api.value("modeld_prompt_tokens_total", model="tiny") == 10
        assert api.value("modeld_completion_tokens_total", model="tiny") == 2
        assert api.value("modeld_time_to_first_token_seconds_count", model="tiny") == 2
        assert api.value("modeld_stream_chunks_total", model="tiny") > 10
    lines = [record.__dict__ for record in caplog.records if record.message == "response on a socket"]
    assert [(line["status"], line.get("lane")) for line in lines] == [(200, "a"), (200, "b"), (404, None)]
    [line] = [record.__dict__ for record in caplog.records if record.message == "request"]
    assert (line["status"], line["tokens_in"], line["tokens_out"]) == (101, 10, 2)


async def test_a_call_is_the_callers(tmp_path: Path) -> None:
    """Priority and keep-alive reach the model, as over HTTP."""
    async with served(tmp_path) as api, connected(api, **{"x-modeld-priority": "background"}) as client:
        await client.whole(keep_alive=30)
        await client.whole(keep_alive=40, generate=False)
        assert {call.priority for call in api.pool.calls} == {Priority.BACKGROUND}
        assert [call.keep_alive for call in api.pool.calls] == [30.0, 40.0]


async def test_a_socket_among_many(tmp_path: Path) -> None:
    """A connection's end, with responses at work, is none of another's business."""
    pool = Fed()
    async with served(tmp_path, pool) as api, connected(api) as stays:
        await stays.create()
        await pool.stream(0)
        for at in range(1, 4):
            async with connected(api) as leaves:
                await leaves.create()
                await pool.stream(at)
            await asyncio.wait_for(pool.streams[at].closed.wait(), PATIENCE_S)
        await pool.finish(0)
        assert (await stays.until_over())[-1]["type"] == "response.completed"
        assert [stream.cancelled for stream in pool.streams] == [False, True, True, True]

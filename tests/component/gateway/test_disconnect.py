from __future__ import annotations

import asyncio
import socket

import pytest

from modeld.protocol.tasks import CompletionTask, Event, Text
from tests.component.gateway.served import CHAT, Serve, Served, chat_body, post
from tests.fakes.pool import FakePool, said


async def _assert_counted(gateway: Served, path: str, caplog: pytest.LogCaptureFixture) -> None:
    await gateway.ask("GET", "/health")  # a whole round: the abandoned handler has ended by then
    assert gateway.value("modeld_client_disconnects_total", model="tiny", endpoint=path) == 1
    assert gateway.value("modeld_requests_total", model="tiny", endpoint=path, status="499") == 1
    assert gateway.value("modeld_requests_in_progress", endpoint=path) == 0
    assert [record for record in caplog.records if record.levelno >= 30] == []


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_leaving_while_nothing_has_come_cancels(
    serve: Serve, stream: bool, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the queue, while loading or in prefill: the call is cancelled, counted, and no error is logged."""
    pool = FakePool(answer=lambda _name, _task: [])
    gateway = await serve(pool)
    _, writer = await gateway.connect()
    writer.write(post(chat_body(stream=stream, prompt="x"), path))
    await pool.opened.wait()
    await pool.streams[0].waiting.wait()
    writer.close()
    await asyncio.wait_for(pool.streams[0].closed.wait(), 60)
    await writer.wait_closed()
    assert pool.streams[0].cancelled
    await _assert_counted(gateway, path, caplog)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_leaving_in_the_middle_of_a_stream_cancels(
    serve: Serve, reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After the first token, by an orderly close or a reset: the call is cancelled and counted."""
    pool = FakePool(answer=lambda _name, _task: [[Text("Hel")]])
    gateway = await serve(pool)
    reader, writer = await gateway.connect()
    writer.write(post(chat_body(stream=True)))
    await reader.readuntil(b'"content":"Hel"')
    if reset:
        writer.transport.abort()
    else:
        writer.close()
    await asyncio.wait_for(pool.streams[0].closed.wait(), 60)
    assert pool.streams[0].cancelled
    await _assert_counted(gateway, CHAT, caplog)


async def test_leaving_while_a_keep_alive_is_due_cancels(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that left during a long load does not hold its place."""
    pool = FakePool(answer=lambda _name, _task: [])
    gateway = await serve(pool, keepalive_interval=0.01)
    reader, writer = await gateway.connect()
    writer.write(post(chat_body(stream=True)))
    await reader.readuntil(b": keep-alive\n\n")
    writer.close()
    await asyncio.wait_for(pool.streams[0].closed.wait(), 60)
    await _assert_counted(gateway, CHAT, caplog)


async def test_leaving_cancels_the_calls_of_all_prompts(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A request of several prompts leaves none of its calls behind."""
    pool = FakePool()
    pool.answer = lambda _name, task: [[Text("x")]] if isinstance(task, CompletionTask) else []
    gateway = await serve(pool)
    reader, writer = await gateway.connect()
    writer.write(post('{"model":"tiny","prompt":["a","b","c"],"stream":true}', "/v1/completions"))
    await reader.readuntil(b'"text":"x"')
    writer.close()
    for stream in pool.streams:
        await asyncio.wait_for(stream.closed.wait(), 60)
    assert [stream.cancelled for stream in pool.streams] == [True] * 3
    await _assert_counted(gateway, "/v1/completions", caplog)


async def test_leaving_in_the_middle_of_an_upload_is_no_error(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A body that breaks off because its sender left reaches no model and logs no error."""
    gateway = await serve()
    _, writer = await gateway.connect()
    writer.write(post(chat_body())[:-5])
    await writer.drain()
    while not gateway.value("modeld_requests_in_progress", endpoint=CHAT):
        await gateway.ask("GET", "/health")
    writer.close()
    await writer.wait_closed()
    while gateway.value("modeld_requests_in_progress", endpoint=CHAT):
        await gateway.ask("GET", "/health")
    assert gateway.pool.calls == []
    assert gateway.value("modeld_client_disconnects_total", model="unknown", endpoint=CHAT) == 1
    assert [record for record in caplog.records if record.levelno >= 30] == []


async def test_a_reader_that_does_not_read_holds_the_engine_back(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an endless answer only what the sockets' buffers hold is taken, until the stall limit ends it."""
    piece = "x" * 64_000
    batch: list[Event] = [Text(piece)]
    pool = FakePool(answer=lambda _name, _task: [batch] * 4_000)  # 256 MB if all of it were taken
    gateway = await serve(pool, client_stall_timeout=0.2)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", gateway.port))
    await loop.sock_sendall(sock, post(chat_body(stream=True)))
    await asyncio.wait_for(pool.opened.wait(), 60)
    await asyncio.wait_for(pool.streams[0].closed.wait(), 60)
    sock.close()
    assert pool.streams[0].cancelled
    assert pool.streams[0].takes * len(piece) < 32_000_000
    await _assert_counted(gateway, CHAT, caplog)


async def test_a_slow_reader_gets_everything(serve: Serve) -> None:
    """Holding back loses nothing: a long answer arrives whole through small buffers."""
    pool = FakePool(answer=lambda _name, _task: said(" ".join(["y" * 20_000] * 200)))
    gateway = await serve(pool)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2_000)
    writer.write(post(chat_body(stream=True)))
    size = 0
    tail = b""
    while piece := await reader.read(5_000):
        size += piece.count(b"y")
        tail = (tail + piece)[-100:]
    writer.close()
    await writer.wait_closed()
    assert size >= 200 * 20_000
    assert b"data: [DONE]\n\n" in tail

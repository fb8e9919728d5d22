"""The connection to the engine, against a server that answers as badly as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from modeld.errors import BadRequest, EngineError, ModelUnavailable, WorkerDied
from modeld.worker.loaders.llama_server.client import Client
from modeld.worker.loaders.llama_server.connection import HIGH_WATER, Connection

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def serving(folder: Path, handler: Handler) -> AsyncIterator[Path]:
    """Serve on a Unix socket; the request's head has been read when the handler runs."""
    handled: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handled.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(accept, folder / "s")
    try:
        yield folder / "s"
    finally:
        server.close()
        await asyncio.gather(*handled, return_exceptions=True)


def answering(*pieces: bytes) -> Handler:
    """Send these bytes, each in a write of its own, and close."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return handler


def get(socket: Path) -> Connection:
    """Return a GET."""
    return Connection(str(socket), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"")


async def test_a_body_comes_whole_however_it_is_cut(short_dir: Path) -> None:
    """Every cut of the bytes on the wire gives the same status and body."""
    wire = OK + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    for at in range(1, len(wire), 7):
        async with serving(short_dir, answering(wire[:at], wire[at:])) as socket, get(socket) as answer:
            assert answer.status == 200
            assert await answer.read() == b"hello world"


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (b"", "ended in the middle"),
        (OK + b"5\r\nhel", "ended in the middle"),
        (b"220 ready for mail\r\n\r\n", "not HTTP"),
        (OK + b"zz\r\n", "not HTTP"),
    ],
)
async def test_an_answer_that_breaks_off_or_is_none_is_a_connection_error(
    short_dir: Path, wire: bytes, words: str
) -> None:
    """End-of-file too early and bytes that are not HTTP both raise, and never look like a short answer."""
    async with serving(short_dir, answering(wire)) as socket:
        with pytest.raises(ConnectionError, match=words):
            async with get(socket) as answer:
                await answer.read()


async def test_nobody_listening_is_an_os_error(short_dir: Path) -> None:
    """A socket that is not there fails at once."""
    with pytest.raises(OSError, match="No such file"):
        async with get(short_dir / "nothing"):
            pass


async def test_leaving_early_closes_the_connection(short_dir: Path) -> None:
    """The engine sees end-of-file as soon as the block is left, in the middle of an endless answer."""
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"1\r\nx\r\n")
        assert await reader.read() == b""
        gone.set()

    async with serving(short_dir, endless) as socket:
        async with get(socket) as answer:
            assert await anext(answer) == b"x"
        await asyncio.wait_for(gone.wait(), 60)


async def test_an_unread_answer_stops_the_engine_from_sending(short_dir: Path) -> None:
    """Memory is bounded: with nobody reading, the server's writes stall; once read, all of it comes."""
    sent, total = 0, 40 * HIGH_WATER
    stalled = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK)
        piece = b"%x\r\n%b\r\n" % (1 << 14, b"y" * (1 << 14))
        while sent < total:
            writer.write(piece)
            sent += 1 << 14
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except TimeoutError:
                stalled.set()
                await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with serving(short_dir, pour) as socket, get(socket) as answer:
        await asyncio.wait_for(stalled.wait(), 60)
        assert sent < total / 2
        assert len(await answer.read()) == total


def _refusal(status: int, body: bytes) -> Handler:
    return answering(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (
            400,
            b'{"error":{"message":"x","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":4}}',
            BadRequest,
            "context_length_exceeded",
        ),
        (400, b'{"error":{"message":"JSON schema error at #: y"}}', BadRequest, "invalid_json_schema"),
        (400, b'{"error":{"message":"no"}}', BadRequest, "engine_refused"),
        (500, b'{"error":{"message":"Jinja Exception: roles must alternate"}}', BadRequest, "template_error"),
        (500, b'{"error":{"message":"boom"}}', EngineError, "engine_error"),
        (500, b"<html>oops</html>", EngineError, "engine_error"),
        (503, b'{"error":{"message":"Loading model"}}', ModelUnavailable, "model_unavailable"),
    ],
)
async def test_the_engines_refusals_become_ours(
    short_dir: Path, status: int, body: bytes, kind: type[Exception], code: str
) -> None:
    """What is the caller's fault is BadRequest whatever the engine's status; its own failures are not."""
    async with serving(short_dir, _refusal(status, body)) as socket:
        with pytest.raises(kind) as caught:
            async with Client(socket).stream("/v1/chat/completions", {}) as chunks:
                assert [chunk async for chunk in chunks] == []
        assert getattr(caught.value, "code", None) == code


def _events(*events: bytes) -> bytes:
    body = b"".join(events)
    return OK + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


async def test_a_stream_that_ends_without_done_is_a_death_and_not_an_answer(short_dir: Path) -> None:
    """Chunks that came are given; the missing [DONE] is WorkerDied."""
    wire = _events(b'data: {"choices":[{"text":"a"}]}\n\n')
    async with serving(short_dir, answering(wire)) as socket:
        texts: list[str] = []

        async def read() -> None:
            async with Client(socket).stream("/", {}) as chunks:
                async for chunk in chunks:
                    texts.append(chunk.choices[0].text)

        with pytest.raises(WorkerDied, match="without saying so"):
            await read()
        assert texts == ["a"]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b'data: {"error":{"message":"slot lost"}}\n\n', EngineError),
        (b'error: {"error":{"message":"slot lost"}}\n\n', EngineError),
        (b"data: {not json}\n\n", EngineError),
        (b'data: {"choices": 7}\n\n', EngineError),
    ],
)
async def test_an_error_in_the_stream_is_raised(short_dir: Path, event: bytes, kind: type[Exception]) -> None:
    """Both of the engine's ways to fail in mid-stream, and nonsense, raise."""
    async with serving(short_dir, answering(_events(event, b"data: [DONE]\n\n"))) as socket:
        with pytest.raises(kind):
            async with Client(socket).stream("/", {}) as chunks:
                assert [chunk async for chunk in chunks] == []

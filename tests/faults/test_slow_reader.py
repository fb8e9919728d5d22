"""A client that reads slowly, or not at all, or leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psutil

from tests.harness.daemon import Daemon, running
from tests.harness.models import fake

TOKENS = 2_000_000
"""About 20 MB of text, and over 400 MB as chunks."""


async def _post(
    daemon: Daemon, body: dict[str, object], *, limit: int = 1 << 16
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = daemon.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=limit)
    data = json.dumps(body).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data) + data
    )
    await writer.drain()
    return reader, writer


def _body(**more: object) -> dict[str, object]:
    return {"model": "f", "messages": [{"role": "user", "content": "go"}], "stream": True, **more}


async def test_a_slow_reader_of_a_long_stream_keeps_memory_bounded(short_dir: Path) -> None:
    """While a client reads nothing of a very long answer, daemon and worker each grow by less than 32 MB."""
    async with running(short_dir, {"models": [fake("f", tokens=TOKENS)], "allow_fake": True}) as daemon:
        status = await daemon.until("f", "ready")
        processes = [psutil.Process(daemon.pid), psutil.Process(status["pid"])]
        before = [process.memory_info().rss for process in processes]
        reader, writer = await _post(daemon, _body())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        # The worker stops when the window is used up: its CPU time standing still is the sign.
        worker = processes[1]
        async with asyncio.timeout(180):
            spent = -1.0
            while spent != (spent := sum(worker.cpu_times()[:2])):
                await asyncio.sleep(0.3)
        grown = [process.memory_info().rss - was for process, was in zip(processes, before, strict=True)]
        assert max(grown) < 32 << 20, grown
        writer.close()
        await daemon.until_idle("f")


async def test_a_client_that_leaves_frees_its_slot_in_every_phase(short_dir: Path) -> None:
    """Gone while queued, before the first token, and mid-stream, streaming or not: in flight goes back to
    0.
    """
    slow = fake("f", first_delay=600, slots=1)
    stream = fake("g", tokens=TOKENS, token_delay=0.01)
    async with running(short_dir, {"models": [slow, stream], "allow_fake": True}) as daemon:
        await daemon.until("f", "ready")
        await daemon.until("g", "ready")
        for streaming in (True, False):
            _, first = await _post(daemon, _body(stream=streaming))
            _, queued = await _post(daemon, _body(stream=streaming))
            async with asyncio.timeout(180):
                while ((status := await daemon.model("f"))["in_flight"], status["queued"]) != (1, 1):
                    await asyncio.sleep(0.01)
            queued.close()
            async with asyncio.timeout(180):
                while (await daemon.model("f"))["queued"]:
                    await asyncio.sleep(0.01)
            first.close()
            await daemon.until_idle("f")

            reader, writer = await _post(daemon, _body(model="g", stream=streaming))
            if streaming:
                await reader.readuntil(b"tok3")
            else:
                async with asyncio.timeout(180):
                    while not (await daemon.model("g"))["in_flight"]:
                        await asyncio.sleep(0.01)
            writer.close()
            await daemon.until_idle("g")

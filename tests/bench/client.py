"""A client that costs little: HTTP/1.1 written by hand, so that what is measured is the server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

TOKEN = b"tok"
"""What every token of the scripted model contains once, so that merged chunks count in full."""


@dataclass(frozen=True)
class Target:
    """A server on a TCP port of this machine."""

    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)


def request(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """Return the bytes of a POST."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@dataclass
class Timing:
    """One streamed answer; times in seconds from the sending of the request."""

    first: float = 0.0
    last: float = 0.0
    chunks: int = 0
    arrivals: list[float] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """Mean seconds between two chunks."""
        return (self.last - self.first) / max(self.chunks - 1, 1)


async def stream(target: Target, wire: bytes) -> Timing:
    """Send one request on a fresh connection and time the chunks that carry text."""
    reader, writer = await target.connect()
    timing = Timing()
    began = time.perf_counter()
    writer.write(wire)
    while True:
        data = await reader.read(1 << 16)
        now = time.perf_counter() - began
        texts = data.count(b'"content":"') - data.count(b'"content":""')
        if texts > 0:
            timing.first = timing.first or now
            timing.last = now
            timing.chunks += texts
            timing.arrivals.append(now)
        if not data or b"[DONE]" in data:
            break
    writer.close()
    return timing


async def count_tokens(target: Target, wire: bytes) -> tuple[int, int]:
    """Send one request; return how many tokens and how many chunks came."""
    reader, writer = await target.connect()
    writer.write(wire)
    tokens = chunks = 0
    rest = b""
    while True:
        data = await reader.read(1 << 18)
        if not data:
            break
        data = rest + data
        tokens += data.count(TOKEN)
        chunks += data.count(b"data: {")
        if b"[DONE]" in data:
            break
        # A pattern may be cut in two; what is kept is shorter than either, so nothing counts twice.
        rest = data[-2:]
        chunks -= rest.count(b"data: {")
        tokens -= rest.count(TOKEN)
    writer.close()
    return tokens, chunks


async def hammer(target: Target, wire: bytes, seconds: float) -> int:
    """Send requests one after the other on one connection; return how many were answered with 200."""
    reader, writer = await target.connect()
    end = time.perf_counter() + seconds
    answered = 0
    while time.perf_counter() < end:
        writer.write(wire)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode(errors="replace"))
        lower = head.lower()
        at = lower.index(b"content-length: ") + 16
        await reader.readexactly(int(lower[at : lower.index(b"\r\n", at)]))
        answered += 1
    writer.close()
    return answered

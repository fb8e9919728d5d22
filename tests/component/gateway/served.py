from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from aiohttp import ClientResponse, ClientSession, web

from modeld.telemetry.metrics import Metrics
from tests.fakes.pool import FakePool

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}


@dataclass
class Served:
    """A gateway that listens on a loopback port."""

    app: web.Application
    pool: FakePool
    metrics: Metrics
    port: int
    http: ClientSession

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, method: str, path: str, **options: Any) -> tuple[ClientResponse, Any]:
        """Send a request; return the response and its decoded JSON body (None when it has none)."""
        async with self.http.request(method, self.url + path, **options) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json" and raw
            return response, json.loads(raw) if is_json else None

    async def chat(self, **fields: Any) -> tuple[ClientResponse, Any]:
        """Post a chat request."""
        return await self.ask("POST", CHAT, json={"model": "tiny", "messages": [USER], **fields})

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a plain TCP connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, request: bytes) -> bytes:
        """Send bytes on a fresh connection and return all that comes until the server closes it."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()

    def value(self, name: str, **labels: str) -> float:
        """Return a metric's value, 0 when it has none yet."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


Serve: TypeAlias = Callable[..., Awaitable[Served]]
"""The fixture `serve`: `await serve(pool, **settings)`."""


def post(body: bytes | str, path: str = CHAT, headers: str = "") -> bytes:
    """Return the bytes of a POST on a connection that the server closes afterwards."""
    raw = body.encode() if isinstance(body, str) else body
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\nConnection: close\r\n{headers}\r\n"
    )
    return head.encode() + raw


def chat_body(**fields: Any) -> str:
    """Return the JSON text of a chat request."""
    return json.dumps({"model": "tiny", "messages": [USER], **fields})


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Cut an HTTP answer into status, headers (lower case) and the rest."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (re.split(r":\s*", line, maxsplit=1) for line in lines)}
    return int(status.split()[1]), headers, rest


def http_chunks(body: bytes) -> list[bytes]:
    """Cut a chunked body into its chunks; the last, empty one must be there and end the body."""
    chunks: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        chunk, end, body = body[:length], body[length : length + 2], body[length + 2 :]
        assert end == b"\r\n"
        if not length:
            assert body == b""
            return chunks
        chunks.append(chunk)

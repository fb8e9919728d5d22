"""Server-sent events: framing, and the writer that puts them on the wire.

What parsers of SDKs choke on is never sent: no `id:`, no `retry:`, no event without data. Every event is one
HTTP chunk and one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold events back
}

_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def escape_separators(json: bytes) -> bytes:
    """Escape U+2028, U+2029 and U+0085 in JSON text: some clients take them for the end of a line."""
    for raw, escaped in _SEPARATORS:
        if raw in json:
            json = json.replace(raw, escaped)
    return json


def event(json: bytes) -> bytes:
    """Return one event with this JSON text as its data."""
    return b"data: %b\n\n" % escape_separators(json)


class EventWriter:
    """The answer to one request as an event stream. Nothing is sent before `start`."""

    def __init__(self, request: web.Request, stall_timeout: float) -> None:
        self._request = request
        self._stall_timeout = stall_timeout
        self._chunked = request.version >= HttpVersion11
        self._writer: AbstractStreamWriter | None = None
        self.response = web.StreamResponse(headers=HEADERS)

    @property
    def started(self) -> bool:
        """Whether the status and the headers are out."""
        return self._writer is not None

    async def start(self) -> None:
        """Send the headers."""
        self._writer = await self.response.prepare(self._request)

    async def send(self, events: Sequence[bytes]) -> None:
        """Write events; returns when the client has taken enough that memory stays bounded.

        Raises ConnectionResetError when the client has left, or has read nothing for the stall limit.
        """
        if self._writer is None:
            await self.start()
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        # An event that reaches the client in two pieces is lost to some parsers, so each is one write of one
        # HTTP chunk. They still share a system call: the transport gathers what one turn of the loop writes.
        if self._chunked:
            for data in events:
                transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            for data in events:
                transport.write(data)
        if transport.get_write_buffer_size():
            await self._drain(transport)

    async def finish(self, last: bytes = b"") -> None:
        """Write a last event, if any, and end the body at once."""
        if self._writer is None:
            await self.start()
        await self.response.write_eof(last)

    async def _drain(self, transport: asyncio.Transport) -> None:
        assert self._writer is not None
        try:
            async with asyncio.timeout(self._stall_timeout):
                await self._writer.drain()  # returns at once below the transport's high-water mark
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError(f"the client has read nothing for {self._stall_timeout:g} s") from None

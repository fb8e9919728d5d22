"""One HTTP request on one fresh connection over a Unix socket, parsed by httptools.

A general client costs 1 to 2 ms before the first token on a machine whose caches the engine has just emptied,
and 17 MB in every worker; what is needed here is one request, one answer, and the connection's end.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import cast

import httptools

HIGH_WATER = 1 << 18
"""Bytes of an unread answer after which the engine is left waiting."""


class Connection(asyncio.Protocol):
    """A request under way, as an `async with`; leaving it before the answer's end drops the connection.

    `status` is the answer's once the block is entered. Iterating gives the body in pieces as they come.
    Everything that goes wrong below HTTP is a ConnectionError or another OSError.
    """

    def __init__(self, socket: str, head: bytes, body: bytes) -> None:
        self.status = 0
        self._socket = socket
        self._request = head + body
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._complete = False
        self._broken: ConnectionError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Connection:
        """Connect, send the request, and wait for the answer's status."""
        try:
            await self._loop.create_unix_connection(lambda: self, self._socket)
            while not self.status:
                await self._news()
        except BaseException:
            self._drop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection; what has not come by now is not wanted."""
        self._drop()

    def __aiter__(self) -> Connection:
        """Iterate over the pieces of the body."""
        return self

    async def __anext__(self) -> bytes:
        """Return what has come of the body, joined. Raises ConnectionError when it breaks off."""
        while not self._pieces:
            if self._complete:
                raise StopAsyncIteration
            await self._news()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._unread > HIGH_WATER and self._transport is not None:
            self._transport.resume_reading()
        self._unread = 0
        return data

    async def read(self) -> bytes:
        """Return the whole body."""
        return b"".join([data async for data in self])

    async def _news(self) -> None:
        """Wait for the connection to bring something. Raises ConnectionError once it is broken."""
        if self._broken is not None:
            raise self._broken
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Parse; an answer that is not HTTP breaks the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broken = ConnectionError(f"the answer is not HTTP: {error}")
            self._drop()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note an end that came too early."""
        self._transport = None
        if not self._complete and self._broken is None:
            self._broken = ConnectionError(str(exc) if exc else "it ended in the middle of the answer")
        self._wake()

    # httptools

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Keep a piece; a reader that is far behind stops the engine from sending."""
        self._pieces.append(body)
        before, self._unread = self._unread, self._unread + len(body)
        if before <= HIGH_WATER < self._unread and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note the end of the answer."""
        self._complete = True

"""The life of one socket: frames in, lanes, pings, and its end.

The reader never waits for a response, so that a close, a pong and a further request are always seen. Whatever
runs for a socket ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Literal

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from modeld.errors import BadRequest, ModeldError
from modeld.gateway.exchange import Exchange
from modeld.responses.context import Context
from modeld.responses.websocket import frames
from modeld.responses.websocket.answering import Answering, Asked, Gone
from modeld.responses.websocket.lanes import Lanes
from modeld.responses.websocket.memory import ConnectionMemory
from modeld.supervisor.admission import Priority

log = logging.getLogger("modeld.responses")

LIFETIME_S = 3600.0
"""Seconds for which a connection may last."""

CLOSE_S = 2.0
"""Seconds that a client gets to answer a close."""

LAST_WRITES_S = 1.0
"""Seconds that responses get to end as failed when the daemon stops."""

UNBOUNDED = 1 << 62
"""What may be written before `send_frame` waits: it is `Connection` that waits, and not for ever."""


class Socket(web.WebSocketResponse[Literal[False]]):
    """aiohttp's socket, text as bytes. A frame over the limit is answered by an error before the close."""

    def __init__(self, max_bytes: int, too_large: bytes) -> None:
        super().__init__(
            timeout=CLOSE_S,
            autoclose=False,
            autoping=False,
            compress=False,
            max_msg_size=max_bytes + 1,  # aiohttp refuses what has as many bytes as this
            writer_limit=UNBOUNDED,
            decode_text=False,
        )
        self._too_large = too_large

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        """Close as aiohttp does; it calls this by itself when a frame is too large."""
        if code == WSCloseCode.MESSAGE_TOO_BIG and not self.closed:
            with contextlib.suppress(ConnectionError):
                await self.send_frame(self._too_large, WSMsgType.TEXT)
        return await super().close(code=code, message=message, drain=drain)


class Connection:
    """One client on one socket, after the handshake."""

    def __init__(
        self,
        context: Context,
        request: web.Request,
        socket: Socket,
        writer: AbstractStreamWriter,
        exchange: Exchange,
        *,
        gateway: str,
        priority: Priority,
    ) -> None:
        self.gone = asyncio.Event()
        """Set when nothing of it is left."""

        self._context = context
        self._request = request
        self._socket = socket
        self._writer = writer
        self._exchange = exchange
        # As much as the client could have sent in one request instead.
        most = context.settings.max_request_body
        self._lanes: Lanes[Asked] = Lanes(most)
        self._answering = Answering(context, exchange, gateway, priority, ConnectionMemory(most), self._send)
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._over = False
        self._unheard = 0  # pings since the client was last heard of
        self._farewell: tuple[int, bytes] | None = None

    async def serve(self) -> None:
        """Serve it to its end, whoever ends it."""
        try:
            async with self._group as group:
                self._reading = group.create_task(self._read())
                watching = group.create_task(self._watch())
                if self._farewell is not None:
                    self._reading.cancel()
                try:
                    await asyncio.wait({self._reading})
                    self._over = True
                    if self._running and self._stopping:
                        # Their calls have just been ended: they may say so, and store it.
                        await asyncio.wait(self._running, timeout=LAST_WRITES_S)
                finally:  # the handler is cancelled when the connection is lost
                    self._over = True
                    watching.cancel()
                    for task in self._running:
                        task.cancel()
            # Only now: aiohttp cancels the handler of a connection that is gone, as if the client had left.
            await self._close(*(self._farewell or (WSCloseCode.OK, b"")))
        finally:
            self.gone.set()

    def leave(self, code: int, reason: str) -> None:
        """End it from this side; `gone` tells when that is done."""
        if self._farewell is None:
            self._farewell = (code, reason.encode())
            if self._reading is not None:
                self._reading.cancel()

    @property
    def _stopping(self) -> bool:
        return self._farewell is not None and self._farewell[0] == WSCloseCode.GOING_AWAY

    # --- frames in ------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        with contextlib.suppress(Gone):
            while True:
                message = await self._socket.receive()
                self._unheard = 0
                match message.type:
                    case WSMsgType.TEXT:
                        await self._take(message.data)
                    case WSMsgType.BINARY:
                        await self._refuse(
                            BadRequest(
                                "binary frames are not read here; send JSON in a text frame",
                                code="unsupported_frame_type",
                            )
                        )
                    case WSMsgType.PING:
                        await self._pong(message.data)
                    case WSMsgType.PONG:
                        pass
                    case _:
                        return

    async def _pong(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await self._socket.pong(data)
        await self._drain()

    async def _take(self, raw: bytes) -> None:
        """Take in one frame; what is wrong with it is told at once."""
        end = frames.END
        try:
            frame = frames.read(raw)
            if frame.type == frames.STEER:
                await self._send([frames.steer_failed(raw)])
                return
            lane = frames.lane(frame.stream_id)
            end = frames.end(lane)
            if frame.type != frames.CREATE:
                raise frames.unsupported(frame.type)
            self._lanes.add(lane, Asked(raw, frame), len(raw))
        except ModeldError as error:
            await self._refuse(error, end)
        self._start()

    def _start(self) -> None:
        """Begin what may run now."""
        for lane, asked in self._lanes.start():
            task = self._group.create_task(self._answer(lane, asked))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _answer(self, lane: str | None, asked: Asked) -> None:
        try:
            await self._answering.answer(lane, asked)
        except Gone:
            self._over = True  # as the reader will hear, too
        finally:
            if not self._over:
                self._lanes.end(lane)
                self._start()

    # --- frames out -----------------------------------------------------------------------------------------

    async def _refuse(self, error: ModeldError, end: bytes = frames.END) -> None:
        await self._send([frames.refusal(error, self._exchange.id, end)])

    async def _send(self, texts: Sequence[bytes]) -> None:
        """Send frames; returns when the client has taken enough that memory stays bounded.

        Raises Gone when the client has left, or has read nothing for the stall limit.
        """
        if self._socket.closed or (self._farewell is not None and not self._stopping):
            raise Gone("the socket is closed")
        try:
            for text in texts:
                await self._socket.send_frame(text, WSMsgType.TEXT)
        except ConnectionError as error:
            raise Gone("the client has left") from error
        await self._drain()

    async def _drain(self) -> None:
        transport = self._request.transport
        if transport is None:
            raise Gone("the client has left")
        if not transport.get_write_buffer_size():
            return
        limit = self._context.settings.client_stall_timeout
        try:
            async with asyncio.timeout(limit):
                await self._writer.drain()  # returns at once below the transport's high-water mark
        except TimeoutError:
            transport.abort()
            raise Gone(f"the client has read nothing for {limit:g} s") from None
        except ConnectionError as error:
            raise Gone("the client has left") from error
        self._unheard = 0  # it reads

    # --- the end --------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Send pings, end the connection of a client that answers none, and every one when its time is over.

        Pings that were not answered are counted, not seconds: a machine that slept is not a client that left.
        """
        settings, clock = self._context.settings, self._context.clock
        until = clock.monotonic() + LIFETIME_S
        interval = settings.keepalive_interval
        most = max(math.ceil(settings.client_stall_timeout / interval), 1)
        with contextlib.suppress(ConnectionError):
            while (left := until - clock.monotonic()) > 0:
                await asyncio.sleep(min(interval, left))
                transport = self._request.transport
                if transport is None:
                    return
                if self._unheard >= most:
                    log.info("a client answers no pings", extra={"request": self._exchange.id})
                    transport.abort()
                    return
                self._unheard += 1
                if not transport.get_write_buffer_size():  # else there is something to read already
                    await self._socket.ping()
            over = BadRequest(
                "Responses websocket connection limit reached (60 minutes). Create a new websocket "
                "connection to continue.",
                code="websocket_connection_limit_reached",
            )
            # Nothing is sent behind this but the close, so it does not wait for a client that reads slowly.
            await self._socket.send_frame(frames.refusal(over, self._exchange.id), WSMsgType.TEXT)
            self.leave(WSCloseCode.OK, "connection limit reached")

    async def _close(self, code: int, reason: bytes) -> None:
        """Say goodbye, first or second; a client that does not read or answer gets CLOSE_S for it.

        None when the daemon stops: aiohttp drops what comes then, an answer too.
        """
        transport = self._request.transport
        try:
            async with asyncio.timeout(0 if self._stopping else 2 * CLOSE_S):
                await self._socket.close(code=code, message=reason, drain=self._farewell is not None)
        except TimeoutError:
            if transport is not None and not self._stopping:
                transport.abort()

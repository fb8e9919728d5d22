"""From the pool's stream to the client: streamed or at once, with keep-alives, the deadline and cancellation.

Leaving the stream's context cancels the call, so a client that leaves at any point (queued, in prefill, in
the middle of the answer) frees the engine: its handler is cancelled, or its next write fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from modeld.clock import Clock
from modeld.errors import DeadlineExceeded
from modeld.gateway import sse
from modeld.gateway.encoding import ChunkEncoder, Collector
from modeld.gateway.envelope import BUG, CLIENT_CLOSED, envelope, row_of
from modeld.gateway.exchange import Exchange
from modeld.gateway.ports import Stream
from modeld.gateway.settings import GatewaySettings
from modeld.protocol.tasks import Event

log = logging.getLogger("modeld.gateway")

WAIT = 60.0
"""Seconds of one wait for events when nobody needs a keep-alive meanwhile."""

KEEPALIVE = (sse.KEEPALIVE,)


class Relay:
    """Carries one answer to one client."""

    def __init__(
        self, request: web.Request, exchange: Exchange, settings: GatewaySettings, clock: Clock
    ) -> None:
        self._request = request
        self._exchange = exchange
        self._settings = settings
        self._clock = clock
        limit = settings.request_timeout
        self._deadline = None if limit is None else exchange.started + limit

    async def collected(
        self, opening: AbstractAsyncContextManager[Stream], collector: Collector
    ) -> web.Response:
        """Answer with one body when the call is over. Raises ModeldError."""
        try:
            async with opening as stream:
                while (events := await self._take(stream, WAIT)) is not None:
                    if events:
                        collector.add(events)
        finally:
            self._exchange.usage = collector.usage
        return web.Response(body=collector.body(), content_type="application/json")

    async def streamed(
        self, opening: AbstractAsyncContextManager[Stream], make_encoder: Callable[[], ChunkEncoder]
    ) -> web.StreamResponse:
        """Answer with server-sent events.

        Raises ModeldError as long as no header is out; after that the error is the stream's last event, and
        no [DONE] pretends success.
        """
        async with opening as stream:
            # The call is on its way: what the answer needs is made while the engine reads the prompt.
            return await self._relay(stream, make_encoder())

    async def _relay(self, stream: Stream, encoder: ChunkEncoder) -> web.StreamResponse:
        exchange, interval, monotonic = (
            self._exchange,
            self._settings.keepalive_interval,
            self._clock.monotonic,
        )
        writer = sse.EventWriter(self._request, self._settings.client_stall_timeout)
        silent_since = monotonic()
        try:
            while (events := await self._take(stream, silent_since + interval - monotonic())) is not None:
                if events:
                    chunks: Sequence[bytes] = encoder.encode(events)
                    exchange.chunks += len(chunks)
                else:  # also when the pool tries again on a new worker, which need not take an interval
                    chunks = KEEPALIVE if monotonic() - silent_since >= interval else ()
                if chunks:
                    await writer.send(chunks)
                    silent_since = monotonic()
            if tail := encoder.end():
                await writer.send(tail)
                exchange.chunks += len(tail)
            await writer.finish(sse.DONE)
        except ConnectionError:
            exchange.outcome = CLIENT_CLOSED
        except Exception as error:
            if not writer.started:
                raise
            await self._fail(writer, error)
        finally:
            exchange.usage = encoder.usage
        return writer.response

    async def _take(self, stream: Stream, timeout: float) -> list[Event] | None:
        if self._deadline is not None:
            left = self._deadline - self._clock.monotonic()
            if left <= 0:
                raise DeadlineExceeded(
                    f"the request took longer than request_timeout, {self._settings.request_timeout:g} s",
                    code="request_timeout",
                )
            timeout = min(timeout, left)
        events = await stream.take(max(timeout, 0.0))
        if events and self._exchange.first_event is None:
            self._exchange.first_event = self._clock.monotonic()
        return events

    async def _fail(self, writer: sse.EventWriter, error: Exception) -> None:
        exchange = self._exchange
        row = row_of(error)
        exchange.outcome = row.status
        if row is BUG:
            log.error("bug in a stream", exc_info=error, extra={"request": exchange.id})
        try:
            await writer.finish(sse.event(envelope(error, exchange.id)))
        except ConnectionError:
            exchange.outcome = CLIENT_CLOSED

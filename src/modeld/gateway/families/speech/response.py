"""Speech on its way to the client: as the bytes of one audio file, or as server-sent events."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import struct
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from aiohttp import HttpVersion11, web

from modeld.clock import Clock
from modeld.errors import EngineError
from modeld.gateway.encoding import dumps
from modeld.gateway.envelope import BUG, CLIENT_CLOSED, row_of
from modeld.gateway.exchange import Exchange
from modeld.gateway.ports import Stream
from modeld.gateway.relay import WAIT, Relay
from modeld.gateway.settings import GatewaySettings
from modeld.protocol.tasks import Audio, AudioFormat, Event, Usage

log = logging.getLogger("modeld.gateway")

_RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing the socket then resets the connection."""

CONTENT_TYPES: dict[AudioFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


class SpeechEvents:
    """OpenAI's events of `stream_format` "sse"; a `ChunkEncoder`."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._any = False

    def encode(self, events: Sequence[Event]) -> list[bytes]:
        """Return an event for each piece of audio, and the last one for the usage."""
        return [_event(body) for event in events if (body := self._body(event)) is not None]

    def end(self) -> list[bytes]:
        """Return nothing more. Raises EngineError when the speech was not whole."""
        _check_whole(self._any, self.usage)
        return []

    def _body(self, event: Event) -> dict[str, object] | None:
        match event:
            case Audio(data=data):
                self._any = True
                return {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}
            case Usage():
                self.usage = event
                return {"type": "speech.audio.done", "usage": usage_body(event)}
        return None


class AudioRelay(Relay):
    """Carries the bytes of one audio file to one client, each piece as soon as it is there."""

    def __init__(
        self, request: web.Request, exchange: Exchange, settings: GatewaySettings, clock: Clock
    ) -> None:
        super().__init__(request, exchange, settings, clock)
        self._any = False

    async def file(
        self, opening: AbstractAsyncContextManager[Stream], format: AudioFormat
    ) -> web.StreamResponse:
        """Answer with the file. Raises ModeldError as long as no header is out; after that a failure breaks
        the connection off, so that no client takes half a speech for a whole one.
        """
        response = web.StreamResponse(
            headers={
                "content-type": CONTENT_TYPES[format],
                "cache-control": "no-cache",
                "x-accel-buffering": "no",  # nginx would hold the audio back
            }
        )
        exchange = self._exchange
        try:
            async with opening as stream:
                while (events := await self._take(stream, WAIT)) is not None:
                    await self._send(response, events)
            _check_whole(self._any, exchange.usage)
        except ConnectionError:
            exchange.outcome = CLIENT_CLOSED
        except Exception as error:
            if not response.prepared:
                raise
            self._break_off(error)
        return response

    async def _send(self, response: web.StreamResponse, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Usage):
                self._exchange.usage = event
            elif isinstance(event, Audio):
                self._any = True
                self._exchange.chunks += 1
                await self._write(response, event.data)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        if not response.prepared:
            await response.prepare(self._request)
        limit = self._settings.client_stall_timeout
        try:
            async with asyncio.timeout(limit):
                await response.write(data)
        except TimeoutError:
            self._abort()
            raise ConnectionResetError(f"the client has read nothing for {limit:g} s") from None

    def _break_off(self, error: Exception) -> None:
        exchange, row = self._exchange, row_of(error)
        exchange.outcome = row.status
        if row is BUG:
            log.error("bug in a stream", exc_info=error, extra={"request": exchange.id})
        else:
            log.warning("speech broke off: %s", error, extra={"request": exchange.id})
        transport = self._request.transport
        if transport is None:
            return
        if self._request.version >= HttpVersion11:
            transport.close()  # what was written still goes out, but the chunk that ends the body does not
        else:
            # There the end of the connection is the end of the body; only a reset says that it is not.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


def usage_body(usage: Usage) -> dict[str, int]:
    """Return the `usage` of a speech: characters in, milliseconds of audio out."""
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _event(body: dict[str, object]) -> bytes:
    return b"data: %b\n\n" % dumps(body)


def _check_whole(any_audio: bool, usage: Usage | None) -> None:
    if not any_audio or usage is None:
        raise EngineError("the engine ended the speech before it was whole", code="incomplete_answer")

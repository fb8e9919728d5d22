"""Framing without I/O: a 4-byte big-endian payload length, then one msgpack-encoded message.

Bytes in, payloads out. Nothing here reads or writes, so every cut of a byte stream can be tested.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from modeld.errors import BadFrame, FrameTooLarge

MAX_FRAME = 80 * 1024 * 1024
"""Largest payload in bytes: a request body at its default limit (50 MiB) and what encoding adds to it."""

HEADER = struct.Struct(">I")

M = TypeVar("M")


class FrameEncoder:
    """Turns messages into frames."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._limit = limit

    def encode(self, message: Any) -> bytearray:
        """Return header and payload as one buffer. Raises FrameTooLarge over the limit."""
        frame = bytearray(HEADER.size)
        self._encoder.encode_into(message, frame, HEADER.size)
        size = len(frame) - HEADER.size
        if size > self._limit:
            raise FrameTooLarge(f"a message of {size} bytes is over the link's limit of {self._limit} bytes")
        HEADER.pack_into(frame, 0, size)
        return frame


class FrameDecoder(Generic[M]):
    """Cuts a byte stream into messages of one tagged union.

    After an error the stream has no meaning any more: drop the link.
    """

    def __init__(self, union: Any, limit: int = MAX_FRAME) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[M, int]]:
        """Return the messages completed by `data`, each with its frame's size in bytes (header included).

        Raises FrameTooLarge as soon as a header announces too much (before any of it is buffered), and
        BadFrame for a payload that is not one of the union's messages.
        """
        if self._rest:
            self._rest += data
            buffer: bytes | bytearray = self._rest
        else:
            buffer = data
        view = memoryview(buffer)
        messages: list[tuple[M, int]] = []
        at, end = 0, len(buffer)
        try:
            while end - at >= HEADER.size:
                (size,) = HEADER.unpack_from(view, at)
                if size > self._limit:
                    raise FrameTooLarge(
                        f"the peer announces a frame of {size} bytes, the limit is {self._limit} bytes"
                    )
                start = at + HEADER.size
                if end - start < size:
                    break
                try:
                    messages.append((self._decoder.decode(view[start : start + size]), HEADER.size + size))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise BadFrame(f"a frame of {size} bytes is not a known message: {error}") from error
                at = start + size
        finally:
            view.release()
        if buffer is self._rest:
            del self._rest[:at]
        elif at < end:
            self._rest += data[at:]
        return messages

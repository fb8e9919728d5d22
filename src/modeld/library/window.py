"""The bytes of a file's header at hand, a piece at a time, and within limits."""

from __future__ import annotations

import struct
from typing import Protocol

MOST_BYTES = 48 * 1024**2
"""Bytes that are read of one file's header; the largest of today have 15 million."""

_FIRST, _CHUNK = 1 << 16, 1 << 17
"""Bytes asked for at once, at first and later."""

U32, U64 = struct.Struct("<I").unpack_from, struct.Struct("<Q").unpack_from


class Refused(Exception):
    """No engine could load the file; the text says why, as a sentence that goes on after the file's name."""


class Unknown(Exception):
    """The file may be sound, but its form is not known here; the text says why in the same way."""


class Source(Protocol):
    """A file that is open for reading, without a buffer of its own."""

    def seek(self, offset: int, /) -> int:
        """Go to a place."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer, or a part of it; return how much, 0 at the end."""


class Window:
    """One file. `_data[_at]` is the next byte to read, which may lie beyond `_end`, where the bytes at hand
    end; `_base` is where `_data` begins in the file.
    """

    def __init__(self, source: Source, size: int, buffer: bytearray) -> None:
        self._source, self._size = source, size
        self._data, self._at, self._end, self._base = buffer, 0, 0, 0
        self._bytes_left = MOST_BYTES

    @property
    def _place(self) -> int:
        """Where in the file the next byte is."""
        return self._base + self._at

    def _go(self, place: int) -> None:
        """Go to a place in the file, forwards or backwards."""
        if place < self._base:
            self._base, self._end = place, 0
        self._at = place - self._base

    def _beginning(self, count: int) -> bytes:
        """Return the next `count` bytes, or as many as there are."""
        count = min(count, self._size - self._place)
        self._have(count)
        return bytes(self._data[self._at : self._at + count])

    def _number(self, width: int) -> int:
        self._have(width)
        (number,) = (U64 if width == 8 else U32)(self._data, self._at)
        self._at += width
        return int(number)

    def _skip(self, length: int, what: str) -> None:
        end = self._base + self._at + length
        if end > self._size:
            raise damaged(f"{what} goes beyond the end, {self._size} bytes")
        self._at += length

    def _have(self, count: int) -> None:
        """See to it that the next `count` bytes are at hand."""
        if self._at + count > self._end:
            place = self._base + self._at
            if place + count > self._size:
                raise damaged(f"its header goes on beyond the end, {self._size} bytes")
            self._fetch(count)
            if self._end < count:
                raise damaged(f"it ended at {place + self._end} of {self._size} bytes while it was read")

    def _ahead(self, count: int) -> None:
        """Have the next `count` bytes at hand, or as many as there are."""
        count = min(count, self._size - self._base - self._at, max(self._bytes_left - _CHUNK, 0))
        if self._at + count > self._end:
            self._fetch(count)

    def _fetch(self, count: int) -> None:
        """Move on to the next byte to read, and have `count` from there at hand if there are as many."""
        rest = max(self._end - self._at, 0)
        self._base += self._at
        wanted = max(count, _CHUNK if self._base else _FIRST)
        wanted = min(wanted, self._size - self._base)
        self._bytes_left -= wanted - rest
        if self._bytes_left < 0:
            raise Unknown(f"has a header of over {MOST_BYTES >> 20} MiB, which is more than is read here")
        if wanted > len(self._data):
            self._data.extend(bytes(wanted - len(self._data)))
        self._data[:rest] = self._data[self._at : self._at + rest]
        self._at, self._end = 0, rest
        self._source.seek(self._base + rest)
        with memoryview(self._data) as view:
            while self._end < wanted:
                got = self._source.readinto(view[self._end : wanted])
                if not got:
                    break
                self._end += got


def damaged(why: str) -> Refused:
    """Return the error for a file whose structure is not sound."""
    return Refused(f"is cut short or damaged: {why}")

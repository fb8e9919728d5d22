"""Reads the header of a GGUF file: its keys, and its tensors' names, shapes and places. No tensor is touched.

Made for files that come from elsewhere, and for many of them. Whatever the bytes say, the work is bounded: by
the limits below in bytes read, words stepped over and values kept, and by the file's own end. A long list,
such as the vocabulary, is known by its length only.

Little-endian, as the engines read it: "GGUF", version, two counts; for each key its name, type and value; for
each tensor its name, dimensions, type and offset.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from modeld.library.window import U32, U64, Refused, Source, Unknown, damaged
from modeld.library.word_lists import WordLists, Workspace

MAGIC = b"GGUF"

LONGEST_LIST = 4096
"""Numbers in a list that is kept; longer ones belong to the vocabulary."""

MOST_WORDS_KEPT = 256
"""Words in a list that is kept, such as the languages of a model."""

LONGEST_TEXT = 512 * 1024
"""Bytes of a text that is kept; chat templates have up to a tenth of it."""

MOST_TEXT = 4 * 1024**2
"""Bytes of all texts that are kept of one file."""

MOST_NUMBERS = 1 << 16
"""Numbers in all lists that are kept of one file."""

MOST_WORDS = 1 << 20
"""Words in all lists of one file; today's largest vocabularies have 0.8 million, with their merges."""

MOST_KEYS = 1 << 12
MOST_TENSORS = 1 << 13
"""Today's largest models have under 3000 in a file."""

LONGEST_NAME = 1 << 16
"""Bytes of a key's name, by the format."""

LONGEST_TENSOR_NAME = 256
"""llama.cpp takes 64, other engines more."""

MOST_DIMENSIONS = 4

_UINT8, _INT8, _UINT16, _INT16, _UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = range(10)
_SCALARS = {
    _UINT8: "B",
    _INT8: "b",
    _UINT16: "H",
    _INT16: "h",
    _UINT32: "I",
    _INT32: "i",
    _FLOAT32: "f",
    _BOOL: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_SCALAR = {kind: struct.Struct(f"<{code}") for kind, code in _SCALARS.items()}
_KIND_AND_PLACE = [struct.Struct(f"<{count}QIQ").unpack_from for count in range(MOST_DIMENSIONS + 1)]

_LONGEST_TENSOR = 8 + LONGEST_TENSOR_NAME + 4 + 8 * MOST_DIMENSIONS + 12


@dataclass(slots=True)
class Header:
    """What a file says of itself.

    `keys`: values as Python has them, without lists and texts that are too long to be kept. `lengths`: of
    every list, and of the texts that were not kept, in bytes. `tensors`: name, dimensions (fastest first),
    the type's number, and the offset from `data`, where the tensors' bytes begin.
    """

    version: int
    keys: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    tensors: list[tuple[str, tuple[int, ...], int, int]] = field(default_factory=list)
    data: int = 0


def read(source: Source, size: int, workspace: Workspace | None = None) -> Header:
    """Return the header of a file of `size` bytes. Raises Refused, Unknown or OSError."""
    workspace = workspace or Workspace()
    reader = _Reader(source, size, workspace, leaps=True)
    try:
        header = reader.read()
    except (Refused, Unknown):
        if not reader.leapt:
            raise
        # It may not have been the key that it looked like.
        return _Reader(source, size, workspace, leaps=False).read()
    reader.remember()
    return header


class _Reader(WordLists):
    """One file."""

    def __init__(self, source: Source, size: int, workspace: Workspace, *, leaps: bool) -> None:
        super().__init__(source, size, workspace, leaps=leaps)
        self._words_left = MOST_WORDS
        self._text_left, self._numbers_left = MOST_TEXT, MOST_NUMBERS

    def read(self) -> Header:
        version = self._version()
        tensors, keys = self._number(8), self._number(8)
        self._possible(keys, 13, "keys", MOST_KEYS)
        self._possible(tensors, 24, "tensors", MOST_TENSORS)
        header = Header(version)
        for _ in range(keys):
            self._key(header)
        seen: set[str] = set()
        for _ in range(tensors):
            seen.add(self._tensor(header))
        if len(seen) != tensors:
            raise damaged("two of its tensors have the same name")
        alignment = header.keys.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise damaged(f"general.alignment is {str(alignment)[:40]}, which is no power of two")
        header.data = self._place + -self._place % alignment
        return header

    def _version(self) -> int:
        there = min(self._size, 24)
        self._have(there)
        start = bytes(self._data[:there])
        if start[:4] != MAGIC:
            raise Refused(f"is not a GGUF file: it begins with {start[:4]!r}, not {MAGIC!r}{_other(start)}")
        self._have(24)
        (version,) = U32(self._data, 4)
        self._at = 8
        if version == 1:
            raise Refused("is GGUF version 1, which engines no longer read; get or make a newer file")
        if not version:
            raise damaged("its version is 0")
        if version not in (2, 3):
            if int.from_bytes(self._data[4:8], "big") in (1, 2, 3):
                raise Refused("is big-endian, made for machines such as s390x; get the little-endian file")
            raise Unknown(f"is GGUF version {version}; versions 2 and 3 are read")
        return int(version)

    def _possible(self, count: int, least: int, what: str, most: int) -> None:
        room = self._size - self._base - self._at
        if count * least > room:
            raise damaged(f"it announces {count} {what}, but only {room} bytes follow")
        if count > most:
            raise Unknown(f"has {count} {what}, which is more than are read here ({most})")

    # --- keys ---

    def _key(self, header: Header) -> None:
        name = self._name()
        if name in header.keys or name in header.lengths:
            raise damaged(f"it has the key {name[:80]!r} twice")
        kind = self._number(4)
        value: Any
        if kind == _STRING:
            length = self._number(8)
            value = self._text(length, name)
            if value is None:
                header.lengths[name] = length
        elif kind == _ARRAY:
            value = self._list(header, name)
        elif kind in _SCALAR:
            form = _SCALAR[kind]
            self._have(form.size)
            (value,) = form.unpack_from(self._data, self._at)
            self._at += form.size
        else:
            raise damaged(f"its key {name[:80]!r} has a value of type {kind}, and there is no such type")
        if value is not None:
            header.keys[name] = value

    def _name(self) -> str:
        length = self._number(8)
        if length > LONGEST_NAME:
            raise damaged(f"the name of a key would be {length} bytes long")
        self._have(length)
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def _text(self, length: int, name: str) -> str | None:
        """Return a text of this length, or step over one that is too long to be kept."""
        if length > LONGEST_TEXT or length > self._text_left:
            self._skip(length, f"the text of {name[:80]!r}")
            return None
        self._have(length)
        self._at += length
        self._text_left -= length
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def _list(self, header: Header, name: str) -> list[Any] | None:
        inner, length = self._number(4), self._number(8)
        header.lengths[name] = length
        if inner == _STRING:
            return self._words(length, name)
        if inner not in _SCALARS:
            raise damaged(f"its key {name[:80]!r} is a list of type {inner}, which no engine reads")
        size = length * _SCALAR[inner].size
        if length > LONGEST_LIST or length > self._numbers_left:
            self._skip(size, f"the list of {name[:80]!r}")
            return None
        self._have(size)
        self._at += size
        self._numbers_left -= length
        return list(struct.unpack_from(f"<{length}{_SCALARS[inner]}", self._data, self._at - size))

    def _words(self, count: int, name: str) -> list[str] | None:
        room = self._size - self._base - self._at
        if count * 8 > room:
            raise damaged(f"its list {name[:80]!r} would have {count} words, but only {room} bytes follow")
        self._words_left -= count
        if self._words_left < 0:
            raise Unknown(f"has lists of more than {MOST_WORDS} words, which is more than are read here")
        if count > MOST_WORDS_KEPT:
            self._step_over(count, name)
            return None
        words = [self._text(self._number(8), name) for _ in range(count)]
        return [word for word in words if word is not None]

    # --- tensors ---

    def _tensor(self, header: Header) -> str:
        # Models have hundreds. The longest is fetched as a whole, so that nothing else need be asked for;
        # behind the last one there may be less.
        if self._at + _LONGEST_TENSOR > self._end:
            self._have(min(_LONGEST_TENSOR, self._size - self._base - self._at))
        data, at, end = self._data, self._at, self._end
        (length,) = U64(data, at) if at + 8 <= end else (0,)
        if length > LONGEST_TENSOR_NAME:
            raise damaged(f"the name of a tensor would be {length} bytes long")
        at += 8 + length
        (dimensions,) = U32(data, at) if at + 4 <= end else (0,)
        if dimensions > MOST_DIMENSIONS:
            raise damaged(f"a tensor has {dimensions} dimensions, at most {MOST_DIMENSIONS} are possible")
        if at + 16 + 8 * dimensions > end:
            raise damaged(f"its header goes on beyond the end, {self._size} bytes")
        name = data[at - length : at].decode("utf-8", "replace")
        *shape, kind, offset = _KIND_AND_PLACE[dimensions](data, at + 4)
        self._at = at + 16 + 8 * dimensions
        total = math.prod(shape)
        if total >= 1 << 63 or offset >= 1 << 63:
            raise damaged(f"its tensor {name[:80]!r} would have {total} elements at offset {offset}")
        header.tensors.append((name, tuple(shape), kind, offset))
        return name


def _other(data: bytes) -> str:
    """Return what the file seems to be instead, to follow in a sentence."""
    start = data.lstrip()[:9].lower()
    if data and not data.strip(b"\0"):
        return "; nothing was ever written into it"
    if data.startswith(b"version https://git-lfs"):
        return "; it is a Git LFS pointer: run git lfs pull"
    if start.startswith((b"<!doctype", b"<html")):
        return "; it is a web page"
    if data[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        return "; it is of an older format of ggml"
    if data[8:10] == b'{"':
        return "; it is a safetensors file"
    return ""

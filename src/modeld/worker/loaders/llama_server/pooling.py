"""How a GGUF model makes one vector of its tokens', as its file says.

The engine reads it too, but offers reranking only when its command line says "rank".
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

KINDS = ("none", "mean", "cls", "last", "rank")
"""llama.cpp's poolings in the order of its numbers."""

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type's number in GGUF."""

_MOST_KEYS = 100_000


def own_pooling(model: Path) -> str | None:
    """Return the pooling that the file names, one of KINDS; None when it names none or cannot be read."""
    try:
        with model.open("rb") as file:
            return _search(file)
    except (OSError, struct.error, KeyError, UnicodeDecodeError):
        return None  # the engine will say what is wrong with it


def _search(file: BinaryIO) -> str | None:
    magic, _version, _tensors, keys = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF":
        return None
    for _ in range(min(keys, _MOST_KEYS)):
        key = file.read(_length(file)).decode()
        kind = _number(file)
        if key.endswith(".pooling_type") and kind in (4, 5):
            number = _number(file)
            return KINDS[number] if number < len(KINDS) else None
        _skip(file, kind)
    return None


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_length(file), 1)
    elif kind == _ARRAY:
        inner, count = _number(file), _length(file)
        if inner in _SIZES:
            file.seek(_SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(_SIZES[kind], 1)


def _number(file: BinaryIO) -> int:
    number: int = struct.unpack("<I", file.read(4))[0]
    return number


def _length(file: BinaryIO) -> int:
    length: int = struct.unpack("<Q", file.read(8))[0]
    return length

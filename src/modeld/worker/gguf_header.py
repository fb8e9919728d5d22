"""Reading a GGUF file's header by hand: the few things that are wanted before an engine sees the file.

Raises struct.error at a file's end, and KeyError for a value of a type that GGUF does not have.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type's number."""


def number(file: BinaryIO) -> int:
    """Read a uint32: a type, a count of dimensions."""
    found: int = struct.unpack("<I", file.read(4))[0]
    return found


def length(file: BinaryIO) -> int:
    """Read a uint64: how long what follows is."""
    found: int = struct.unpack("<Q", file.read(8))[0]
    return found


def skip(file: BinaryIO, kind: int) -> None:
    """Go past a value of a type."""
    if kind == _STRING:
        file.seek(length(file), 1)
    elif kind == _ARRAY:
        inner, count = number(file), length(file)
        if inner in _SIZES:
            file.seek(_SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                skip(file, inner)
    else:
        file.seek(_SIZES[kind], 1)

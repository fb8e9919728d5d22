"""How a GGUF model makes one vector of its tokens', as its file says.

The engine reads it too, but offers reranking only when its command line says "rank".
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from modeld.worker.gguf_header import length, number, skip

KINDS = ("none", "mean", "cls", "last", "rank")
"""llama.cpp's poolings in the order of its numbers."""

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
        key = file.read(length(file)).decode()
        kind = number(file)
        if key.endswith(".pooling_type") and kind in (4, 5):
            pooling = number(file)
            return KINDS[pooling] if pooling < len(KINDS) else None
        skip(file, kind)
    return None

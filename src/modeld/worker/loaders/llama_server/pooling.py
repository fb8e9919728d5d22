"""What a GGUF file says it is for: how it makes one vector of its tokens', if it does.

The engine reads it too, but offers reranking only when its command line says "rank"; and it dies of an
assertion where it is to write text with a model that makes vectors.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from modeld.errors import LoadFailed
from modeld.worker.gguf_header import length, number, skip

KINDS = ("none", "mean", "cls", "last", "rank")
"""llama.cpp's poolings in the order of its numbers."""

_MOST_KEYS = 100_000

_STRING = 8
_LONGEST = 200


def own_pooling(model: Path) -> str | None:
    """Return the pooling that the file names, one of KINDS; None when it names none or cannot be read."""
    return _read(model, to_the_end=True)[1]


def check_use(model: Path, usecase: str) -> None:
    """Raise LoadFailed (permanent), with what to write, for a file that is not for this use.

    These are the ones whose files say so: projectors, and for `generate` models of vectors or scores.
    """
    architecture, pooling = _read(model, to_the_end=False)
    if architecture == "clip":
        raise LoadFailed(
            f"{model} is a projector, by which another model sees or hears; name that model, "
            "and this file as its llama_server_config.mmproj",
            permanent=True,
        )
    if usecase == "generate" and pooling not in (None, "none"):
        what = "scores texts (a reranker)" if pooling == "rank" else "makes vectors and writes no text"
        raise LoadFailed(f"{model} {what}; give it usecase: embed", permanent=True)


def _read(model: Path, *, to_the_end: bool) -> tuple[str, str | None]:
    """Return the architecture and the pooling; what is not there or cannot be read is "" and None.

    Not to the end: to the vocabulary, which converters put last and which takes most of a second to pass.
    """
    try:
        with model.open("rb") as file:
            return _search(file, to_the_end)
    except (OSError, struct.error, KeyError, UnicodeDecodeError):
        return "", None  # the engine will say what is wrong with it


def _search(file: BinaryIO, to_the_end: bool) -> tuple[str, str | None]:
    architecture = ""
    magic, _version, _tensors, keys = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF":
        return architecture, None
    for _ in range(min(keys, _MOST_KEYS)):
        key = file.read(length(file)).decode()
        kind = number(file)
        if key == "general.architecture" and kind == _STRING:
            architecture = file.read(min(length(file), _LONGEST)).decode()
            if architecture == "clip":
                return architecture, None
        elif key.startswith("tokenizer.") and not to_the_end:
            break
        elif key.endswith(".pooling_type") and kind in (4, 5):
            pooling = number(file)
            return architecture, KINDS[pooling] if pooling < len(KINDS) else None
        else:
            skip(file, kind)
    return architecture, None

"""Reads the header of a whisper model in the ggml format: a magic number and eleven sizes."""

from __future__ import annotations

import struct
from pathlib import Path

from modeld.errors import LoadFailed
from modeld.library.about import About
from modeld.library.metadata import Metadata

MAGIC = b"lmgg"

_HEADER = struct.Struct("<4s11i")
_MULTILINGUAL = 51865
"""Words of the vocabulary from which on whisper knows more than English."""

_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K"}
_TYPES |= {12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}
_SIZES = {(4, 384): "tiny", (6, 512): "base", (12, 768): "small", (24, 1024): "medium", (32, 1280): "large"}
_LIMITS = (1 << 20, 1 << 16, 1 << 14, 256, 256, 1 << 16, 1 << 14, 256, 256, 1024)
"""What no real model exceeds, in the order of the sizes."""


def describe(path: Path) -> tuple[Metadata, About]:
    """Return what a whisper model's file says of itself. Raises LoadFailed (permanent) for another file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(_HEADER.size)
    except OSError as error:
        raise LoadFailed(f"{path} cannot be read: {error.strerror or error}", permanent=True) from error
    if head[:4] != MAGIC:
        raise LoadFailed(
            f"{path} is not a model of whisper: it begins with {head[:4]!r}, not {MAGIC!r}", permanent=True
        )
    if len(head) < _HEADER.size:
        raise LoadFailed(f"{path} is cut short: it has {size} bytes; fetch it again", permanent=True)
    _, *sizes, kind = _HEADER.unpack(head)
    if not all(0 < each <= most for each, most in zip(sizes, _LIMITS, strict=True)):
        raise LoadFailed(f"{path} is damaged: its sizes are {sizes}; fetch it again", permanent=True)
    words, _, state, heads, layers, context, _, _, text_layers, mels = sizes
    name = _SIZES.get((layers, state), "")
    if name == "large":
        name += "-v3" if mels == 128 else ""
        name += "-turbo" if text_layers <= 4 else ""
    speaks = words >= _MULTILINGUAL
    metadata = Metadata(
        format="other",
        size=size,
        architecture="whisper",
        name=f"whisper {name}{'' if speaks or not name else '.en'}".strip(),
        # A thousand stands for each version of the quantisation.
        quantization=_TYPES.get(kind % 1000, f"type {kind}"),
        context_length=context,
        embedding_length=state,
        n_head=heads,
        vocabulary=words,
    )
    able = ("transcription", "translation") if speaks else ("transcription",)
    return metadata, About(kind="model", capabilities=able, languages=() if speaks else ("en",))

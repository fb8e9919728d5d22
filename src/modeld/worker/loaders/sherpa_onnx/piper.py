"""Piper's voices: what sherpa-onnx needs and they lack, added in a copy.

Piper gives a voice out as NAME.onnx and NAME.onnx.json; sherpa-onnx wants what is in the latter as metadata
of the former, and the alphabet as tokens.txt. Piper's networks expect a blank between any two sounds. With a
lexicon sherpa-onnx puts it there only where the metadata has `add_blank`; voices that were converted when
espeak brought the blanks do not have it, and rush beyond understanding.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modeld.errors import LoadFailed
from modeld.worker.loaders.sherpa_onnx.onnx_file import metadata_bytes

if TYPE_CHECKING:
    from modeld.worker.loaders.sherpa_onnx.folder import Found

PIPER = "piper"
"""What the metadata's `comment` says of a converted voice."""

_BLANKS = {"add_blank": "1", "blank_id": "0"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a voice's .onnx.json says: `metadata` in sherpa-onnx's terms, `alphabet` sounds to numbers."""

    metadata: dict[str, str]
    alphabet: dict[str, int]


def settings(model: Path) -> Settings | None:
    """Return what stands in the file beside a model, None when there is none or it is none of Piper's."""
    file = model.with_name(f"{model.name}.json")
    try:
        read: Any = json.loads(file.read_bytes())
        alphabet = {str(sound): int(numbers[0]) for sound, numbers in read["phoneme_id_map"].items()}
        return Settings(_metadata(read), alphabet)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _metadata(read: Mapping[str, Any]) -> dict[str, str]:
    language, speakers = read.get("language") or {}, read.get("speaker_id_map") or {}
    found = {
        "model_type": "vits",
        "comment": PIPER,
        "language": str(language.get("name_english", "English")),
        "voice": str(read["espeak"]["voice"]),
        "has_espeak": "1",
        "n_speakers": str(int(read["num_speakers"])),
        "sample_rate": str(int(read["audio"]["sample_rate"])),
    }
    if speakers:
        found["id2speaker"] = ",".join(f"{number}->{name}" for name, number in speakers.items())
    return found


def completed(found: Found, scratch: Path, *, has_espeak: bool) -> Found:
    """Return a model with all that the engine needs: itself, or a copy in the folder `scratch`.

    The copy is needed until the engine is loaded. Raises LoadFailed.
    """
    missing = dict(found.piper.metadata) if found.piper is not None else {}
    if not has_espeak and "add_blank" not in found.metadata:
        missing |= _BLANKS
    if found.metadata.get("comment") != PIPER or not missing:
        return found
    model, tokens = scratch / "model.onnx", scratch / "tokens.txt"
    try:
        shutil.copyfile(found.model, model)
        with model.open("ab") as file:
            file.write(metadata_bytes(missing))
        if found.piper is None or found.tokens.is_file():
            tokens = found.tokens
        else:
            lines = (f"{sound} {number}\n" for sound, number in found.piper.alphabet.items())
            tokens.write_text("".join(lines), "utf-8")
    except OSError as error:
        discarded(scratch)
        raise LoadFailed(f"{found.model} cannot be copied to {scratch}: {error.strerror or error}") from None
    return dataclasses.replace(found, model=model, tokens=tokens, metadata=found.metadata | missing)


def discarded(scratch: Path) -> None:
    """Remove what `completed` may have written, once the engine has read it."""
    for name in ("model.onnx", "tokens.txt"):
        (scratch / name).unlink(missing_ok=True)

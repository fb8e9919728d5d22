"""What kind of speech model a folder holds, told by its files, and what the engine needs of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from modeld.errors import LoadFailed
from modeld.worker.loaders.sherpa_onnx import piper
from modeld.worker.loaders.sherpa_onnx.onnx_file import metadata

FAMILIES = ("kokoro", "kitten", "matcha", "vits")
"""As the `model_type` of an ONNX file names them, or begins to ("kitten-tts")."""

_PREFERRED = "model.onnx"
_VOCODERS = ("vocos", "hifigan", "vocoder")
_LEXICON = "lexicon*.txt"


@dataclass(frozen=True)
class Found:
    """A model of a family; paths are absolute.

    `lexicons` in the order the engine searches them. `metadata` is the ONNX file's own, or what Piper's file
    beside it says (`piper`); then `tokens` need not be there.
    """

    family: str
    model: Path
    tokens: Path
    lexicons: tuple[Path, ...]
    metadata: dict[str, str]
    voices: Path | None = None
    vocoder: Path | None = None
    data_dir: Path | None = None
    dict_dir: Path | None = None
    rules: tuple[Path, ...] = ()
    piper: piper.Settings | None = None


def look(path: Path, *, has_espeak: bool) -> Found:
    """Return what is in a folder, or beside an .onnx file.

    `has_espeak`: the engine is older than 2 and pronounces by espeak-ng-data. Raises LoadFailed (permanent)
    with what was looked for.
    """
    if not path.exists():
        raise _refused(f"there is no folder {path}")
    folder = path if path.is_dir() else path.parent
    candidates = [path] if path.is_file() else sorted(folder.glob("*.onnx"), key=_preference)
    if not candidates:
        raise _refused(
            f"{folder} has no .onnx file; the folder of a sherpa-onnx speech model is looked for: "
            "model.onnx, tokens.txt, a lexicon, and voices.bin for Kokoro"
        )
    model, family, meta, voice = _model(candidates)
    found = Found(
        family=family,
        model=model,
        tokens=folder / "tokens.txt" if voice is not None else _needed(folder, "tokens.txt", family),
        lexicons=_lexicons(folder),
        metadata=meta,
        voices=_needed(folder, "voices.bin", family) if family in ("kokoro", "kitten") else None,
        vocoder=_vocoder(folder, model) if family == "matcha" else None,
        data_dir=_folder(folder / "espeak-ng-data"),
        dict_dir=_folder(folder / "dict"),
        # Kokoro's rules are for Chinese and would read an English text's numbers in Chinese.
        rules=tuple(sorted(folder.glob("*.fst"))) if family in ("matcha", "vits") else (),
        piper=voice,
    )
    _check_pronunciation(found, folder, has_espeak)
    _check_voices(found)
    return found


def _model(candidates: list[Path]) -> tuple[Path, str, dict[str, str], piper.Settings | None]:
    seen: list[str] = []
    for file in candidates:
        try:
            meta = metadata(file)
        except (ValueError, OSError) as error:
            seen.append(f"{file.name}: {error}")
            continue
        kind = meta.get("model_type", "")
        family = next((name for name in FAMILIES if kind.startswith(name)), None)
        if family is not None:
            return file, family, meta, None
        if not kind and (voice := piper.settings(file)) is not None:
            return file, "vits", dict(voice.metadata), voice
        seen.append(f"{file.name}: its model_type is {kind!r}" if kind else f"{file.name}: has no model_type")
    raise _refused(
        f"{candidates[0].parent} holds no speech model of the families {', '.join(FAMILIES)} "
        f"({'; '.join(seen)})"
    )


def _preference(file: Path) -> tuple[bool, str]:
    return file.name != _PREFERRED, file.name


def _needed(folder: Path, name: str, family: str) -> Path:
    file = folder / name
    if not file.is_file():
        raise _refused(f"{folder} looks like a {family} model, but has no {name}")
    return file


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None


def _lexicons(folder: Path) -> tuple[Path, ...]:
    files = sorted(folder.glob(_LEXICON))
    american = [file for file in files if "us-en" in file.name]
    if american:  # the first entry of a word counts; both English ones would only cost memory
        files = american + [file for file in files if file not in american and "gb-en" not in file.name]
    return tuple(files)


def _vocoder(folder: Path, model: Path) -> Path:
    for file in sorted(folder.glob("*.onnx")):
        if file != model and file.name.startswith(_VOCODERS):
            return file
    raise _refused(
        f"{folder} holds a matcha model and no vocoder for it; "
        f"{' or '.join(f'{name}*.onnx' for name in _VOCODERS)} was looked for"
    )


def _check_pronunciation(found: Found, folder: Path, has_espeak: bool) -> None:
    if found.lexicons or (has_espeak and found.data_dir is not None):
        return
    speaks_sounds = found.metadata.get("has_espeak") == "1"
    if found.data_dir is None and found.family == "vits" and not speaks_sounds:
        return  # it may read letters, which need no lexicon
    also = "its espeak-ng-data is no longer used by sherpa-onnx 2; " if found.data_dir is not None else ""
    raise _refused(
        f"{folder} has no lexicon, without which a {found.family} model can say nothing: {also}"
        f"put {_LEXICON} there (a line for each word: the word, then its sounds, as in tokens.txt)"
    )


def _check_voices(found: Found) -> None:
    """Refuse voices of the wrong size: the engine would end the process."""
    style = found.metadata.get("style_dim")
    if found.family != "kokoro" or found.voices is None or not style:
        return
    try:
        floats = math.prod(int(size) for size in style.split(",")) * int(found.metadata["n_speakers"])
    except (KeyError, ValueError):
        raise _refused(f"{found.model}: its metadata style_dim or n_speakers cannot be read") from None
    size = found.voices.stat().st_size
    if size != floats * 4:
        raise _refused(f"{found.voices} has {size} bytes; {found.model.name} needs {floats * 4} of voices")


def _refused(message: str) -> LoadFailed:
    return LoadFailed(message, permanent=True)

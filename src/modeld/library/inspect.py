"""What a model's files say of themselves, read once and remembered."""

from __future__ import annotations

import asyncio
import logging
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from modeld.errors import LoadFailed
from modeld.library import safetensors
from modeld.library.metadata import Metadata
from modeld.library.reading import read_models

AT_ONCE = 2
"""Files read at the same time: each is a process of about 20 MB."""

MOST_KEPT = 256
"""Models that are remembered."""

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")

_log = logging.getLogger("modeld.library")
_known: dict[tuple[tuple[str, int, int], ...], Metadata] = {}
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def inspect(path: Path) -> Metadata:
    """Return the metadata of a model file or folder; of one that is not understood, its size alone.

    Remembered until a file's size or time of change differs. A GGUF file is read by a process of its own,
    which is stopped when the caller is cancelled. Raises LoadFailed (permanent), in a sentence, for a file
    that is missing, cannot be read, is cut short, or is not of the format that its name says.
    """
    files = await asyncio.to_thread(_files, path)
    key = await asyncio.to_thread(_signature, path, files)
    if key not in _known:
        found = await _read(path, files, sum(size for _, size, _ in key[: len(files)]))
        while len(_known) >= MOST_KEPT:
            del _known[next(iter(_known))]
        _known[key] = found
    return _known[key]


async def _read(path: Path, files: Sequence[Path], size: int) -> Metadata:
    if files and files[0].suffix == ".safetensors":
        return await asyncio.to_thread(safetensors.describe, path, files)
    is_gguf = bool(files) and await asyncio.to_thread(_is_gguf, files[0])
    if is_gguf:
        gate = _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
        async with gate:
            return await _gguf(files, size)
    return Metadata(format="other", size=size, name=path.name if path.is_dir() else path.stem)


# --- which files --------------------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    """Return the files that make up the model. Raises LoadFailed."""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return _shards(path)
        models = [each for each in sorted(path.glob("*.gguf")) if not each.name.startswith("mmproj")]
        if models and (len(models) == 1 or _shards(models[0]) == models):
            return models
        return safetensors.weights_in(path)
    except FileNotFoundError:
        raise LoadFailed(f"there is no file {path}", permanent=True) from None
    except OSError as error:
        raise _unreadable(path, error) from error


def _shards(path: Path) -> list[Path]:
    """Return all pieces of a model that comes in several, name-00001-of-00003.gguf; else the file alone."""
    found = _SHARD.fullmatch(path.name)
    if not found:
        return [path]
    stem, count = found[1], int(found[3])
    pieces = [path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [piece.name for piece in pieces if not piece.exists()]
    if missing:
        raise LoadFailed(
            f"{path} is one of {count} pieces, and {len(missing)} of them are missing: {missing[0]}"
            f"{', …' if len(missing) > 1 else ''}; fetch them into {path.parent}",
            permanent=True,
        )
    return pieces


def _signature(path: Path, files: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Return each file's name, size and time of change; what describes the files comes last."""
    config = path / "config.json"
    try:
        facts = [(str(file), file.stat()) for file in files]
        if config.is_file():
            facts.append((str(config), config.stat()))
    except OSError as error:
        raise _unreadable(Path(error.filename), error) from error
    return tuple((name, fact.st_size, fact.st_mtime_ns) for name, fact in facts)


def _is_gguf(file: Path) -> bool:
    if file.suffix == ".gguf":
        return True  # or it should be, and the reader says what it is instead
    try:
        with file.open("rb") as stream:
            return stream.read(4) == b"GGUF"
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(path: Path, error: OSError) -> LoadFailed:
    return LoadFailed(f"{path} cannot be read: {error.strerror or error}", permanent=True)


# --- GGUF ---------------------------------------------------------------------------------------------------


async def _gguf(files: Sequence[Path], size: int) -> Metadata:
    (answer,) = await read_models([files])
    if answer.error:
        fix = "fetch it again (first `modeld ctl rm` it, if modeld pulled it), or name another file"
        raise LoadFailed(f"{answer.error}; {fix}", permanent=True)
    if answer.trouble:
        raise LoadFailed(answer.trouble, permanent=True)
    if answer.metadata is None:
        extra = {"file": str(files[0]), "reason": answer.unknown}
        _log.warning("a model's metadata cannot be read; its size is all that is known", extra=extra)
        return Metadata(format="gguf", size=size)
    return answer.metadata

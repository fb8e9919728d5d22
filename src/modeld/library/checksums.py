"""The sha256 of models' files: told where it is known, and worked out on request only, for that reads them.

Known is that of a file which was pulled, and of one that was worked out before and has not changed since.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from modeld.library.entry import Entry
from modeld.library.keep import write_whole
from modeld.library.pull import record

NAME = "checksums.msgpack"
"""The file in the cache directory that keeps what was worked out."""

MOST_KEPT = 20_000
MOST_BYTES = 64 * 1024**2

_PIECE = 4 * 1024**2

_log = logging.getLogger("modeld.library")


class Sum(msgspec.Struct, frozen=True, array_like=True):
    """A file's sha256 in hex, and its bytes and time of change (ns) when it was worked out."""

    size: int
    changed: int
    sha256: str


class Verified(msgspec.Struct, frozen=True):
    """The sha256 of each file of a model by its name, and in sentences what is not as it was."""

    sha256: dict[str, str]
    wrong: tuple[str, ...] = ()


def told(cache: Path, entry: Entry) -> dict[str, str]:
    """Return what is known of a model's files, by their names. Reads no file of the model. Raises nothing."""
    kept = _load(cache)
    return {
        name: sha256 for name, path in files(entry) if (sha256 := _kept(kept, path) or _pulled(cache, path))
    }


def verify(cache: Path, entry: Entry, hear: Callable[[int], None] = lambda size: None) -> Verified:
    """Read all files of a model, and compare them with what they were when pulled, or when last read.

    `hear` gets the bytes as they are read. What is found is kept. Raises nothing for what is on the disk.
    """
    kept, wrong = _load(cache), []
    found: dict[str, str] = {}
    for name, path in files(entry):
        expected, why = _pulled(cache, path), "it was pulled with"
        if not expected:
            expected, why = _kept(kept, path), "it had, and its size and time are those of then,"
        try:
            found[name] = sum_ = _sha256(path, hear)
            status = os.stat(path)
        except OSError as error:
            wrong.append(f"{path} cannot be read: {error.strerror or error}")
            continue
        if expected and sum_ != expected:
            wrong.append(f"{path} is damaged: its sha256 is {sum_}; {why} {expected}; get it again")
        else:
            kept[os.path.realpath(path)] = Sum(status.st_size, status.st_mtime_ns, sum_)
    _keep(cache, kept)
    return Verified(found, tuple(wrong))


def files(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the names and paths of a model's weights, its projectors' too."""
    folder = entry.path if os.path.isdir(entry.path) else os.path.dirname(entry.path)
    for name in entry.files:
        yield name, os.path.join(folder, name)
    for path in entry.mmproj:
        yield os.path.basename(path), path


def _pulled(cache: Path, path: str) -> str:
    """Return the checksum that a file was pulled with; "" for another file, or one of other bytes."""
    repo = record.repository(cache, path)
    for pulled in record.all_of(cache, repo) if repo else ():
        for file in pulled.all:
            if len(file.etag) == 64 and str(pulled.folder / file.name) == path:
                return file.etag
    return ""


def _kept(kept: dict[str, Sum], path: str) -> str:
    try:
        known, status = kept.get(os.path.realpath(path)), os.stat(path)
    except OSError:
        return ""
    same = known is not None and (known.size, known.changed) == (status.st_size, status.st_mtime_ns)
    return known.sha256 if known is not None and same else ""


def _sha256(path: str, hear: Callable[[int], None]) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while piece := stream.read(_PIECE):
            hasher.update(piece)
            hear(len(piece))
    return hasher.hexdigest()


def _load(cache: Path) -> dict[str, Sum]:
    try:
        with (cache / NAME).open("rb") as stream:
            return msgspec.msgpack.decode(stream.read(MOST_BYTES), type=dict[str, Sum])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):  # made afresh
        return {}


def _keep(cache: Path, kept: dict[str, Sum]) -> None:
    while len(kept) > MOST_KEPT:
        del kept[next(iter(kept))]
    try:
        write_whole(cache / NAME, msgspec.msgpack.encode(kept))
    except OSError as error:
        _log.debug("checksums cannot be kept", extra={"reason": str(error)})

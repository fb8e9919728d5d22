"""Looks through a tree of folders for what may be a model: names, sizes and times, and no file is opened.

`walk` sees the disk; `found_in`, which tells models from other files, is pure.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from modeld.library.folders import ADAPTER, CONFIG, DESCRIBING, PIPELINE

MOST_FILES = 100_000
"""Files that may be models, in one tree."""

MOST_FOLDERS = 50_000

MOST_NAMED = 1000
"""Missing pieces of one model that are named."""

SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf|\.safetensors)", re.IGNORECASE)
"""A piece of a model that comes in several: its stem, its number, how many there are, and the suffix."""

NOT_TEXT = "has a name that is not UTF-8; rename it"

_WEIGHTS = (".gguf", ".safetensors", ".onnx", ".bin", ".pt", ".pth", ".onnx.json", ".fst")
_WHISPER = re.compile(r"(?:ggml-|.*whisper.*\.)[^/]*bin", re.IGNORECASE)

What: TypeAlias = Literal["gguf", "safetensors", "folder", "ggml", "problem"]


class File(NamedTuple):
    """A file's size in bytes, and when it was last changed, in ns; `problem` says why it is not one."""

    size: int
    changed: int
    problem: str = ""


@dataclass(slots=True)
class Folder:
    """A folder: its files of interest by name, those of a pipeline's subfolders as sub/name, and in
    `problem` why it could not be read.
    """

    path: str
    files: dict[str, File] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What may be a model.

    `path`: the file to name, or the folder. `files`: its weights, by name in their folder, in their order.
    `missing`: pieces that are not there. `signature`: of all files that say what it is; while it stays the
    same, so does what they say.
    """

    what: What
    folder: str
    path: str
    files: tuple[str, ...]
    size: int
    signature: tuple[tuple[str, int, int], ...]
    missing: tuple[str, ...] = ()
    problem: str = ""


def walk(*roots: str, deep: bool = True) -> list[Folder]:
    """Return the folders of trees that hold anything of interest, or that cannot be read, by path; or these
    folders alone.

    Links are followed, and every folder is looked into once, by a path without links when there is one.
    Hidden folders are left out. Raises nothing for what is on the disk.
    """
    waiting, links = deque(roots), deque[str]()
    seen: set[tuple[int, int]] = set()
    folders: list[Folder] = []
    files = 0
    while waiting or links:
        path = waiting.popleft() if waiting else links.popleft()
        folder = Folder(path)
        if (shown := as_text(path)) != path:
            folders.append(Folder(shown, problem=NOT_TEXT))
            continue
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            below = _look(folder)
        except OSError as error:
            folder.problem = f"cannot be read: {error.strerror or error}"
            folders.append(folder)
            continue
        for entry in below if deep else ():
            (links if entry.is_symlink() else waiting).append(entry.path)
        files += len(folder.files)
        ended = files > MOST_FILES or len(seen) > MOST_FOLDERS
        if ended:
            folder.problem = (
                f"is where looking ended, after {files} files in {len(seen)} folders; name a part"
            )
        if folder.files or ended:
            folders.append(folder)
        if ended:
            break
    return sorted(folders, key=lambda each: each.path)


def _look(folder: Folder) -> list[os.DirEntry[str]]:
    """Fill in a folder's files, and return the folders in it. Raises OSError."""
    below = []
    with os.scandir(folder.path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                below.append(entry)
            elif entry.name in DESCRIBING or entry.name.lower().endswith(_WEIGHTS) or _named(entry.name):
                folder.files[as_text(entry.name)] = _status(entry)
    if PIPELINE in folder.files:
        for entry in below:
            part = Folder(entry.path)
            try:
                _look(part)
            except OSError as error:
                folder.problem = f"cannot be read: {entry.name}: {error.strerror or error}"
            folder.files |= {f"{entry.name}/{name}": file for name, file in part.files.items()}
        return []
    return below


def _named(name: str) -> bool:
    """Return whether a file that is no weights tells what the weights beside it are for."""
    return name.startswith("lexicon") and name.endswith(".txt")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads round and round
        return False


def as_text(path: str) -> str:
    """Return a path as text that can be written anywhere; the same, for almost all."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _status(entry: os.DirEntry[str]) -> File:
    if as_text(entry.name) != entry.name:
        return File(0, 0, NOT_TEXT)
    try:
        status = entry.stat()
    except FileNotFoundError:
        try:
            where = os.readlink(entry.path)
        except OSError:
            where = "what"
        return File(0, 0, f"is a link to {where}, which is not there")
    except OSError as error:
        return File(0, 0, f"cannot be read: {error.strerror or error}")
    if not stat.S_ISREG(status.st_mode):
        return File(0, 0, "is not a regular file")
    return File(status.st_size, status.st_mtime_ns)


# --- what is a model ----------------------------------------------------------------------------------------


def found_in(folder: Folder) -> Iterator[Found]:
    """Yield what may be models in a folder; what cannot be one by its name alone is left out."""
    if folder.problem:
        yield Found("problem", folder.path, folder.path, (), 0, (), problem=folder.problem)
    names = folder.files.keys()
    weights = [name for name in names if name.lower().endswith((".safetensors", ".bin", ".pt", ".pth"))]
    is_folder = PIPELINE in names or (weights and (CONFIG in names or ADAPTER in names))
    speech = [name for name in names if name.lower().endswith(".onnx")]
    speech = speech if "tokens.txt" in names or any(name.endswith(".onnx.json") for name in names) else []
    if is_folder or speech:
        yield _whole(folder, weights if is_folder else speech)
    for first, pieces, missing in _pieces(names, ".gguf"):
        yield _file(folder, "gguf", first, pieces, missing)
    if not is_folder:
        for first, pieces, missing in _pieces(names, ".safetensors"):
            yield _file(folder, "safetensors", first, pieces, missing)
        for name in names:
            if _WHISPER.fullmatch(name):
                yield _file(folder, "ggml", name, (name,), ())


def _whole(folder: Folder, weights: Iterable[str]) -> Found:
    described = sorted(name for name in folder.files if not name.lower().endswith(".gguf"))
    signature = tuple((name, *folder.files[name][:2]) for name in described)
    files = tuple(sorted(weights))
    size = sum(folder.files[name].size for name in files)
    problem = next(
        (f"{name} {folder.files[name].problem}" for name in files if folder.files[name].problem), ""
    )
    return Found("folder", folder.path, folder.path, files, size, signature, problem=problem)


def _file(folder: Folder, what: What, first: str, pieces: tuple[str, ...], missing: tuple[str, ...]) -> Found:
    files = {name: folder.files[name] for name in pieces}
    problem = next(
        (
            file.problem if len(pieces) == 1 else f"{name} {file.problem}"
            for name, file in files.items()
            if file.problem
        ),
        "",
    )
    return Found(
        what=what,
        folder=folder.path,
        path=os.path.join(folder.path, first),
        files=pieces,
        size=sum(file.size for file in files.values()),
        signature=tuple((name, file.size, file.changed) for name, file in files.items()),
        missing=missing,
        problem=problem,
    )


def _pieces(names: Iterable[str], suffix: str) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Yield each model's first file, all its files in their order, and the names of missing pieces."""
    together: dict[tuple[str, str], list[str]] = {}
    for name in sorted(name for name in names if name.lower().endswith(suffix)):
        shard = SHARD.fullmatch(name)
        key = (shard[1], shard[3]) if shard and 0 < int(shard[2]) <= int(shard[3]) else (name, "")
        together.setdefault(key, []).append(name)
    for (stem, count), pieces in together.items():
        missing: tuple[str, ...] = ()
        if count:
            there = set(pieces)
            ending = pieces[0][-len(suffix) :]
            every = (f"{stem}-{number:05}-of-{count}{ending}" for number in range(1, int(count) + 1))
            missing = tuple(itertools.islice((name for name in every if name not in there), MOST_NAMED))
        yield pieces[0], tuple(pieces), missing

"""Models taken out of the cache: which one a name means, and what goes with it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modeld.errors import UsageError
from modeld.library.entry import Entry
from modeld.library.lock import alone
from modeld.library.pull import record
from modeld.library.shelf import label, plainly, shelf

ROOMS = ("models", "hub", "pypi", "built")
"""Folders of the cache, which stay when they are empty."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def find(cache: Path, name: str, entries: tuple[Entry, ...]) -> Entry:
    """Return the one model of the cache that `name` means.

    It is a path of a file or of its folder, the folder's name below `models`, the file's name with or without
    its ending, a repository (`org/repo`), or what the model calls itself. Raises UsageError when there is
    none, or several.
    """
    if not name.strip() or not os.path.basename(name).strip("."):
        raise UsageError(f"{name!r} is no model's name; `modeld ctl models` shows those there are")
    for means in (_by_path, _by_folder, _by_label, _by_repository, _by_file, _by_name):
        found = [entry for entry in entries if means(cache, name, entry)]
        if len(found) == 1:
            return found[0]
        if found:
            paths = ", ".join(entry.path for entry in found)
            raise UsageError(f"{len(found)} models are called {name!r}; give the path of one: {paths}")
    if os.path.lexists(name) and not os.path.abspath(name).startswith(f"{os.path.abspath(cache)}{os.sep}"):
        raise UsageError(f"{name} is not in modeld's cache {cache}: what lies elsewhere is its owner's")
    raise UsageError(f"no model {name!r} is in {cache}; `modeld ctl models` shows those there are")


def _by_path(cache: Path, name: str, entry: Entry) -> bool:
    path = os.path.abspath(name)
    return entry.path == path or path in paths_of(entry)


def _by_folder(cache: Path, name: str, entry: Entry) -> bool:
    return os.sep in name and os.path.dirname(entry.path) == os.path.abspath(name)


def _by_label(cache: Path, name: str, entry: Entry) -> bool:
    below = os.path.relpath(entry.path, shelf(cache)).split(os.sep)
    return below[0] == name and below[0] != os.pardir


def _by_repository(cache: Path, name: str, entry: Entry) -> bool:
    return _REPOSITORY.fullmatch(name) is not None and entry.path.startswith(
        f"{os.path.abspath(cache)}/hub/{name}/"
    )


def _by_file(cache: Path, name: str, entry: Entry) -> bool:
    return name in (label(entry), os.path.basename(entry.path))


def _by_name(cache: Path, name: str, entry: Entry) -> bool:
    return entry.name == name


def paths_of(entry: Entry) -> tuple[str, ...]:
    """Return the files of a model, or its folder; its projectors too."""
    if os.path.isdir(entry.path):
        return (entry.path,)
    folder = os.path.dirname(entry.path)
    return (*(os.path.join(folder, name) for name in entry.files or (entry.path,)), *entry.mmproj)


def remove(cache: Path, entry: Entry) -> int:
    """Remove a model's files from the cache, and the folders that are empty then; return the bytes.

    With the last model of a repository goes what had been begun there. Of what was linked only the link goes.
    Raises UsageError for one that is not in the cache, or whose repository is being pulled from; LoadFailed
    when the system refuses.
    """
    root = os.path.realpath(cache)
    paths = paths_of(entry)
    for path in paths:
        # The folder it really lies in: a link to a folder elsewhere is no way out.
        if not os.path.realpath(os.path.dirname(path)).startswith(f"{root}{os.sep}"):
            raise UsageError(f"{path} is not in modeld's cache {cache}: what lies elsewhere is its owner's")
    repo = record.repository(cache, entry.path)
    with plainly(cache, entry.size), _undisturbed(cache, repo):
        freed = sum(_taken(path) for path in paths)
        _clear(cache, os.path.dirname(paths[0]))
        if repo and not record.present(cache, repo):
            freed += _forget(cache, repo)
        return freed


def remove_begun(cache: Path, repo: str) -> int | None:
    """Remove what has arrived so far of a repository of which no model is whole; return the bytes.

    None when there is nothing of it. Raises as `remove` does.
    """
    if not _REPOSITORY.fullmatch(repo) or not record.home(cache, repo).is_dir():
        return None
    with plainly(cache, 0), _undisturbed(cache, repo):
        return None if record.present(cache, repo) else _forget(cache, repo)


@contextmanager
def _undisturbed(cache: Path, repo: str) -> Iterator[None]:
    """Keep pulls of a repository away. Raises UsageError when there is one."""
    if not repo:
        yield
        return
    with alone(record.home(cache, repo)) as free:
        if not free:
            raise UsageError(
                f"{repo} is being pulled at this moment; wait for it, or stop it with `modeld ctl remove` "
                "and the model's name"
            )
        yield
    _clear(cache, str(record.home(cache, repo).parent))


def _forget(cache: Path, repo: str) -> int:
    """Remove the parts and the records of a repository, and what is then empty."""
    home = record.home(cache, repo)
    freed = 0
    for folder in record.aside(cache, repo):
        freed += sum(path.stat().st_size for path in folder.glob("*") if path.parent.name == record.PARTS)
        shutil.rmtree(folder, ignore_errors=True)
    if home.is_dir():
        _clear(cache, str(home))
    return freed


def _taken(path: str) -> int:
    """Remove a file or folder; return the bytes that are free then."""
    if os.path.isdir(path) and not os.path.islink(path):
        inside = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        freed = sum(_freed(each) for each in inside)
        shutil.rmtree(path)
        return freed
    freed = _freed(path)
    os.unlink(path)
    return freed


def _freed(path: str) -> int:
    """Return the bytes that a file's going frees: none for a link, or for one that has other names."""
    status = os.lstat(path)
    return status.st_size if status.st_nlink == 1 and not os.path.islink(path) else 0


def _clear(cache: Path, folder: str) -> None:
    """Remove a folder, and those above it, as far as they are empty."""
    kept = {os.path.abspath(cache), *(os.path.join(os.path.abspath(cache), name) for name in ROOMS)}
    folder = os.path.abspath(folder)
    while folder not in kept and os.path.isdir(folder) and not os.listdir(folder):
        os.rmdir(folder)
        folder = os.path.dirname(folder)

"""Models brought into the cache's own folder."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from modeld.errors import LoadFailed, UsageError
from modeld.library.entry import Entry
from modeld.library.walk import SHARD

Way: TypeAlias = Literal["copy", "link"]
Done: TypeAlias = Literal["copied", "linked", "pointed", "there"]
"""linked: the files have a second name, and stay when the first one goes. pointed: links to the files where
they are, on another disk, say. there: it had been brought before.
"""

PIECE = 8 * 1024**2
"""Bytes copied between two reports."""

STALE_S = 24 * 3600.0
"""What an import that was killed has left is removed when it is older than this."""

_INCOMING = ".incoming-"


@dataclass(frozen=True)
class Brought:
    """A model in the cache's folder; `path` is what a configuration names."""

    path: Path
    size: int
    done: Done


def shelf(cache: Path) -> Path:
    """Return the folder that imported models are in."""
    return cache / "models"


def label(entry: Entry) -> str:
    """Return what a model's folder is called: after its first file, or after the folder it is."""
    name = os.path.basename(entry.path)
    shard = SHARD.fullmatch(name)
    if shard:
        return shard[1]
    return name if os.path.isdir(entry.path) else os.path.splitext(name)[0]


def bring(cache: Path, entry: Entry, way: Way, hear: Callable[[int], None] = lambda size: None) -> Brought:
    """Have a model in the cache's folder, all of its files or none; `hear` gets the bytes as they are copied.

    Blocks for as long as copying takes. Raises UsageError for one that is broken, and for another model under
    the same name; LoadFailed, in a sentence, when the disk is full or will not have it.
    """
    if entry.error:
        raise UsageError(f"not imported: {entry.error}")
    files = dict(_files(entry))
    inner = os.path.basename(entry.path) if not os.path.isdir(entry.path) else ""
    home = shelf(cache) / label(entry)
    size = sum(path.stat().st_size for path in files.values())
    here = Brought(home / inner, size, "there")
    instead = False
    if _same(home, files):
        instead = way == "copy" and any((home / name).samefile(path) for name, path in files.items())
        if not instead:
            return here
    elif os.path.lexists(home):
        raise UsageError(
            f"there is another model {home.name!r} in {home.parent}; remove it with "
            f"`modeld ctl rm {home.name}`, or give the file another name"
        )
    with plainly(home.parent, size):
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _tidy(home.parent)
        if way == "copy" and (free := shutil.disk_usage(home.parent).free) < size:
            raise OSError(errno.ENOSPC, f"{free / 1000**2:.1f} MB are free")
        incoming, gone = (Path(tempfile.mkdtemp(prefix=_INCOMING, dir=home.parent)) for _ in range(2))
        try:
            done = _put(files, incoming, way, hear)
            try:
                if instead:  # the copy that is asked for takes the place of a link
                    os.rename(home, gone)
                os.rename(incoming, home)
            except OSError:
                if _same(home, files):  # another import was quicker
                    return here
                raise
        finally:
            for left in (incoming, gone):
                shutil.rmtree(left, ignore_errors=True)
    return Brought(home / inner, size, done)


def _files(entry: Entry) -> Iterator[tuple[str, Path]]:
    """Yield the files of a model by their names below its folder, links in their names resolved."""
    if os.path.isdir(entry.path):
        for folder, folders, names in os.walk(entry.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                if not name.startswith(".") and path.is_file():
                    yield str(path.relative_to(entry.path)), path.resolve()
        return
    folder = os.path.dirname(entry.path)
    for name in entry.files:
        yield name, Path(folder, name).resolve()
    for projector in entry.mmproj:
        yield os.path.basename(projector), Path(projector).resolve()


def _same(home: Path, files: dict[str, Path]) -> bool:
    try:
        there = {
            str(path.relative_to(home)): path.stat().st_size for path in home.rglob("*") if path.is_file()
        }
    except OSError:
        return False
    return there == {name: path.stat().st_size for name, path in files.items()}


def _put(files: dict[str, Path], folder: Path, way: Way, hear: Callable[[int], None]) -> Done:
    done: Done = "copied" if way == "copy" else "linked"
    for name, source in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if way == "copy":
            _copy(source, target, hear)
        elif done == "pointed" or not _linked(source, target):
            os.symlink(source, target)
            done = "pointed"
    return done


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError as error:
        # Another disk, one without such links, or another's file.
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _copy(source: Path, target: Path, hear: Callable[[int], None]) -> None:
    with source.open("rb") as old, target.open("xb") as new:
        while piece := old.read(PIECE):
            new.write(piece)
            hear(len(piece))
        new.flush()
        os.fsync(new.fileno())


def _tidy(folder: Path) -> None:
    for left in folder.glob(f"{_INCOMING}*"):
        if time.time() - left.stat().st_mtime > STALE_S:
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def plainly(folder: Path, size: int) -> Iterator[None]:
    """Turn errors of the system into LoadFailed, in words; of a full disk with the model's bytes."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = f": {error.strerror}" if "free" in (error.strerror or "") else ""
            raise LoadFailed(
                f"the disk of {folder} is full{free}, the model takes {size / 1000**2:.1f} MB; make room, "
                "import it with --link, or choose another cache_dir"
            ) from None
        where = error.filename or folder
        raise LoadFailed(f"{where} cannot be used: {error.strerror or error}") from None

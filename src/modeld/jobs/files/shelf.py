"""The folder in which files lie, each under its id: private, whole, and only what the store knows of.

A batch works on a second name of its input, so that deleting the file takes nothing from it. All methods
touch the disk, and those that take long say so: they are for a thread. All raise OSError.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from modeld.errors import StoreFailed
from modeld.ids import new_id

T = TypeVar("T")
P = ParamSpec("P")

PART = "part_"
"""How the name of a file begins that is not whole yet."""


class Part:
    """A file on its way in. `size` and `sha256` are of what has been written so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / new_id(PART)
        self._file = os.fdopen(
            os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        )
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """The checksum, in hex."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Add to it; takes long."""
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def keep(self, id: str) -> None:
        """Make it the file of this id: whole, and safe when this returns. Takes long."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._path, self._folder / id)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def drop(self) -> None:
        """Forget it, unless it was kept; raises nothing."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


class Shelf:
    """The folder; made when it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, id: str) -> Path:
        """Return where a file lies. The id is one of the store's, never a caller's word."""
        return self._folder / id

    def begin(self) -> Part:
        """Begin a file."""
        return Part(self._folder)

    def lend(self, id: str, batch: str) -> None:
        """Give a file a second name for a batch. Takes long where the disk has no hard links."""
        lent = self.lent(batch)
        try:
            os.link(self.path(id), lent)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            part = self._folder / new_id(PART)
            try:
                shutil.copyfile(self.path(id), part)
                os.chmod(part, 0o600)
                os.rename(part, lent)
            finally:
                part.unlink(missing_ok=True)

    def lent(self, batch: str) -> Path:
        """Return where a batch's input lies."""
        return self._folder / batch

    def read(self, batch: str, offset: int, length: int) -> bytes:
        """Return a piece of a batch's input."""
        with self.lent(batch).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset)

    def remove(self, name: str) -> None:
        """Remove what lies under an id of a file or a batch, if it is there."""
        self.path(name).unlink(missing_ok=True)

    def tidy(self, known: set[str]) -> int:
        """Remove all that is not known, and say how much that was."""
        strange = [entry for entry in self._folder.iterdir() if entry.name not in known]
        for entry in strange:
            with suppress(OSError):
                entry.unlink()
        return len(strange)


async def unbroken(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Do something on a thread, and see it through: cancelled, it is over before that is raised.

    So nothing appears on the disk behind the back of who clears up.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **options))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at, for nobody waits for it
        raise


def failed(error: OSError) -> StoreFailed:
    """Return what a caller is told of a disk that does not take a file."""
    why = "the disk is full; make room" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return StoreFailed(f"the file cannot be stored: {why}")

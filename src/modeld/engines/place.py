"""Where the environments lie, and what is told about one.

    <state>/engines/NAME/lock            held by whoever installs or removes
    <state>/engines/NAME/current         symbolic link to the environment that counts
    <state>/engines/NAME/<id>/           a virtual environment, made here and never moved
    <state>/engines/NAME/<id>/modeld-engine.json    written last, and held by the workers that run there

What `current` does not name is not installed, whatever else lies there: a new environment counts from one
moment to the next, when the link is replaced. Workers run under the environment's own path, so that a
reinstallation changes nothing for them; the old one goes when the last of them has gone.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from modeld.errors import StartupError, UsageError

MANIFEST = "modeld-engine.json"
"""In an environment; workers hold a shared lock on it, see `worker.elsewhere`."""

SHORT_S = 2.0
"""Seconds to wait for users of an environment that only look what is there."""

_CURRENT = "current"
_LOCK = "lock"
_POLL_S = 0.05


class Installed(msgspec.Struct, frozen=True):
    """An environment that counts. `packages` are the pins it was made from, `size` is bytes on the disk,
    `at` UTC seconds since the epoch, `python` the version of its interpreter.
    """

    name: str
    variant: str
    version: str
    packages: tuple[str, ...]
    python: str
    size: int
    at: float


class Place:
    """The environments below one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.root = state_dir / "engines"

    def python(self, name: str) -> str | None:
        """Return the path of an installed engine's interpreter, None without one. Costs microseconds."""
        home = self.home(name)
        return None if home is None else str(home / "bin" / "python")

    def home(self, name: str) -> Path | None:
        """Return the folder of the environment that counts."""
        try:
            target = os.readlink(self.root / name / _CURRENT)
        except OSError:
            return None
        return self.root / name / os.path.basename(target)

    def installed(self, name: str) -> Installed | None:
        """Return what is told about the environment that counts; None when there is none, or nothing."""
        home = self.home(name)
        return None if home is None else read(home)

    @contextmanager
    def locked(self, name: str, doing: str) -> Iterator[None]:
        """Hold an engine for this process while it is installed or removed, and clear up what others left.

        Raises UsageError when another process holds it; StartupError when the folder cannot be written.
        """
        folder = self.root / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(
                f"cannot write {folder}: {error.strerror}; fix that, or choose another --state-dir"
            ) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, _, other = os.pread(handle, 64, 0).decode("utf-8", "replace").strip().partition(" ")
                raise UsageError(
                    f"{name} is being {other or 'worked on'} by another modeld (pid {pid or 'unknown'}); "
                    "wait for it, or stop it"
                ) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {doing}\n".encode(), 0)
            self.clear(name)
            yield
        finally:
            os.close(handle)

    def fresh(self, name: str) -> Path:
        """Return a folder for a new environment; it does not exist yet. Under `locked` only."""
        return self.root / name / secrets.token_hex(4)

    def accept(self, name: str, home: Path, about: Installed) -> None:
        """Make an environment the one that counts, in one moment. Under `locked` only."""
        write_durably(home / MANIFEST, msgspec.json.encode(about))
        os.sync()  # ten thousand files; the link must not be on the disk before them
        link = self.root / name / f".{_CURRENT}"
        with suppress(FileNotFoundError):
            link.unlink()
        os.symlink(home.name, link)
        os.replace(link, self.root / name / _CURRENT)
        _sync(self.root / name)

    def forget(self, name: str) -> None:
        """Let no environment count. Under `locked` only."""
        with suppress(FileNotFoundError):
            (self.root / name / _CURRENT).unlink()
        _sync(self.root / name)

    def clear(self, name: str) -> list[Path]:
        """Remove what does not count and nobody uses; return the folders that are still in use."""
        home, used = self.home(name), []
        for found in sorted((self.root / name).iterdir()):
            if found.name in (_LOCK, _CURRENT) or found == home:
                continue
            if found.is_symlink() or not found.is_dir():
                found.unlink()
            elif in_use(found):
                used.append(found)
            else:
                remove_tree(found)
        return used


def read(home: Path) -> Installed | None:
    """Return what is told about an environment, None when that cannot be read."""
    try:
        return msgspec.json.decode((home / MANIFEST).read_bytes(), type=Installed)
    except (OSError, msgspec.MsgspecError):
        return None


def in_use(home: Path, patience: float = 0.0) -> bool:
    """Say whether a worker runs in an environment; `patience` is seconds to wait for it to end."""
    try:
        handle = os.open(home / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    end = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                if time.monotonic() >= end:
                    return True
                time.sleep(_POLL_S)
    finally:
        os.close(handle)


def remove_tree(folder: Path) -> None:
    """Remove a folder, the manifest first: what is half gone must not look whole."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def size_of(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def write_durably(path: Path, data: bytes) -> None:
    """Write a file that is on the disk when this returns."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

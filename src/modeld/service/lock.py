"""One daemon per state directory."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modeld.errors import StartupError

LOCK_NAME = "modeld.lock"
"""Stays where it is when the daemon ends: removing it would let two daemons hold two files of one name."""


@contextmanager
def instance_lock(state_dir: Path) -> Iterator[Path]:
    """Hold the state directory for this process; yields the lock file's path.

    Makes the directory (0700) when it is missing. The lock is the kernel's (flock), so it ends with the
    process however that dies, and is not inherited by workers. Raises StartupError naming the pid that holds
    it, or the path, the uid and the permission that is missing.
    """
    _make(state_dir)
    path = state_dir / LOCK_NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise StartupError(
                f"the state directory {state_dir} is in use by another modeld (pid {pid or 'unknown'}); "
                "stop that one, or give this one a --state-dir of its own"
            ) from error
        except OSError as error:
            raise StartupError(
                f"cannot lock {path}: {error.strerror or error}; put the state directory on a local disk"
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield path
    finally:
        os.close(handle)


def _make(state_dir: Path) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StartupError(
            f"the state directory {state_dir} is not a directory; move the file away"
        ) from error
    except OSError as error:
        raise _refusal(state_dir, error) from error
    if not os.access(state_dir, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _refusal(state_dir / LOCK_NAME, OSError(_why_not(state_dir), ""))


def _why_not(directory: Path) -> int:
    """Return EROFS or EACCES: access(2) says only that writing is refused, not why."""
    try:
        read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    except OSError:
        read_only = 0
    return errno.EROFS if read_only else errno.EACCES


def _refusal(path: Path, error: OSError) -> StartupError:
    """Say why `path`, the state directory or a file in it, cannot be made or written."""
    if error.errno == errno.EROFS:
        why = f"{path.parent} is on a read-only file system"
    elif error.errno in (errno.EACCES, errno.EPERM):
        exists = os.access(path, os.F_OK)
        where, missing = (path, "write") if exists else (_nearest(path.parent), "write and search")
        why = f"uid {os.geteuid()} lacks {missing} permission on {where}"
    elif error.errno == errno.ENOTDIR:
        why = "a part of the path is not a directory"
    else:
        why = f"{error.strerror or error}"
    return StartupError(f"cannot write {path}: {why}; fix that, or choose another --state-dir")


def _nearest(directory: Path) -> Path:
    """Return the closest parent that is there, which is the one that refuses."""
    while not os.access(directory, os.F_OK) and directory != directory.parent:
        directory = directory.parent
    return directory

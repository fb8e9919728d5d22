"""Locks between processes, one for each thing that is fetched: who fetches it, or takes it away, is alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_S = 0.05
"""Seconds between two tries to get a lock."""


@contextmanager
def locked(dest: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Hold the lock beside `dest`; gives a fresh private directory there, which is removed in the end.

    Waits for another holder, and calls `waiting` again and again meanwhile. Whatever a killed one left behind
    is removed first.
    """
    make_private(dest.parent)
    lock, partial = _lock(dest), dest.parent / f".{dest.name}.partial"
    while (held := _try(lock)) is None:
        waiting()
        time.sleep(POLL_S)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(held)


@contextmanager
def alone(dest: Path) -> Iterator[bool]:
    """Hold the lock beside `dest` if nobody else does; gives whether that is so. Waits for nobody."""
    if not dest.parent.is_dir():
        yield True
        return
    lock = _lock(dest)
    held = _try(lock)
    try:
        yield held is not None
    finally:
        if held is not None:
            lock.unlink(missing_ok=True)
            os.close(held)


def make_private(folder: Path) -> None:
    """Make a folder, and those above it, for this user only."""
    missing = [step for step in (folder, *folder.parents) if not step.exists()]
    for step in reversed(missing):
        step.mkdir(mode=0o700, exist_ok=True)


def _lock(dest: Path) -> Path:
    return dest.parent / f".{dest.name}.lock"


def _try(lock: Path) -> int | None:
    """Return the lock's open file, or None when somebody else holds it."""
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    kept = False
    try:
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us removes the file: a lock on a removed file protects nothing.
            kept = os.path.samestat(os.fstat(held), os.stat(lock))
    finally:
        if not kept:
            os.close(held)
    return held if kept else None

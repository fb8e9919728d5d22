"""Watching the daemon's own file: it is read when it has changed and has come to rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

WATCH_S = 1.0
"""Seconds between two looks at a watched file; it must be the same at two looks before it is read."""


class Mark(NamedTuple):
    """What tells one version of a file from another."""

    modified_ns: int
    size: int
    inode: int


def mark_of(file: Path) -> Mark | None:
    """Return a file's mark; None for one that is not there, being replaced at this moment, say."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return Mark(stat.st_mtime_ns, stat.st_size, stat.st_ino)


class Rest:
    """Says of each look at a file whether it is to be read now: it differs from what was read last, and not
    from the look before.
    """

    def __init__(self, read: Mark | None) -> None:
        """`read` is the mark of the version that was read last."""
        self._read = self._seen = read

    def look(self, mark: Mark | None) -> bool:
        """Take a look, and say so."""
        due = mark is not None and mark == self._seen and mark != self._read
        self._seen = mark
        if due:
            self._read = mark
        return due


async def watch(file: Path, rest: Rest, read: Callable[[], Awaitable[None]]) -> None:
    """Look every WATCH_S seconds, and call `read` whenever `rest` says so; does not end by itself."""
    while True:
        await asyncio.sleep(WATCH_S)
        if rest.look(mark_of(file)):
            await read()

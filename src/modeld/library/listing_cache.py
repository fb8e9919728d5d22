"""What was read of model files, kept between runs in a file of the cache directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from modeld import __version__
from modeld.library.entry import Entry
from modeld.library.keep import write_whole
from modeld.library.walk import Found

FORMAT = f"1 {__version__}"
"""What is kept is good for one version: the next may know more of the same file. The number is raised when
a change of what is kept needs it before that.
"""

NAME = "models.msgpack"

MOST_ROWS = 20_000
MOST_BYTES = 256 * 1024**2

Signature: TypeAlias = tuple[tuple[str, int, int], ...]

_log = logging.getLogger("modeld.library")


class Row(msgspec.Struct, frozen=True, array_like=True):
    """What was read of one model, and the signature of its files at that time."""

    signature: Signature
    entry: Entry


class _Kept(msgspec.Struct, array_like=True):
    format: str
    rows: dict[str, Row]


_decoder = msgspec.msgpack.Decoder(_Kept)


class Cache:
    """Rows by path. A file that is missing, damaged, foreign or older is an empty cache, and no error."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` is the cache directory; None keeps everything in memory."""
        self._file = folder / NAME if folder else None
        self._rows: dict[str, Row] = {}
        self._stamp: tuple[int, int] | None = None

    def load(self) -> None:
        """Read the file if another process has changed it since. Raises nothing."""
        if self._file is None:
            return
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp or status.st_size > MOST_BYTES:
                return
            kept = _decoder.decode(self._file.read_bytes())
            if kept.format == FORMAT:
                self._rows = {**self._rows, **kept.rows}
            self._stamp = stamp
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.debug("the list of models is made afresh", extra={"reason": str(error)})

    def find(self, found: Found) -> Entry | None:
        """Return what was read of it, if its files are as they were."""
        row = self._rows.get(found.path)
        return row.entry if row is not None and row.signature == found.signature else None

    def keep(self, read: Mapping[str, Row], gone: Iterable[str]) -> None:
        """Add what was read, drop what is gone, and write the file as one step. Raises nothing."""
        for path in gone:
            self._rows.pop(path, None)
        self._rows.update(read)
        while len(self._rows) > MOST_ROWS:
            del self._rows[next(iter(self._rows))]
        if self._file is None:
            return
        try:
            write_whole(self._file, msgspec.msgpack.encode(_Kept(FORMAT, self._rows)))
            status = self._file.stat()
            self._stamp = (status.st_mtime_ns, status.st_size)
        except (OSError, OverflowError) as error:
            _log.debug("the list of models cannot be kept", extra={"reason": str(error)})

    def below(self, root: str) -> list[str]:
        """Return the paths of all rows in a tree."""
        start = root.rstrip(os.sep) + os.sep
        return [path for path in self._rows if path == root or path.startswith(start)]

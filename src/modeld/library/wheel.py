"""Reading one file out of a wheel, checked against the wheel's own RECORD and against a known SHA-256."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PIECE = 1024**2
_LARGEST_RECORD = 16 * 1024**2


class Refused(Exception):
    """The file cannot be had; the text is for people. `permanent`: trying again is pointless."""

    def __init__(self, message: str, *, permanent: bool = True) -> None:
        super().__init__(message)
        self.permanent = permanent


@contextmanager
def opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open a wheel. Raises Refused for anything that cannot be read as one, also later while it is open."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise Refused(f"{file.name} is not a sound wheel: {error}", permanent=False) from None


def find(archive: zipfile.ZipFile, member: str, name: str) -> zipfile.ZipInfo:
    """Return the entry of `member`. Raises Refused, naming what the wheel `name` holds instead."""
    try:
        info = archive.getinfo(member)
    except KeyError:
        suffix = os.path.splitext(member)[1]
        files = [entry for entry in archive.infolist() if not entry.is_dir()]
        alike = [entry for entry in files if suffix and entry.filename.endswith(suffix)] or files
        largest = sorted(alike, key=lambda entry: -entry.file_size)[:5]
        held = ", ".join(entry.filename[:200] for entry in largest) or "nothing"
        raise Refused(f"{name} does not hold {member}; it holds {held}") from None
    if info.is_dir() or (info.external_attr >> 16) & 0o170000 == 0o120000:
        raise Refused(f"{member} in {name} is not a plain file")
    return info


def extract(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, sha256: str, to: Path, progress: Callable[[int], None]
) -> None:
    """Write the entry to the new file `to`, flushed to the disk. Raises Refused on a wrong hash.

    `sha256` is lower-case hex, or empty when none is known; `progress` gets the bytes written so far.
    """
    algorithm, recorded = _recorded(archive, info.filename)
    by_record, by_pin = hashlib.new(algorithm), hashlib.sha256()
    written = 0
    with archive.open(info) as source, open(to, "xb") as target:
        while piece := source.read(_PIECE):
            by_record.update(piece)
            by_pin.update(piece)
            target.write(piece)
            written += len(piece)
            progress(written)
        target.flush()
        os.fsync(target.fileno())
    if by_record.digest() != recorded:
        raise Refused(
            f"{info.filename} is damaged: its {algorithm} is {by_record.hexdigest()}, "
            f"the wheel's RECORD says {recorded.hex()}",
            permanent=False,
        )
    if sha256 and by_pin.hexdigest() != sha256:
        raise Refused(
            f"{info.filename} is not the file expected: its sha256 is {by_pin.hexdigest()}, expected {sha256}"
        )


def _recorded(archive: zipfile.ZipFile, member: str) -> tuple[str, bytes]:
    name = Path(archive.filename or "the file").name
    records = [
        entry for entry in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", entry.filename)
    ]
    if len(records) != 1 or records[0].file_size > _LARGEST_RECORD:
        raise Refused(f"{name} is not a sound wheel: it has no RECORD of its files' hashes")
    text = archive.read(records[0]).decode("utf-8", "replace")
    for row in csv.reader(io.StringIO(text)):
        if len(row) >= 2 and row[0] == member:
            algorithm, _, digest = row[1].partition("=")
            if algorithm not in ("sha256", "sha384", "sha512"):
                break  # what the wheel format allows; weaker ones prove nothing
            try:
                return algorithm, base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
            except ValueError:
                break
    raise Refused(f"{name} is not a sound wheel: its RECORD has no usable hash of {member}")

"""One file: from where the last try ended to whole and checked, or an error that says why not."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from modeld.library.fetch import flush, megabytes
from modeld.library.wheel import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

T = TypeVar("T")

UNREACHED_TRIES = 3
"""Tries when no connection ever came about: whoever waits for a model is told so within seconds."""

LONGEST_PAUSE = 30.0
"""Seconds between two tries at most, unless the hub asks for more; then up to ten times that."""

_PIECE = 1 << 20


class Passing(Exception):
    """The hub did not do what it should, and may do it next time.

    `wait`: seconds that it asks for; `unreached`: there was no connection with it.
    """

    def __init__(self, why: str, wait: float = 0.0, *, unreached: bool = False) -> None:
        super().__init__(why)
        self.wait = wait
        self.unreached = unreached


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient to be: seconds without a byte, tries in a row that bring none, seconds after the first."""

    stall: float = 60.0
    tries: int = 10
    pause: float = 1.0


Open: TypeAlias = "Callable[[int], AbstractContextManager[tuple[int, Iterator[bytes]]]]"
"""Opens the file from a byte on; gives where the bytes do begin (there, or 0), and them. Raises Passing."""


class Tell(Protocol):
    """Takes the stage, the bytes of this file that are there, and for a failed try its reason."""

    def __call__(self, stage: str, done: int, why: str | None = None) -> None:
        """Hear of it."""


class Patience:
    """Counts tries without progress, and waits between them."""

    def __init__(self, limits: Limits, what: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._limits = limits
        self._what = what
        self._sleep = sleep
        self._failed = 0
        self._reached = False

    def progress(self) -> None:
        """Bytes have come: the count begins anew."""
        self._failed = 0
        self._reached = True

    def failed(self, error: Passing) -> None:
        """Wait for the next try. Raises Refused, to be tried again later, when there were enough."""
        self._failed += 1
        self._reached = self._reached or not error.unreached
        most = self._limits.tries if self._reached else min(self._limits.tries, UNREACHED_TRIES)
        if self._failed >= most:
            raise Refused(
                f"{self._what} cannot be pulled now: {error} ({self._failed} tries); check the network, or "
                "set HF_ENDPOINT to a mirror; what has arrived is kept, and the next pull goes on from there",
                permanent=False,
            )
        pause = min(self._limits.pause * 2 ** (self._failed - 1), LONGEST_PAUSE) * random.uniform(0.75, 1.25)
        self._sleep(max(pause, min(error.wait, 10 * LONGEST_PAUSE)))

    def over(self, ask: Callable[[], T], tell: Callable[[str], None]) -> T:
        """Return what `ask` returns, asked as often as need be; `tell` gets why it was not the last time."""
        while True:
            try:
                return ask()
            except Passing as error:
                tell(str(error))
                self.failed(error)


def get(part: Path, dest: Path, size: int, etag: str, patience: Patience, open_at: Open, tell: Tell) -> None:
    """Make `dest` of `part`, which holds what came before, and of what is still missing.

    `etag` is the sha256 in hex (64 digits), or git's sha1 of the blob (40). `dest` appears whole and checked.
    A part with a wrong checksum is thrown away, and got anew once. Raises Refused or OSError.
    """
    damaged = None
    while True:
        digest = _download(part, size, etag, patience, open_at, tell)
        if digest == etag:
            break
        part.unlink()
        if damaged:
            kind = "sha256" if len(etag) == 64 else "git checksum"
            raise Refused(
                f"{dest.name} arrives damaged: its {kind} is {digest}, expected {etag}, twice over; nothing "
                "of it was kept; try again later, or another mirror (HF_ENDPOINT)"
            )
        damaged = digest
        tell("retrying", 0, f"{dest.name} arrived damaged, all of it is got again")
    flush(part)
    os.replace(part, dest)
    flush(dest.parent)


def _download(part: Path, size: int, etag: str, patience: Patience, open_at: Open, tell: Tell) -> str:
    """Fill the part up to its size; returns the checksum of all of it."""
    # Without a buffer: what has come is in the file when this program is killed.
    with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0) as file:
        hasher, have = _begun(size, etag), 0
        if os.fstat(file.fileno()).st_size > size:
            file.truncate(0)
        while piece := file.read(_PIECE):
            hasher.update(piece)
            have += len(piece)
            tell("checking", have)
        most = have
        while have < size:
            try:
                with open_at(have) as (begins, pieces):
                    if begins != have:
                        file.seek(0)
                        file.truncate()
                        hasher, have = _begun(size, etag), 0
                    for piece in pieces:
                        if have + len(piece) > size:
                            raise Passing(f"more than the {size} bytes of {part.name[:12]} came")
                        _write(file, piece, part, size - have)
                        hasher.update(piece)
                        have += len(piece)
                        if have > most:  # coming to the same place for ever is no progress
                            most = have
                            patience.progress()
                        tell("downloading", have)
                if have < size:
                    raise Passing(f"the connection ended after {have} of {size} bytes")
            except Passing as error:
                tell("retrying", have, str(error))
                patience.failed(error)
    return hasher.hexdigest()


def digest_of(path: Path, etag: str, tell: Callable[[int], None]) -> str:
    """Return a file's checksum, of the kind that `etag` is; `tell` gets the bytes read. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        hasher, have = _begun(os.fstat(file.fileno()).st_size, etag), 0
        while piece := file.read(_PIECE):
            hasher.update(piece)
            have += len(piece)
            tell(have)
    return hasher.hexdigest()


def _begun(size: int, etag: str) -> hashlib._Hash:
    if len(etag) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _write(file: io.FileIO, piece: bytes, part: Path, left: int) -> None:
    try:
        rest = memoryview(piece)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Refused(
            f"the disk of {part.parent} is full: {megabytes(left)} are still to come; make room or set "
            "cache_dir to another disk; what has arrived is kept, and the next pull goes on from there"
        ) from None

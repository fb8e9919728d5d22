"""Files that callers fetch by a link: random names, an end, an owner, and a bound on memory. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

from modeld.errors import TooLarge
from modeld.ids import Identity

LIFETIME_S = 3600.0
"""Seconds for which a link leads somewhere: as long as OpenAI's."""

MAX_FILES = 256
MAX_BYTES = 128 * 1024 * 1024
"""What is kept at most; the oldest files go first, also before their time."""


class _File(NamedTuple):
    owner: Identity
    data: bytes
    expires: float


class Links:
    """Files in memory by link. `monotonic` gives the time in seconds."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        lifetime: float = LIFETIME_S,
        max_files: int = MAX_FILES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._monotonic = monotonic
        self._lifetime, self._max_files, self._max_bytes = lifetime, max_files, max_bytes
        self._files: dict[str, _File] = {}  # oldest first: all live equally long
        self._bytes = 0

    def add(self, owner: Identity, files: Sequence[bytes]) -> list[str]:
        """Keep the files of one answer, all of them or none; return a link's name for each, in order.

        Raises TooLarge when they alone are over the bounds.
        """
        size = sum(len(data) for data in files)
        if size > self._max_bytes or len(files) > self._max_files:
            raise TooLarge(
                f"{len(files)} pictures of {size} bytes in all are too much to be kept for links "
                f"({self._max_bytes} bytes); ask for response_format b64_json",
                code="pictures_too_large",
                param="response_format",
            )
        self.purge()
        while self._bytes + size > self._max_bytes or len(self._files) + len(files) > self._max_files:
            self._drop(next(iter(self._files)))
        expires = self._monotonic() + self._lifetime
        names = [secrets.token_urlsafe(24) for _ in files]
        for name, data in zip(names, files, strict=True):
            self._files[name] = _File(owner, data, expires)
        self._bytes += size
        return names

    def get(self, owner: Identity, name: str) -> bytes | None:
        """Return a file, None when there is none of that name, its time is over, or it is somebody else's."""
        file = self._files.get(name)
        if file is None or file.owner != owner or file.expires <= self._monotonic():
            return None
        return file.data

    def purge(self) -> float | None:
        """Let go of what has expired; return in how many seconds there is more to do, None when never."""
        now = self._monotonic()
        while self._files:
            name, file = next(iter(self._files.items()))
            if file.expires > now:
                return file.expires - now
            self._drop(name)
        return None

    @property
    def held(self) -> tuple[int, int]:
        """Files and bytes that are kept."""
        return len(self._files), self._bytes

    def _drop(self, name: str) -> None:
        self._bytes -= len(self._files.pop(name).data)

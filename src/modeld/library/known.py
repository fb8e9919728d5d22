"""What is known of the models that a configuration names, from their files, without fetching any."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from modeld.library.entry import Entry
from modeld.library.listing import Listing
from modeld.library.resolve import Resolver

Stamp: TypeAlias = tuple[str, int, int, int, int]
"""Path, size (0: a folder), time of change and inode of a file, and when its folder changed: while they stay
the same, so does what it says, and a projector beside it is the one there was.
"""

MOST_KEPT = 1000
"""Models that are remembered."""


class KnownFiles:
    """Reads each model's files once, and again when they have changed."""

    def __init__(self, resolver: Resolver, listing: Listing) -> None:
        self._resolver = resolver
        self._listing = listing
        self._known: dict[str, tuple[Stamp, Entry]] = {}
        self._turn = asyncio.Lock()

    async def of(self, references: Iterable[str]) -> dict[str, Entry]:
        """Return what is known, by reference; one whose files are not here is left out.

        A broken model is an entry with an error. Raises nothing for what is on the disk. The event loop waits
        for no file, and a model that has been read costs a look at its size.
        """
        wanted = list(dict.fromkeys(references))
        if not wanted:
            return {}
        async with self._turn:
            stamps = await asyncio.to_thread(self._stamps, wanted)
            return {ref: await self._entry(ref, stamp) for ref, stamp in stamps.items()}

    async def _entry(self, ref: str, stamp: Stamp) -> Entry:
        kept = self._known.pop(ref, None)
        entry = kept[1] if kept and kept[0] == stamp else await self._listing.look(Path(stamp[0]))
        # An error may pass, and what is below a folder changes without a sign on it.
        if not entry.error and stamp[1]:
            while len(self._known) >= MOST_KEPT:
                del self._known[next(iter(self._known))]
            self._known[ref] = stamp, entry
        return entry

    def _stamps(self, references: Iterable[str]) -> dict[str, Stamp]:
        found: dict[str, Stamp] = {}
        for ref in references:
            path = self._resolver.located(ref)
            try:
                if path is not None:
                    file, folder = path.stat(), path.parent.stat()
                    size = 0 if stat.S_ISDIR(file.st_mode) else file.st_size
                    found[ref] = (str(path), size, file.st_mtime_ns, file.st_ino, folder.st_mtime_ns)
            except OSError:  # it has just gone
                continue
        return found

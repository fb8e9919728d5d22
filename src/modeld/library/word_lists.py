"""Steps over the lists of words in a file's header, which are most of it: vocabularies and their merges.

To go from word to word takes Python a fifth of a microsecond for each, and there are a hundred thousand and
more in a file. So it is tried to leap to the key behind a list: to where the list ended in a file read
before, or to where such a key's name is found. That is no proof. What follows must make sense as keys and
tensors to the end of the header, or the file is read again without leaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from modeld.library.window import U64, Source, Unknown, Window, damaged

MOST_WALKED = 1 << 18
"""Words of one file that are gone through one by one, which takes a fifth of a microsecond for each. Real
lists are longer, but have a known key behind them, and are stepped over as a whole.
"""

_AHEAD = 1 << 24
"""Bytes that are asked for at once for a list of words, at most."""

_LONG = 2048
"""Words in a list that is worth stepping over as a whole."""

_BEHIND = (b"tokenizer.", b"general.", b"quantize.")
"""How the keys begin that converters and quantisers put behind lists of words."""

_KEY = re.compile(rb"([\x0a-\x80])\0{7}((?:tokenizer|general|quantize)\.[a-z0-9_.]+)[\0-\x0c]\0{3}")
"""Such a key: the length of its name, the name, and the type of its value."""

_LONGEST_KEY = 8 + 128 + 4

_BEGINNING = 64
"""Bytes that lists are told apart by."""

_LENGTH, _TAIL = bytes(7), 4096
"""The upper bytes of a word's length, and how many bytes before the end of a list they are looked for."""

_MOST_LEAPS = 8
"""Places that are tried in the search for the end of one list."""


class Workspace:
    """What is kept from one file to the next: the buffer, and the sizes of lists of words.

    Models that come in several quantisations, and finetunes, share their vocabulary byte for byte: where the
    last one ended the next may end, too.
    """

    MOST = 4096
    ALIKE = 4
    """Sizes that are kept of lists of one length and beginning."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._known: dict[tuple[int, bytes], list[int]] = {}

    def like(self, count: int, beginning: bytes) -> list[int]:
        """Return the sizes in bytes of the lists of `count` words that begin so."""
        return self._known.get((count, beginning), [])

    def add(self, count: int, beginning: bytes, size: int) -> None:
        """Keep the size of a list of `count` words."""
        alike = self._known.setdefault((count, beginning), [])
        if len(self._known) > self.MOST:
            del self._known[next(iter(self._known))]
        if size not in alike and len(alike) < self.ALIKE:
            alike.append(size)


class WordLists(Window):
    """One file, with its lists of words. `leapt` says whether one was leapt over, which `leaps` allows."""

    def __init__(self, source: Source, size: int, workspace: Workspace, *, leaps: bool) -> None:
        super().__init__(source, size, workspace.buffer)
        self._workspace, self._leaps, self.leapt = workspace, leaps, False
        self._walk_left = MOST_WALKED
        self._lists: list[tuple[int, bytes, int]] = []

    def remember(self) -> None:
        """Keep the sizes of this file's lists for the next, now that it has been read to the end."""
        for each in self._lists:
            self._workspace.add(*each)

    def _step_over(self, count: int, name: str) -> None:
        if count < _LONG or not self._leaps:
            self._walk(count, name)
            return
        place = self._place
        beginning = self._beginning(_BEGINNING)
        if any(self._leap(place + size) for size in self._workspace.like(count, beginning)):
            return
        self._go(place)
        self._ahead(min(count * 20, _AHEAD))
        if not any(self._leap(behind) for behind in self._behind(count)):
            self._go(place)
            self._walk(count, name)
        self._lists.append((count, beginning, self._place - place))

    def _behind(self, count: int) -> Iterator[int]:
        """Yield places of what may be the key behind a list, of what is at hand of it."""
        first, base, end = self._at + 8 * count, self._base, self._end
        if base + end < self._size:
            end -= _LONGEST_KEY  # nothing has to be fetched to look at what is found
        for start in _BEHIND:
            at = first
            for _ in range(_MOST_LEAPS):
                at = self._data.find(start, at + 9, end) - 8
                if at < 0:
                    break
                if self._word_ends(at):
                    yield base + at

    def _word_ends(self, end: int) -> bool:
        """Return whether the words before a place at hand lead to it, from the first that can be made out."""
        data = self._data
        at = data.find(_LENGTH, max(end - _TAIL, self._at + 1), end) - 1
        while 0 <= at < end:
            (length,) = U64(data, at)
            at += 8 + length
        return at == end

    def _leap(self, place: int) -> bool:
        """Go to a place in the file, and return whether a key seems to be there."""
        if place >= self._size:
            return False
        self._go(place)
        found = _KEY.match(self._beginning(_LONGEST_KEY))
        if found is None or found[1][0] != len(found[2]):
            return False
        self.leapt = True
        return True

    def _walk(self, count: int, name: str) -> None:
        """Go from word to word."""
        self._walk_left -= count
        if self._walk_left < 0:
            raise Unknown(f"has more than {MOST_WALKED} words in lists of an unusual form")
        left, data = count, self._data
        while left:
            at, last, reached = self._at, self._end - 8, left
            # The whole cost of reading most files is in this loop.
            for done in range(left):
                if at > last:
                    reached = done
                    break
                (length,) = U64(data, at)
                at += 8 + length
            left -= reached
            self._at = at
            if self._base + at > self._size:
                raise damaged(f"its list {name[:80]!r} goes beyond the end, {self._size} bytes")
            if left:
                self._have(8)

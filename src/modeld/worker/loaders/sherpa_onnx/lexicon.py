"""Which words of a text a model cannot say, because its lexicon does not have them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_WORD = re.compile(r"[^\W_](?:['-]?[^\W_])*")
_IDEOGRAPHS = "\u2e80"
"""From here on scripts are written without spaces, and each character is looked up by itself."""


class Lexicon:
    """The words that have a pronunciation; kept as their hashes, which is 8 bytes a word."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Read the lexicons. Raises OSError, and ValueError for what is no text."""
        hashes: list[int] = []
        for file in files:
            with file.open(encoding="utf-8") as lines:
                hashes.extend(hash(line.split(None, 1)[0].lower()) for line in lines if line.strip())
        self._hashes = np.unique(np.array(hashes, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, word: str) -> bool:
        at = np.searchsorted(self._hashes, hash(word.lower()))
        return bool(at < len(self._hashes) and self._hashes[at] == hash(word.lower()))

    def unknown(self, text: str) -> list[str]:
        """Return the words of a text that cannot be said, each once, in their order."""
        missing: dict[str, None] = {}
        for word in _WORD.findall(text):
            for part in word if any(sign >= _IDEOGRAPHS for sign in word) else (word,):
                if not self._has(part):
                    missing[part] = None
        return list(missing)

    def nearest(self, text: str) -> str:
        """Return a text in which words that only lack their accents in the lexicon have lost them."""
        return _WORD.sub(lambda found: self._bare(found[0]), text)

    def _bare(self, word: str) -> str:
        if word.isascii() or self._has(word):
            return word
        bare = "".join(
            sign for sign in unicodedata.normalize("NFKD", word) if not unicodedata.combining(sign)
        )
        return bare if self._has(bare) else word

    def _has(self, word: str) -> bool:
        return word in self or ("-" in word and all(part in self for part in word.split("-")))

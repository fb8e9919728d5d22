"""How well one text repeats another, in words."""

from __future__ import annotations

import re


def word_error_rate(said: str, written: str) -> float:
    """Return the words put in, left out or changed, for each word said; case and punctuation do not count."""
    wanted = words(said)
    return errors(wanted, words(written)) / len(wanted)


def words(text: str) -> list[str]:
    """Return a text's words, without case and punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def errors(said: list[str], written: list[str]) -> int:
    """Return how many words must be put in, left out or changed to make the one of the other."""
    row = list(range(len(written) + 1))
    for number, word in enumerate(said, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(written, 1):
            change = before + (word != other)
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, change)
    return row[-1]

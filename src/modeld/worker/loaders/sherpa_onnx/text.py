"""From a text to what is spoken in one engine step: short enough to be heard soon and to be stopped soon."""

from __future__ import annotations

import re

LONGEST = 240
"""Characters of one step; a longer sentence is cut where a reader would take breath."""

SHORTEST = 12
"""Less than this is spoken with what follows: a voice has no melody on "Hi."."""

_PLAIN = str.maketrans(
    {**dict.fromkeys("‘’‚", "'"), **dict.fromkeys("“”„«»", '"'), "\u00a0": " ", "…": "..."}
)
_ENDS = re.compile(r"[.!?]+[\"')\]]*(?=\s)|[。！？]+[」』）]*|\n\s*\n|\n")
_ABBREVIATIONS = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "st", "vs", "e.g", "i.e", "cf", "vol", "fig", "jr", "sr", "gen", "sen")
)
_BREATHS = (re.compile(r"[;:—–](?=\s)|[；：]"), re.compile(r",(?=\s)|[，、]"), re.compile(r"\s"))


def sentences(text: str) -> list[str]:
    """Return the steps in which a text is spoken; together they are its words in their order."""
    return [step for sentence in _merged(_split(text)) for step in _cut(sentence)]


def plain(text: str) -> str:
    """Return a text with typographic quotes, ellipses and spaces as a lexicon knows them."""
    return text.translate(_PLAIN)


def _split(text: str) -> list[str]:
    found: list[str] = []
    start = 0
    for end in _ENDS.finditer(text):
        if (
            end[0].startswith(".")
            and len(end[0].rstrip("\"')]")) == 1
            and _abbreviated(text[start : end.start()])
        ):
            continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


def _abbreviated(before: str) -> bool:
    word = before.rsplit(None, 1)[-1].lstrip("\"'([") if before.strip() else ""
    return (len(word) == 1 and word.isalpha() and word != "I") or word.lower() in _ABBREVIATIONS


def _merged(parts: list[str]) -> list[str]:
    merged: list[str] = []
    for part in parts:
        if merged and len(merged[-1]) < SHORTEST:
            merged[-1] = f"{merged[-1]} {part}"
        else:
            merged.append(part)
    return merged


def _cut(sentence: str) -> list[str]:
    pieces: list[str] = []
    while len(sentence) > LONGEST:
        at = _breath(sentence)
        pieces.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    return [piece for piece in (*pieces, sentence) if piece]


def _breath(sentence: str) -> int:
    for sign in _BREATHS:
        places = [found.end() for found in sign.finditer(sentence, LONGEST // 3, LONGEST)]
        if places:
            return places[-1]
    return LONGEST

"""From whisper.cpp's tokens to segments and words. Pure: no engine, times in seconds."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modeld.protocol.tasks import Segment, Word

TICK_S = 0.01
"""whisper.cpp's unit of time; also the length of a frame, in which `seek` counts."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token as the engine gives it: `start` and `end` in ticks, `logprob` natural."""

    id: int
    raw: bytes
    logprob: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Passage:
    """A segment as the engine gives it: times in ticks from the beginning of what it was given."""

    start: int
    end: int
    text: str
    tokens: tuple[Token, ...]
    no_speech_prob: float = 0.0


def segment(
    passage: Passage,
    *,
    id: int,
    offset: int,
    seek: int,
    temperature: float,
    text_ids: int,
    words: bool,
    spaced: bool,
) -> Segment:
    """Return the event for a passage.

    `offset` (ticks) is where the engine's piece begins in the recording, `seek` (ticks) where its window did;
    tokens from `text_ids` on are no text.
    """
    spoken = [token for token in passage.tokens if token.id < text_ids]
    return Segment(
        id=id,
        seek=seek,
        start=_seconds(passage.start + offset),
        end=_seconds(max(passage.end, passage.start) + offset),
        text=passage.text,
        tokens=tuple(token.id for token in passage.tokens),
        temperature=temperature,
        avg_logprob=sum(token.logprob for token in spoken) / len(spoken) if spoken else 0.0,
        compression_ratio=compression_ratio(passage.text),
        no_speech_prob=passage.no_speech_prob,
        words=tuple(_words(spoken, offset, spaced)) if words else (),
    )


def compression_ratio(text: str) -> float:
    """Return how much zlib shortens a text: over 2.4 it mostly repeats itself."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def _words(tokens: Sequence[Token], offset: int, spaced: bool) -> Iterator[Word]:
    """Join tokens to words: a space begins one, or, where there are none, each whole character."""
    raw, start, end = b"", 0, 0
    for token in tokens:
        whole = _is_whole(raw)
        if raw and whole and (token.raw.startswith(b" ") or not spaced):
            yield from _word(raw, start + offset, end + offset)
            raw = b""
        if not raw:
            start = token.start
        raw += token.raw
        end = max(token.end, start)
    yield from _word(raw, start + offset, end + offset)


def _word(raw: bytes, start: int, end: int) -> Iterator[Word]:
    text = raw.decode("utf-8", "replace").strip()
    if text:
        yield Word(text, _seconds(start), _seconds(end))


def _is_whole(raw: bytes) -> bool:
    """Say whether no character is cut at the end: a token may be a part of one."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _seconds(ticks: int) -> float:
    return round(ticks * TICK_S, 2)

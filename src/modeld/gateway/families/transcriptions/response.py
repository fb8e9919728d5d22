"""Segments to json, text, subtitles or server-sent events. Pure: events in, bytes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from modeld.errors import EngineError
from modeld.gateway.encoding import dumps, sse_frame
from modeld.gateway.families.transcriptions.request import ResponseFormat
from modeld.protocol.tasks import Event, Segment, Transcript, Usage

CONTENT_TYPES: dict[ResponseFormat, str] = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
}

TRANSLATED = "english"
"""The language of every translation."""


class TranscriptCollector:
    """Gathers one transcript. `words` and `segments`: which lists verbose_json has.

    `usage` counts the tokens written; the recording's length is no number of tokens.
    """

    def __init__(self, *, format: ResponseFormat, translate: bool, words: bool, segments: bool) -> None:
        self.usage: Usage | None = None
        self._format = format
        self._translate = translate
        self._words, self._with_segments = words, segments
        self._segments: list[Segment] = []
        self._transcript: Transcript | None = None

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            match event:
                case Segment():
                    self._segments.append(event)
                case Transcript():
                    self._transcript = event
                case Usage():
                    self.usage = Usage(0, event.completion_tokens)

    @property
    def text(self) -> str:
        """What was said so far."""
        return "".join(segment.text for segment in self._segments).strip()

    def spent(self) -> dict[str, Any]:
        """Return the `usage` object. Raises EngineError when the call is not complete."""
        return {"type": "duration", "seconds": round(self._whole().duration, 3)}

    def body(self) -> bytes:
        """Return the answer. Raises EngineError."""
        transcript = self._whole()
        match self._format:
            case "json":
                return dumps({"text": self.text, "usage": self.spent()})
            case "verbose_json":
                return dumps(self._verbose(transcript))
            case "text":
                return f"{self.text}\n".encode()
            case "srt":
                return subtitles(self._segments, srt_cue).encode()
            case "vtt":
                return f"WEBVTT\n\n{subtitles(self._segments, vtt_cue)}".encode()

    def _verbose(self, transcript: Transcript) -> dict[str, Any]:
        body: dict[str, Any] = {
            "task": "translate" if self._translate else "transcribe",
            "language": TRANSLATED if self._translate else transcript.language,
            "duration": round(transcript.duration, 3),
            "text": self.text,
        }
        if self._words:
            body["words"] = [
                {"word": word.word, "start": word.start, "end": word.end}
                for segment in self._segments
                for word in segment.words
            ]
        if self._with_segments:
            body["segments"] = [
                {
                    "id": segment.id,
                    "seek": segment.seek,
                    "start": segment.start,
                    "end": segment.end,
                    "text": segment.text,
                    "tokens": segment.tokens,
                    "temperature": segment.temperature,
                    "avg_logprob": _finite(segment.avg_logprob),
                    "compression_ratio": _finite(segment.compression_ratio),
                    "no_speech_prob": _finite(segment.no_speech_prob),
                }
                for segment in self._segments
            ]
        return {**body, "usage": self.spent()}

    def _whole(self) -> Transcript:
        if self._transcript is None:
            raise EngineError("the engine ended the call without finishing it", code="incomplete_answer")
        return self._transcript


class TranscriptChunks:
    """Encodes one streamed transcript: a delta for each segment, then all of it with what it cost."""

    def __init__(self, *, translate: bool) -> None:
        self._whole = TranscriptCollector(format="json", translate=translate, words=False, segments=False)
        self._begun = False

    @property
    def usage(self) -> Usage | None:
        """The tokens written."""
        return self._whole.usage

    @usage.setter
    def usage(self, usage: Usage | None) -> None:
        self._whole.usage = usage

    def encode(self, events: Sequence[Event]) -> list[bytes]:
        """Return the server-sent events for these events, each whole."""
        self._whole.add(events)
        out = []
        for event in events:
            if isinstance(event, Segment):
                # The deltas joined are the text, which begins without a space.
                text = event.text if self._begun else event.text.lstrip()
                self._begun = self._begun or bool(text)
                if text:
                    out.append(_frame({"type": "transcript.text.delta", "delta": text}))
        return out

    def end(self) -> list[bytes]:
        """Return the last event. Raises EngineError.

        Its usage is counted in tokens, the only form that clients know here; the sound itself is not.
        """
        seconds = self._whole.spent()["seconds"]
        written = self._whole.usage.completion_tokens if self._whole.usage is not None else 0
        usage = {
            "type": "tokens",
            "input_tokens": 0,
            "output_tokens": written,
            "total_tokens": written,
            "seconds": seconds,
        }
        return [_frame({"type": "transcript.text.done", "text": self._whole.text, "usage": usage})]


def subtitles(segments: Sequence[Segment], cue: Callable[[int, Segment], str]) -> str:
    """Return the cues of all segments that say something, numbered from 1."""
    spoken = [segment for segment in segments if segment.text.strip()]
    return "".join(cue(number, segment) for number, segment in enumerate(spoken, 1))


def srt_cue(number: int, segment: Segment) -> str:
    """Return one cue of a SubRip file."""
    return f"{number}\n{clock(segment.start, ',')} --> {clock(segment.end, ',')}\n{_line(segment.text)}\n\n"


def vtt_cue(number: int, segment: Segment) -> str:
    """Return one cue of a WebVTT file, in which & and < mean something."""
    text = _line(segment.text).replace("&", "&amp;").replace("<", "&lt;")
    return f"{clock(segment.start, '.')} --> {clock(segment.end, '.')}\n{text}\n\n"


def clock(seconds: float, point: str) -> str:
    """Return a time as hours:minutes:seconds with milliseconds after `point`."""
    total = max(round(seconds * 1000), 0)
    minutes, rest = divmod(total, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _line(text: str) -> str:
    """Return a cue's text: an arrow or an empty line in it would begin another cue."""
    return " ".join(text.split()).replace("-->", "->")


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _frame(event: dict[str, Any]) -> bytes:
    return sse_frame(b"", dumps(event), b"")

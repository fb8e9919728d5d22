"""Forms to tasks, and segments to every form of answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, EngineError
from modeld.gateway.families.transcriptions.request import TranscriptionRequest, read
from modeld.gateway.families.transcriptions.response import (
    TranscriptChunks,
    TranscriptCollector,
    clock,
)
from modeld.gateway.multipart import Form, Upload
from modeld.protocol.tasks import Event, Segment, Transcript, Usage, Word

MEDIA = b"sound"
SEGMENT_FIELDS = {
    "id",
    "seek",
    "start",
    "end",
    "text",
    "tokens",
    "temperature",
    "avg_logprob",
    "compression_ratio",
    "no_speech_prob",
}


def form(*, data: bytes | None = MEDIA, **fields: str | list[str]) -> Form:
    """Return a form with a file (without one for None), these fields, and a model's name."""
    all_fields = {"model": "ears", **fields}
    files = {} if data is None else {"file": [Upload("upload", "application/octet-stream", data)]}
    listed = {name: [value] if isinstance(value, str) else value for name, value in all_fields.items()}
    return Form(listed, files)


def parsed(**fields: Any) -> TranscriptionRequest:
    """Read a form of a transcription."""
    return read(form(**fields), translate=False)


def segment(number: int, text: str, words: tuple[Word, ...] = ()) -> Segment:
    """Return a segment of two seconds."""
    return Segment(number, 0, 2.0 * number, 2.0 * number + 2, text, (1, 2), 0.0, -0.2, 1.1, 0.0, words)


SAID: list[Event] = [
    segment(0, " Hello <world>.", (Word("Hello", 0.0, 0.9), Word("<world>.", 0.9, 2.0))),
    segment(1, " A --> B\n\n& C", (Word("A", 2.0, 2.2),)),
    Transcript("german", 4.0004),
    Usage(4000, 7),
]


def gathered(format: Any, events: list[Event] = SAID, **more: Any) -> bytes:
    """Return the whole answer to these events."""
    options = {"translate": False, "words": False, "segments": True, **more}
    collector = TranscriptCollector(format=format, **options)
    collector.add(events)
    return collector.body()


# --- requests -----------------------------------------------------------------------------------------------


def test_the_least_form_is_a_json_transcription() -> None:
    """Model and file are enough; everything else has OpenAI's default."""
    asked = parsed()
    assert (asked.model, asked.format, asked.stream, asked.words, asked.segments) == (
        "ears",
        "json",
        False,
        False,
        True,
    )
    assert asked.task.media == MEDIA
    assert (asked.task.language, asked.task.prompt, asked.task.temperature) == (None, None, None)
    assert not asked.task.translate
    assert not asked.task.words


def test_every_field_reaches_the_task() -> None:
    """Language, prompt, temperature, words, keep_alive and translation are what the form says."""
    fields: dict[str, Any] = {"language": "de", "prompt": "Bücher", "temperature": "0.4", "keep_alive": "10m"}
    wanted: dict[str, Any] = {
        "response_format": "verbose_json",
        "timestamp_granularities": ["word", "segment"],
    }
    asked = read(form(**fields, **wanted), translate=True)
    task = asked.task
    assert (task.language, task.prompt, task.temperature) == ("de", "Bücher", 0.4)
    assert task.translate
    assert task.words
    assert asked.segments
    assert asked.keep_alive == 600


def test_words_alone_leave_the_segments_out() -> None:
    """With the granularity word only, verbose_json has words and no segments, as at OpenAI."""
    asked = parsed(response_format="verbose_json", timestamp_granularities=["word"])
    assert asked.words
    assert not asked.segments


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": ""}, "model", "missing"),
        ({"data": None}, "file", "missing"),
        ({"data": None, "file": "x.mp3"}, "file", "curl"),
        ({"data": b""}, "file", "0 bytes"),
        ({"response_format": "docx"}, "response_format", "json, text, srt, vtt, verbose_json"),
        ({"temperature": "hot"}, "temperature", "0 to 1"),
        ({"temperature": "nan"}, "temperature", "0 to 1"),
        ({"temperature": "1.5"}, "temperature", "0 to 1"),
        ({"stream": "maybe"}, "stream", "true nor false"),
        ({"stream": "true", "response_format": "srt"}, "stream", "cannot be streamed"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities", "verbose_json"),
        (
            {"timestamp_granularities": ["letter"], "response_format": "verbose_json"},
            "timestamp_granularities",
            "letter",
        ),
        ({"include": ["logprobs"]}, "include", "not supported"),
        ({"keep_alive": "soon"}, "keep_alive", "a duration"),
    ],
)
def test_what_cannot_be_done_is_a_400_with_its_param(fields: dict[str, Any], param: str, words: str) -> None:
    """Every wrong field is named, in a sentence that says what is right."""
    with pytest.raises(BadRequest, match=re.escape(words)) as caught:
        parsed(**fields)
    assert caught.value.param == param


def test_two_files_are_refused() -> None:
    """One recording a request: a second file is never dropped in silence."""
    twice = form()
    twice.files["file"] *= 2
    with pytest.raises(BadRequest, match="there are 2 files"):
        read(twice, translate=False)


# --- answers ------------------------------------------------------------------------------------------------


def test_json_is_the_text_and_the_seconds() -> None:
    """json has the joined text without the space it begins with, and the usage by duration."""
    assert json.loads(gathered("json")) == {
        "text": "Hello <world>. A --> B\n\n& C",
        "usage": {"type": "duration", "seconds": 4.0},
    }


def test_verbose_json_has_all_fields_and_words_only_when_asked() -> None:
    """Segments carry OpenAI's ten fields; words are there exactly when they were asked for."""
    body = json.loads(gathered("verbose_json"))
    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "german", 4.0)
    assert all(set(each) == SEGMENT_FIELDS for each in body["segments"])
    assert "words" not in body
    both = json.loads(gathered("verbose_json", words=True, segments=False))
    assert [word["word"] for word in both["words"]] == ["Hello", "<world>.", "A"]
    assert "segments" not in both


def test_a_translation_is_english() -> None:
    """verbose_json of a translation names the language it is in, not the one that was spoken."""
    body = json.loads(gathered("verbose_json", translate=True))
    assert (body["task"], body["language"]) == ("translate", "english")


def test_subtitles_cannot_be_broken_by_what_is_said() -> None:
    """An arrow, an empty line or markup in the text stays text."""
    assert gathered("srt").decode() == (
        "1\n00:00:00,000 --> 00:00:02,000\nHello <world>.\n\n2\n00:00:02,000 --> 00:00:04,000\nA -> B & C\n\n"
    )
    assert gathered("vtt").decode() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nHello &lt;world>.\n\n"
        "00:00:02.000 --> 00:00:04.000\nA -> B &amp; C\n\n"
    )


def test_silence_is_an_empty_transcript() -> None:
    """Nothing said gives an empty text and empty lists in every format, no error."""
    silent: list[Event] = [Transcript("english", 1.0), Usage(1000, 0)]
    assert json.loads(gathered("json", silent))["text"] == ""
    assert json.loads(gathered("verbose_json", silent))["segments"] == []
    assert gathered("srt", silent) == b""
    assert gathered("vtt", silent) == b"WEBVTT\n\n"
    assert gathered("text", silent) == b"\n"


@pytest.mark.parametrize("format", ["json", "text", "srt", "vtt", "verbose_json"])
def test_an_answer_that_breaks_off_is_an_error(format: str) -> None:
    """Without the engine's last word no half transcript passes for a whole one."""
    with pytest.raises(EngineError):
        gathered(format, SAID[:2])


def test_a_stream_is_deltas_and_then_all_of_it() -> None:
    """The deltas joined are the text of the done event, which carries the usage."""
    chunks = TranscriptChunks(translate=False)
    events = [json.loads(frame.removeprefix(b"data: ")) for frame in [*chunks.encode(SAID), *chunks.end()]]
    *deltas, done = events
    assert [event["type"] for event in deltas] == ["transcript.text.delta"] * 2
    assert "".join(event["delta"] for event in deltas) == done["text"]
    assert done["type"] == "transcript.text.done"
    assert done["usage"]["output_tokens"] == 7
    assert done["usage"]["seconds"] == 4.0
    assert chunks.usage == Usage(0, 7)
    with pytest.raises(EngineError):
        TranscriptChunks(translate=False).end()


@given(st.floats(0, 400_000))
def test_a_time_of_day_reads_back(seconds: float) -> None:
    """A subtitle's time is the time, to the millisecond, however long the recording."""
    hours, minutes, rest = clock(seconds, ".").split(":")
    assert len(minutes) == 2
    assert int(minutes) < 60
    assert re.fullmatch(r"\d\d\.\d{3}", rest)
    assert abs(int(hours) * 3600 + int(minutes) * 60 + float(rest) - seconds) <= 0.0006

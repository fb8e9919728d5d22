from __future__ import annotations

import json
from typing import Any

import pytest

from modeld.errors import BadRequest
from modeld.gateway.families.speech.request import FORMATS, read, to_task
from modeld.protocol.tasks import SpeechTask

MOST = 4096


def _task(**fields: Any) -> SpeechTask:
    body = {"model": "kokoro", "input": "Hello.", "voice": "alloy", **fields}
    return to_task(read(json.dumps(body).encode(), MOST))


def test_the_least_that_a_client_sends() -> None:
    """Without more it is mp3 at the voice's own pace."""
    assert _task() == SpeechTask(text="Hello.", voice="alloy", format="mp3", speed=1.0)


def test_all_that_a_client_sends() -> None:
    """Each field reaches the task; a voice may come by its id; what is unknown is ignored."""
    task = _task(
        voice={"id": "af_nova"},
        response_format="opus",
        speed=0.25,
        instructions="softly",
        stream_format="audio",
        user="x",
    )
    assert task == SpeechTask(
        text="Hello.", voice="af_nova", format="opus", speed=0.25, instructions="softly"
    )


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_taken(form: str) -> None:
    """All of OpenAI's formats are there."""
    assert _task(response_format=form).format == form


def test_a_null_is_as_if_it_was_left_out() -> None:
    """Clients send null for what they do not set."""
    assert _task(response_format=None, speed=None, stream_format=None, instructions=None) == _task()


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, "input", "nothing to say"),
        ({"input": " \n\t"}, "input", "nothing to say"),
        ({"input": "x" * (MOST + 1)}, "input", "4097 characters, the limit is 4096 (media.speech_characters"),
        ({"input": None}, "input", "expected str"),
        ({"voice": None}, "voice", "expected"),
        ({"voice": {}}, "voice.id", "missing"),
        ({"response_format": "ogg"}, "response_format", "'ogg' is not one of mp3, opus, aac, flac, wav, pcm"),
        ({"response_format": "MP3"}, "response_format", "is not one of"),
        ({"stream_format": "json"}, "stream_format", "'json' is not one of audio, sse"),
        ({"speed": 0.2}, "speed", "0.25"),
        ({"speed": 4.1}, "speed", "4.0"),
        ({"speed": "fast"}, "speed", "expected"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    """A bad value is the caller's fault, with the field and what would be right."""
    with pytest.raises(BadRequest) as caught:
        _task(**fields)
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize("field", ["model", "input", "voice"])
def test_what_is_missing_is_named(field: str) -> None:
    """Three fields are needed, as at OpenAI."""
    body = {"model": "kokoro", "input": "Hello.", "voice": "alloy"}
    del body[field]
    with pytest.raises(BadRequest) as caught:
        read(json.dumps(body).encode(), MOST)
    assert caught.value.param == field
    assert caught.value.code == "missing_required_parameter"


def test_the_longest_text_is_taken() -> None:
    """The limit counts characters and not bytes."""
    assert len(_task(input="é" * MOST).text) == MOST

"""The form of a transcription or translation, and the task it asks for. Pure: a form in, a task out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from modeld.errors import BadRequest
from modeld.gateway import keep_alive
from modeld.gateway.decoding import invalid, unsupported
from modeld.gateway.multipart import Form
from modeld.protocol.tasks import TranscribeTask

ResponseFormat: TypeAlias = Literal["json", "text", "srt", "vtt", "verbose_json"]
FORMATS: tuple[str, ...] = get_args(ResponseFormat)
STREAMED = ("json", "text")
"""Formats that may be asked for together with `stream`, whose events are the same for both."""

GRANULARITIES = ("word", "segment")
HOTTEST = 1.0

_SWITCHES = {"true": True, "1": True, "false": False, "0": False}
_OTHERS = {
    "include": "log probabilities are not given",
    "known_speaker_names": "speakers are not told apart",
    "known_speaker_references": "speakers are not told apart",
}


@dataclass(frozen=True)
class TranscriptionRequest:
    """What a form asks for. `words` and `segments`: which lists verbose_json has; `keep_alive` in seconds."""

    model: str
    task: TranscribeTask
    format: ResponseFormat
    stream: bool
    words: bool
    segments: bool
    keep_alive: float | None


def read(form: Form, *, translate: bool) -> TranscriptionRequest:
    """Read a form. Unknown fields are ignored, empty ones are absent. Raises BadRequest with `param`."""
    model = form.text("model")
    if model is None:
        raise _missing("model")
    for name, reason in _OTHERS.items():
        if name in form.fields:
            raise unsupported(name, reason)
    form_of_answer = _format(form)
    stream = _switch(form, "stream")
    if stream and form_of_answer not in STREAMED:
        raise invalid("stream", f"response_format {form_of_answer} cannot be streamed, only json and text")
    wanted = _granularities(form, form_of_answer)
    return TranscriptionRequest(
        model=model,
        task=TranscribeTask(
            media=_file(form),
            translate=translate,
            language=form.text("language"),
            prompt=form.text("prompt"),
            temperature=_temperature(form),
            words="word" in wanted,
        ),
        format=form_of_answer,
        stream=stream,
        words="word" in wanted,
        segments="segment" in wanted,
        keep_alive=keep_alive.seconds(_number_or_text(form.text("keep_alive"))),
    )


def _file(form: Form) -> bytes:
    uploads = form.files.get("file", [])
    if not uploads:
        if "file" in form.fields:
            raise invalid(
                "file", "it is text; send it as a file, with a filename (curl: -F file=@speech.mp3)"
            )
        raise _missing("file")
    if len(uploads) > 1:
        raise invalid("file", f"there are {len(uploads)} files; send one")
    if not uploads[0].data:
        raise invalid("file", "it is empty (0 bytes)")
    return uploads[0].data


def _format(form: Form) -> ResponseFormat:
    word = form.text("response_format") or "json"
    if word not in FORMATS:
        raise invalid("response_format", f"{word[:40]!r} is none of {', '.join(FORMATS)}")
    return cast("ResponseFormat", word)


def _switch(form: Form, name: str) -> bool:
    word = form.text(name)
    if word is None:
        return False
    if word.lower() not in _SWITCHES:
        raise invalid(name, f"{word[:40]!r} is neither true nor false")
    return _SWITCHES[word.lower()]


def _granularities(form: Form, form_of_answer: str) -> tuple[str, ...]:
    wanted = tuple(
        word.strip() for value in form.fields.get("timestamp_granularities", ()) for word in value.split(",")
    )
    for word in wanted:
        if word not in GRANULARITIES:
            raise invalid("timestamp_granularities", f"{word[:40]!r} is neither word nor segment")
    if wanted and form_of_answer != "verbose_json":
        raise invalid(
            "timestamp_granularities", f"response_format must be verbose_json for it, not {form_of_answer}"
        )
    return wanted or ("segment",)


def _temperature(form: Form) -> float | None:
    word = form.text("temperature")
    if word is None:
        return None
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value <= HOTTEST:
        raise invalid("temperature", f"{word[:40]!r} is not a number from 0 to {HOTTEST:g}")
    return value


def _number_or_text(word: str | None) -> float | str | None:
    try:
        return None if word is None else float(word)
    except ValueError:
        return word


def _missing(param: str) -> BadRequest:
    return BadRequest(
        f"missing required parameter: '{param}'", code="missing_required_parameter", param=param
    )

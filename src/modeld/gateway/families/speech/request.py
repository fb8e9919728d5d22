"""The body of a speech request, and the task it asks for."""

from __future__ import annotations

from typing import Annotated, Literal, cast, get_args

import msgspec
from msgspec import Meta

from modeld.errors import BadRequest
from modeld.gateway.decoding import decode, invalid
from modeld.protocol.tasks import AudioFormat, SpeechTask

FORMATS: tuple[str, ...] = get_args(AudioFormat)
STREAM_FORMATS = ("audio", "sse")


class Voice(msgspec.Struct):
    """A voice by its id: OpenAI's form for voices that are not among its own."""

    id: str


class SpeechRequest(msgspec.Struct, kw_only=True):
    """A body as OpenAI's SDKs send it. Unknown fields are ignored, null is absent."""

    model: str
    input: str
    voice: str | Voice
    response_format: str | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] | None = None
    stream_format: str | None = None
    instructions: str | None = None
    keep_alive: float | str | None = None

    @property
    def events(self) -> bool:
        """Whether the audio comes as server-sent events and not as bytes."""
        return self.stream_format == "sse"


_DECODER = msgspec.json.Decoder(SpeechRequest)


def read(raw: bytes | bytearray, most_characters: int) -> SpeechRequest:
    """Decode a body and check it; OpenAI's limit of characters is 4096. Raises BadRequest with `param`."""
    request = decode(_DECODER, raw)
    if not request.input.strip():
        raise invalid("input", "there is nothing to say in it")
    if len(request.input) > most_characters:
        raise BadRequest(
            f"invalid value for 'input': it has {len(request.input)} characters, the limit is "
            f"{most_characters} (media.speech_characters in the configuration sets it)",
            code="input_too_long",
            param="input",
        )
    _one_of("response_format", request.response_format, FORMATS)
    _one_of("stream_format", request.stream_format, STREAM_FORMATS)
    return request


def to_task(request: SpeechRequest) -> SpeechTask:
    """Return the task of a request that was read."""
    return SpeechTask(
        text=request.input,
        voice=request.voice if isinstance(request.voice, str) else request.voice.id,
        format=cast("AudioFormat", request.response_format or "mp3"),
        speed=1.0 if request.speed is None else request.speed,
        instructions=request.instructions,
    )


def _one_of(
    param: Literal["response_format", "stream_format"], value: str | None, known: tuple[str, ...]
) -> None:
    if value is not None and value not in known:
        raise invalid(param, f"{value[:40]!r} is not one of {', '.join(known)}")

"""What MASS's clients send, and the tasks it asks for. Pure.

`config` describes how an engine is to be loaded. Here the owner says that, in the configuration; the field is
checked and otherwise ignored, but for `thinking`.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from modeld.gateway.decoding import INT_RANGE, decode, invalid, missing, unsupported
from modeld.gateway.families.chat.pictures import Album
from modeld.gateway.sampling import MAX_STOPS, MAX_TOKENS
from modeld.gateway.settings import MediaSettings
from modeld.protocol.tasks import (
    ChatTask,
    EmbedTask,
    Message,
    Part,
    Sampling,
    Task,
    TextPart,
    TokenizeTask,
)

MOST_ITEMS = 50_000
"""Items in one batch, as in a batch at OpenAI."""


class _Config(msgspec.Struct):
    """A 0 is MASS's word for what it chooses itself."""

    context_size: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    batch_size: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    gpu_layers: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    flash_attn: bool | Literal["on", "off", "auto"] | None = None
    threads: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    max_concurrent: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    thinking: bool | None = None
    mmproj_filename: str | None = None
    chat_template: str | None = None
    cache_type: Literal["", "f16", "q8_0", "q4_0"] | None = None
    vram_headroom_pct: Annotated[float, Meta(ge=1, le=100)] | None = None


class _Sampling(msgspec.Struct):
    """None is absent; a 0 is a 0."""

    max_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    seed: Annotated[int, Meta(ge=INT_RANGE[0], le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    enable_thinking: bool | None = None


class _Part(msgspec.Struct):
    type: Literal["text", "image", "audio"]
    text: str | None = None
    data: str | None = None
    mime_type: str | None = None


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | None = None
    parts: list[_Part] | None = None


_Messages = Annotated[list[_Message], Meta(min_length=1)]


class _Body(msgspec.Struct, kw_only=True):
    model: Annotated[str, Meta(min_length=1)]
    config: _Config | None = None


class _Chat(_Body, kw_only=True):
    messages: _Messages
    sampling: _Sampling | None = None


class _ChatItem(msgspec.Struct, kw_only=True):
    messages: _Messages
    sampling: _Sampling | None = None


class _BatchChat(_Body, kw_only=True):
    items: Annotated[list[_ChatItem], Meta(min_length=1, max_length=MOST_ITEMS)]


class _Embed(_Body, kw_only=True):
    input: Annotated[str, Meta(min_length=1)]


class _BatchEmbed(_Body, kw_only=True):
    inputs: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MOST_ITEMS)]


class _Tokenize(_Body, kw_only=True):
    text: str


Method = Literal["Chat", "BatchChat", "Embed", "BatchEmbed", "Tokenize"]
"""What there is to submit, as in the path."""

KIND_OF: dict[Method, str] = {
    "Chat": "chat",
    "BatchChat": "batch_chat",
    "Embed": "embed",
    "BatchEmbed": "batch_embed",
    "Tokenize": "tokenize",
}

USECASES_OF: dict[Method, tuple[str, ...]] = {
    "Chat": ("generate",),
    "BatchChat": ("generate",),
    "Embed": ("embed",),
    "BatchEmbed": ("embed",),
    "Tokenize": ("generate", "embed"),
}
"""What models that can do it are configured for."""

_CHAT = msgspec.json.Decoder(_Chat)
_DECODERS: dict[Method, msgspec.json.Decoder[Any]] = {
    "Chat": _CHAT,
    "BatchChat": msgspec.json.Decoder(_BatchChat),
    "Embed": msgspec.json.Decoder(_Embed),
    "BatchEmbed": msgspec.json.Decoder(_BatchEmbed),
    "Tokenize": msgspec.json.Decoder(_Tokenize),
}


class Submission:
    """A body as it was sent: the name of its model, and the tasks that it asks for."""

    def __init__(self, method: Method, raw: bytes | bytearray) -> None:
        """Decode a body. Raises BadRequest."""
        self._body = decode(_DECODERS[method], raw)
        self.model: str = self._body.model

    def tasks(self, *, vision: bool | None, media: MediaSettings) -> Sequence[Task]:
        """Return the tasks, one for each item, in order. Raises BadRequest with `param`.

        `vision`: whether the model sees pictures, None when that is not known before it is loaded.
        """
        body = self._body
        match body:
            case _Chat():
                return (_chat(body.messages, body.sampling, body.config, "", vision, media),)
            case _BatchChat():
                return [
                    _chat(item.messages, item.sampling, body.config, f"items[{at}].", vision, media)
                    for at, item in enumerate(body.items)
                ]
            case _Embed():
                return (EmbedTask(inputs=(body.input,)),)
            case _BatchEmbed():
                return [EmbedTask(inputs=(text,)) for text in body.inputs]
            case _:
                return (TokenizeTask(text=body.text),)


def _chat(
    messages: list[_Message],
    sampling: _Sampling | None,
    config: _Config | None,
    where: str,
    vision: bool | None,
    media: MediaSettings,
) -> ChatTask:
    given = sampling or _Sampling()
    thinking = given.enable_thinking
    if thinking is None and config is not None:
        thinking = config.thinking
    album = None if vision is False else Album(media)
    return ChatTask(
        messages=tuple(
            _message(message, f"{where}messages[{at}]", album) for at, message in enumerate(messages)
        ),
        sampling=_sampling(given, where),
        template_kwargs={} if thinking is None else {"enable_thinking": thinking},
    )


def _sampling(given: _Sampling, where: str) -> Sampling:
    stop = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ())
    if "" in stop:
        raise invalid(f"{where}sampling.stop", "an empty text stops everything")
    return Sampling(
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        min_p=given.min_p,
        seed=given.seed,
        stop=stop,
        frequency_penalty=given.frequency_penalty,
        presence_penalty=given.presence_penalty,
        repeat_penalty=given.repeat_penalty,
    )


def _message(message: _Message, where: str, album: Album | None) -> Message:
    role = "system" if message.role == "developer" else message.role
    if message.parts:
        if message.content:
            raise invalid(f"{where}.parts", "a message has content or parts, not both")
        parts = tuple(
            _part(part, f"{where}.parts[{at}]", role, album) for at, part in enumerate(message.parts)
        )
        return Message(role=role, content=parts)
    if message.content is None:
        raise missing(f"{where}.content", f"a {role} message needs content or parts")
    return Message(role=role, content=message.content)


def _part(part: _Part, where: str, role: str, album: Album | None) -> Part:
    if part.type == "text":
        if part.text is None:
            raise missing(f"{where}.text", "a part of type text has one")
        return TextPart(text=part.text)
    if part.type == "audio":
        raise unsupported(f"{where}.type", "audio: messages hold text and images")
    if role != "user":
        raise invalid(f"{where}.type", f"images go into user messages, this is a {role} message")
    if album is None:
        raise unsupported(f"{where}.type", "image: this model does not see images")
    if not part.data:
        raise missing(f"{where}.data", "an image is sent as base64")
    try:
        return album.part(f"data:{part.mime_type or 'image/*'};base64,{part.data}", f"{where}.data")
    except binascii.Error as error:
        raise invalid(f"{where}.data", str(error)) from None

"""The turns of a conversation, as clients write them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from modeld.gateway.decoding import invalid, missing, unsupported
from modeld.gateway.families.chat.pictures import Album
from modeld.protocol.tasks import ImagePart, Message, Part, TextPart, ToolCall


class _Text(msgspec.Struct, tag="text"):
    text: str


class _Refusal(msgspec.Struct, tag="refusal"):
    refusal: str


class _ImageUrl(msgspec.Struct):
    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None  # engines size pictures by themselves


class _Image(msgspec.Struct, tag="image_url"):
    image_url: _ImageUrl


class _Audio(msgspec.Struct, tag="input_audio"):
    pass


class _File(msgspec.Struct, tag="file"):
    pass


_Part: TypeAlias = _Text | _Refusal | _Image | _Audio | _File


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] | None = None


class MessageBody(msgspec.Struct):
    """One turn as sent; which fields it needs depends on its role."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    audio: Any = None
    function_call: Any = None


def to_messages(bodies: list[MessageBody], *, album: Album | None) -> tuple[Message, ...]:
    """Return the turns of a task; without an album the model sees no pictures.

    Raises BadRequest naming the message and the field.
    """
    return tuple(_message(body, f"messages[{at}]", album) for at, body in enumerate(bodies))


def _message(body: MessageBody, where: str, album: Album | None) -> Message:
    role = body.role
    if role == "function":
        raise unsupported(f"{where}.role", "the role function was replaced by tool; send role: tool")
    if body.function_call is not None:
        raise unsupported(f"{where}.function_call", "it was replaced by tool_calls; send tool_calls")
    if body.audio is not None:
        raise unsupported(f"{where}.audio", "messages hold text and images")
    if role == "assistant":
        return Message(
            role="assistant",
            content=_content(body.content, where, role, album),
            name=body.name,
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments or "")
                for call in body.tool_calls or ()
            ),
            reasoning=body.reasoning_content if body.reasoning_content is not None else body.reasoning,
        )
    if body.tool_calls:
        raise invalid(f"{where}.tool_calls", f"only an assistant calls tools, this is a {role} message")
    if role == "tool" and not body.tool_call_id:
        raise missing(f"{where}.tool_call_id", "a tool message answers one call")
    if body.content is None or body.content == []:
        raise missing(f"{where}.content", f"a {role} message needs content")
    return Message(
        # Models know "system" only; OpenAI's newer name means the same.
        role="system" if role == "developer" else role,
        content=_content(body.content, where, role, album),
        name=body.name,
        tool_call_id=body.tool_call_id if role == "tool" else None,
    )


def _content(
    content: str | list[_Part] | None, where: str, role: str, album: Album | None
) -> str | tuple[Part, ...] | None:
    if not isinstance(content, list):
        return content
    return tuple(_part(part, f"{where}.content[{at}]", role, album) for at, part in enumerate(content))


def _part(part: _Part, where: str, role: str, album: Album | None) -> Part:
    match part:
        case _Text(text=text):
            return TextPart(text=text)
        case _Refusal(refusal=text) if role == "assistant":
            return TextPart(text=text)
        case _Refusal():
            raise invalid(f"{where}.type", f"only an assistant refuses, this is a {role} message")
        case _Image(image_url=image):
            return _image(image.url, where, role, album)
        case _Audio():
            raise unsupported(f"{where}.type", "input_audio: messages hold text and images")
        case _File():
            raise unsupported(f"{where}.type", "file: messages hold text and images")


def _image(url: str, where: str, role: str, album: Album | None) -> ImagePart:
    if role != "user":
        raise invalid(f"{where}.type", f"images go into user messages, this is a {role} message")
    if album is None:
        raise unsupported(f"{where}.image_url", "this model does not see images")
    return album.part(url, f"{where}.image_url.url")

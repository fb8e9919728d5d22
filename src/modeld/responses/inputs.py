"""From the input of a response to the turns a model reads, and to the items that are kept.

An item is kept as it came, with what OpenAI adds to it: its type, an id and a status. Items that are equal
make equal turns, wherever they come from: the request, a chain or a conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from modeld.errors import BadRequest
from modeld.gateway.decoding import check_free, invalid, unsupported
from modeld.gateway.families.chat.pictures import Album
from modeld.protocol.tasks import Message, Part, TextPart, ToolCall

Item: TypeAlias = dict[str, Any]
"""An item as kept: JSON, whose type and id are known."""

PREFIXES = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "reasoning": "rs_",
}
"""By type of item, how its id begins."""


class _InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class _OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class _PlainText(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class _Image(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class _File(msgspec.Struct, tag_field="type", tag="input_file"):
    pass


class _Audio(msgspec.Struct, tag_field="type", tag="input_audio"):
    pass


_Content: TypeAlias = _InputText | _OutputText | _PlainText | _Refusal | _Image | _File | _Audio


class _Message(msgspec.Struct, tag_field="type", tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_Content] | None = None


class _Call(msgspec.Struct, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str


class _CallOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str | list[_Content]


class _Thought(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class _Summary(msgspec.Struct, tag_field="type", tag="summary_text"):
    text: str


class _Reasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    summary: list[_Summary] = []
    content: list[_Thought] | None = None
    encrypted_content: str | None = None


_Known: TypeAlias = _Message | _Call | _CallOutput | _Reasoning


def kept(raw: str | list[Item], new_id: Callable[[str], str]) -> list[Item]:
    """Return the items of a request's input as they are kept. Raises BadRequest naming the item.

    Text is one message of the user's. Ids and statuses that are missing or null are filled in.
    """
    if isinstance(raw, str):
        raw = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": raw}]}]
    items = []
    for at, given in enumerate(raw):
        item = {key: value for key, value in given.items() if value is not None}
        kind = item.setdefault("type", "message")
        if not isinstance(kind, str) or kind not in PREFIXES:
            raise invalid(f"input[{at}].type", f"there is no item {str(kind)[:60]!r} here")
        check_free(item, f"input[{at}]")
        read(item, f"input[{at}]")
        item.setdefault("id", new_id(PREFIXES[kind]))
        if kind != "reasoning":
            item.setdefault("status", "completed")
        if kind == "message" and isinstance(item.get("content"), str):
            text = "output_text" if item["role"] == "assistant" else "input_text"
            item["content"] = [{"type": text, "text": item["content"]}]
        items.append(item)
    return items


def read(item: Item, where: str) -> _Known:
    """Return an item, checked. Raises BadRequest naming the field."""
    try:
        found: _Known = msgspec.convert(item, _Known)
        return found
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        path = place.rstrip("`").replace("[...]", "")
        raise invalid(f"{where}{path}", reason.replace("`", "")) from None


def messages(items: Iterable[Item], instructions: str | None, *, album: Album | None) -> tuple[Message, ...]:
    """Return the turns of a conversation. Raises BadRequest naming the item (by its place in `items`).

    Thoughts and calls belong to the assistant's turn that follows or precedes them: one turn holds the
    thought, the text and all calls, as models were trained to read it.
    """
    turns: list[Message] = []
    if instructions:
        turns.append(Message(role="system", content=instructions))
    thought: list[str] = []
    for at, item in enumerate(items):
        where = f"input[{at}]"
        match read(item, where):
            case _Reasoning() as known:
                thought += [part.text for part in known.content or known.summary]
            case _Call(call_id=id, name=name, arguments=arguments):
                call = ToolCall(id=id, name=name, arguments=arguments)
                last = turns[-1] if turns else None
                if last is not None and last.role == "assistant" and not thought:
                    turns[-1] = msgspec.structs.replace(last, tool_calls=(*last.tool_calls, call))
                else:
                    turns.append(Message(role="assistant", tool_calls=(call,), reasoning=_joined(thought)))
                    thought = []
            case _CallOutput(call_id=id, output=output):
                content = _content(output, f"{where}.output", "tool", album)
                turns.append(Message(role="tool", tool_call_id=id, content=content))
                thought = []
            case _Message(role=role, content=parts):
                if parts is None or parts == []:
                    raise invalid(f"{where}.content", f"a message of the {role} needs content")
                content = _content(parts, f"{where}.content", role, album)
                if role == "assistant":
                    turns.append(Message(role="assistant", content=content, reasoning=_joined(thought)))
                else:
                    # Models know "system" only; OpenAI's newer name means the same.
                    turns.append(Message(role="user" if role == "user" else "system", content=content))
                thought = []
    _check_calls(turns)
    return tuple(turns)


def _joined(thought: list[str]) -> str | None:
    return "\n".join(thought) or None


def _content(
    content: str | list[_Content], where: str, role: str, album: Album | None
) -> str | tuple[Part, ...]:
    """Return content as tasks carry it: plain text where there is nothing else."""
    if isinstance(content, str):
        return content
    parts = tuple(_part(part, f"{where}[{at}]", role, album) for at, part in enumerate(content))
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return parts


def _part(part: _Content, where: str, role: str, album: Album | None) -> Part:
    match part:
        case _InputText(text=text) | _OutputText(text=text) | _PlainText(text=text):
            return TextPart(text=text)
        case _Refusal(refusal=text):
            return TextPart(text=text)
        case _Image(image_url=url):
            if role not in ("user", "tool"):
                raise invalid(f"{where}.type", f"pictures go into messages of the user, not of the {role}")
            if url is None:
                raise unsupported(f"{where}.file_id", "there are no files here; send image_url")
            if album is None:
                raise unsupported(f"{where}.image_url", "this model does not see images")
            return album.part(url, f"{where}.image_url")
        case _File():
            raise unsupported(f"{where}.type", "input_file: messages hold text and images")
        case _Audio():
            raise unsupported(f"{where}.type", "input_audio: messages hold text and images")


def _check_calls(turns: list[Message]) -> None:
    """Refuse an output without its call: templates make nonsense of it."""
    known = {call.id for turn in turns for call in turn.tool_calls}
    for turn in turns:
        if turn.role == "tool" and turn.tool_call_id not in known:
            raise BadRequest(
                f"No tool call found for function call output with call_id {str(turn.tool_call_id)[:80]}.",
                code="invalid_value",
                param="input",
            )

"""Conversations made fit for a chat template: strict ones, and ones that know no tools."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from modeld.protocol.tasks import Message, Part, TextPart, ToolCall

Content = str | tuple[Part, ...]

_BLANK_LINE = "\n\n"


def prepare(
    messages: Iterable[Message], *, tools_as_text: bool, late_system: bool, extra: str = ""
) -> tuple[Message, ...]:
    """Return the conversation as the template can take it.

    `tools_as_text`: the template knows no tools; calls become `<tool_call>` text, results `<tool_response>`
    text in the user's name. `late_system`: system messages may stand anywhere; else they are merged in front.
    `extra` is appended to the first system message, which is made where there is none. Content that is text
    only is a plain string; it is None only beside tool calls the template renders itself.
    """
    plain = [_plain(message) for message in messages]
    if tools_as_text:
        plain = _without_tools(plain)
    if not late_system:
        plain = _system_first(plain)
    if extra:
        plain = _with_extra(plain, extra)
    return tuple(plain)


def _plain(message: Message) -> Message:
    content = message.content
    if content is None:
        content = None if message.tool_calls else ""
    elif not isinstance(content, str):
        content = _joined(content)
    return msgspec.structs.replace(message, content=content)


def _joined(parts: tuple[Part, ...]) -> Content:
    """One string where every part is text; a line each, as llama.cpp and vLLM do it."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _append(content: Content | None, text: str, between: str) -> Content:
    if not content:
        return text
    if isinstance(content, str):
        return content + between + text
    return (*content, TextPart(text=between + text))


def _merge(first: Content | None, second: Content | None, between: str) -> Content:
    if not second:
        return first or ""
    if isinstance(second, str):
        return _append(first, second, between)
    head = () if not first else (TextPart(text=first + between),) if isinstance(first, str) else first
    return (*head, *second)


def _system_first(messages: list[Message]) -> list[Message]:
    system = [message for message in messages if message.role == "system"]
    if not system:
        return messages
    content: Content = ""
    for message in system:
        content = _merge(content, message.content, _BLANK_LINE)
    head = msgspec.structs.replace(system[0], content=content)
    return [head, *(message for message in messages if message.role != "system")]


def _with_extra(messages: list[Message], extra: str) -> list[Message]:
    if messages and messages[0].role == "system":
        head = messages[0]
        return [
            msgspec.structs.replace(head, content=_append(head.content, extra, _BLANK_LINE)),
            *messages[1:],
        ]
    return [Message(role="system", content=extra), *messages]


def _without_tools(messages: list[Message]) -> list[Message]:
    result: list[Message] = []
    after_response = False
    for message in messages:
        if message.role == "tool":
            response = _response(message.content or "")
            if after_response:
                last = result[-1]
                merged = _merge(last.content, response, "\n")
                result[-1] = msgspec.structs.replace(last, content=merged)
            else:
                result.append(Message(role="user", content=response))
            after_response = True
            continue
        after_response = False
        if message.tool_calls:
            text = "\n".join(_call(call) for call in message.tool_calls)
            content = _append(message.content, text, "\n")
            message = msgspec.structs.replace(message, content=content, tool_calls=())
        result.append(message)
    return result


def _response(content: Content) -> Content:
    if isinstance(content, str):
        return f"<tool_response>\n{content}\n</tool_response>"
    return (TextPart(text="<tool_response>\n"), *content, TextPart(text="\n</tool_response>"))


def _call(call: ToolCall) -> str:
    """Write a past call as the model would have; arguments that are no JSON become a JSON string."""
    arguments = call.arguments.strip() or "{}"
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'

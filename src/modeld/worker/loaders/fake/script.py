"""What the scripted model does, and which part of it a request brings on. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from modeld.ids import new_id
from modeld.protocol.tasks import ChatTask, Message, Reasoning, Text, TextPart, ToolCallDelta

PIECE = 8
"""Characters of a call's arguments in one event."""


class Call(msgspec.Struct, frozen=True):
    """A call of the tool `name`; an object of arguments becomes JSON text, a text goes out as it is."""

    name: str
    arguments: dict[str, Any] | str = {}


class Step(msgspec.Struct, frozen=True):
    """One thing to do in a turn; exactly one of the fields is set."""

    text: str | None = None
    reasoning: str | None = None
    call: Call | None = None
    delay: float | None = None
    finish: Literal["stop", "length", "tool_calls", "content_filter"] | None = None
    fail: str | None = None
    crash: bool = False
    hang: bool = False


class Script(msgspec.Struct, frozen=True):
    """What the fake does; delays in seconds, counts in tokens."""

    reply: str | None = None
    tokens: int = 16
    turns: tuple[tuple[Step, ...], ...] = ()
    context_length: int = 4096
    first_delay: float = 0.0
    token_delay: float = 0.0
    load_seconds: float = 0.0
    load_steps: int = 1
    load_error: str | None = None
    load_error_permanent: bool = True
    load_crash: bool = False
    load_hang: bool = False
    load_until: str | None = None
    memory: int = 0
    slots: int = 64
    fail_after: int | None = None
    crash_after: int | None = None
    hang_after: int | None = None
    ignore_term: bool = False
    ignore_cancel: bool = False
    junk_stdout: bool = False


Token: TypeAlias = Text | Reasoning | ToolCallDelta
"""One token of the fake's: a word, or a piece of a call."""


def turn_of(script: Script, task: ChatTask) -> tuple[Step, ...]:
    """Return the turn that a conversation has come to, with the calls that its request allows.

    It is the one whose number is that of the assistant's messages since the user last spoke, or the last.
    Left out are calls of tools that the task does not offer, which no model could make, calls of others than
    the one forced, and all but the first where calls may not be parallel.
    """
    number = 0
    for message in reversed(task.messages):
        if message.role == "user":
            break
        number += message.role == "assistant"
    choice = task.tool_choice
    offered = {tool.name for tool in task.tools if choice.mode != "function" or tool.name == choice.name}
    if choice.mode == "none":
        offered = set()
    steps: list[Step] = []
    calls = 0
    for step in script.turns[min(number, len(script.turns) - 1)]:
        if step.call is not None:
            if step.call.name not in offered or (calls and not task.parallel_tool_calls):
                continue
            calls += 1
        steps.append(step)
    return tuple(steps)


def tokens_of(step: Step, call: int, index: int) -> Iterator[Token]:
    """Give what a step has to say, in choice `index`; `call` is the number of the call it may make."""
    if step.text is not None:
        for word in words(step.text):
            yield Text(word, index)
    if step.reasoning is not None:
        for word in words(step.reasoning):
            yield Reasoning(word, index)
    if step.call is not None:
        arguments = step.call.arguments
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield ToolCallDelta(call, "", new_id("call_"), step.call.name, index)
        for at in range(0, len(written), PIECE):
            yield ToolCallDelta(call, written[at : at + PIECE], index=index)


def words(text: str) -> list[str]:
    """Return the tokens of a text; joined, they are the text."""
    parts = text.split(" ")
    return [part + " " for part in parts[:-1]] + [last for last in parts[-1:] if last]


def prompt_tokens(task: ChatTask) -> int:
    """Return the length of a chat's prompt: the words of all its messages and tools; a picture is one."""
    count = sum(_message_tokens(message) for message in task.messages)
    for tool in task.tools:
        count += len(f"{tool.name} {tool.description or ''}".split())
        if tool.parameters is not None:
            count += len(json.dumps(tool.parameters).split())
    return count


def _message_tokens(message: Message) -> int:
    said = [message.reasoning or ""]
    pictures = 0
    if isinstance(message.content, str):
        said.append(message.content)
    for part in message.content if isinstance(message.content, tuple) else ():
        if isinstance(part, TextPart):
            said.append(part.text)
        else:
            pictures += 1
    for call in message.tool_calls:
        said += [call.name, call.arguments]
    return pictures + sum(len(text.split()) for text in said)

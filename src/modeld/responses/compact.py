"""Compaction: a conversation in short, written by the model itself and sealed. Pure.

What the user said stays word for word; all else becomes one `compaction` item, which only this machine can
read, and which is a turn of the system's when it comes back as input (`turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from modeld.errors import EngineError
from modeld.protocol.tasks import ChatTask, Event, Message, Part, Sampling, Text, TextPart, Usage
from modeld.responses.inputs import PREFIXES, Item
from modeld.responses.items import InputTokensDetails, OutputTokensDetails, ResponseUsage

KIND = "compaction"
"""What a summary is sealed as."""

REQUEST = (
    "Write a summary of this conversation for whoever carries it on in your place and sees nothing else of "
    "it. Say what the user wants, and what they and your instructions lay down; what has been done and found "
    "out, with the names, numbers, paths and other details that will be needed again, also those that tools "
    "gave; what is decided; and what is still to be done. Take over what an earlier summary says. "
    "Do not answer the user and do not call tools: write the summary only."
)
"""What the model is asked at the end of the conversation."""

SHARE = 4
"""One part in so many of the context is what a summary may have."""

SHORTEST, LONGEST = 512, 4096
"""Tokens that a summary may have at least and at most: thoughts of the model's count among them."""


def longest(context_length: int | None) -> int:
    """Return how many tokens a summary may have in a context of so many; None where that is not known."""
    if context_length is None:
        return SHORTEST
    return max(min(context_length // SHARE, LONGEST), min(SHORTEST, context_length // 2), 1)


def plan(messages: tuple[Message, ...], *, context_length: int | None = None) -> ChatTask:
    """Return the task whose answer is the summary of a conversation, instructions and all.

    The conversation comes first and as it was, so that what the engine still has of it is used again.
    """
    turns = messages
    if turns and turns[-1].role == "user":
        # Two turns of the user's in a row are what some templates refuse.
        last = turns[-1]
        turns = (*turns[:-1], msgspec.structs.replace(last, content=_with_request(last.content)))
    else:
        turns = (*turns, Message(role="user", content=REQUEST))
    return ChatTask(messages=turns, sampling=Sampling(max_tokens=longest(context_length)))


def _with_request(content: str | tuple[Part, ...] | None) -> str | tuple[Part, ...]:
    if isinstance(content, tuple):
        return (*content, TextPart(text=f"\n\n{REQUEST}"))
    return f"{content}\n\n{REQUEST}" if content else REQUEST


def summary(events: Iterable[Event]) -> tuple[str, Usage]:
    """Return the summary that a task of `plan`'s was answered with, and its cost. Raises EngineError.

    One that is cut off where it may not be longer is a summary all the same.
    """
    said: list[str] = []
    usage: Usage | None = None
    for event in events:
        if isinstance(event, Text):
            said.append(event.text)
        elif isinstance(event, Usage):
            usage = event
    text = "".join(said).strip()
    if usage is None:
        raise EngineError("the engine ended the call without finishing its answer", code="incomplete_answer")
    if not text:
        raise EngineError(
            f"the model wrote no summary in {usage.completion_tokens} tokens; try again, with another model, "
            "or with fewer items",
            code="no_summary",
        )
    return text, usage


def items(
    conversation: Iterable[Item], text: str, seal: Callable[[str], str], new_id: Callable[[str], str]
) -> list[Item]:
    """Return the items that go on in place of a conversation: what the user said, and the sealed summary.

    `seal` seals a text as a KIND for the caller.
    """
    said = [item for item in conversation if item["type"] == "message" and item.get("role") == "user"]
    return [
        *said,
        {"type": "compaction", "id": new_id(PREFIXES["compaction"]), "encrypted_content": seal(text)},
    ]


def compacted(output: list[Item], usage: Usage, *, id: str, created: int) -> dict[str, Any]:
    """Return the body of the answer, OpenAI's `response.compaction`; `created` in seconds since the epoch."""
    tokens = ResponseUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        InputTokensDetails(usage.cached_tokens),
        OutputTokensDetails(usage.reasoning_tokens),
    )
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": created,
        "output": output,
        "usage": msgspec.to_builtins(tokens),
    }

"""The stream events of a response, as structs; each is one server-sent event that is named by its type."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from modeld.gateway.encoding import dumps
from modeld.gateway.sse import escape_separators
from modeld.responses.items import OutputItem, Response


class _Event(msgspec.Struct, tag_field="type", kw_only=True):
    """`sequence_number` starts at 0 and has no gaps over the whole response."""

    sequence_number: int


class _Lifecycle(_Event):
    response: Response


class Created(_Lifecycle, tag="response.created"):
    """The first event."""


class Queued(_Lifecycle, tag="response.queued"):
    """It waits; background only."""


class InProgress(_Lifecycle, tag="response.in_progress"):
    """Work has begun."""


class Completed(_Lifecycle, tag="response.completed"):
    """A last event: all is well."""


class IncompleteEvent(_Lifecycle, tag="response.incomplete"):
    """A last event: the answer was cut short."""


class Failed(_Lifecycle, tag="response.failed"):
    """A last event: there is no answer, or only a part of one."""


class ItemAdded(_Event, tag="response.output_item.added"):
    """An item begins, with nothing in it."""

    output_index: int
    item: OutputItem


class ItemDone(_Event, tag="response.output_item.done"):
    """An item is complete."""

    output_index: int
    item: OutputItem


class _Content(_Event):
    item_id: str
    output_index: int
    content_index: int


class PartAdded(_Content, tag="response.content_part.added"):
    """A part of an item begins."""

    part: Any


class PartDone(_Content, tag="response.content_part.done"):
    """A part is complete."""

    part: Any


class TextDelta(_Content, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[dict[str, Any]]


class TextDone(_Content, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[dict[str, Any]]


class ReasoningDelta(_Content, tag="response.reasoning_text.delta"):
    """More of a thought."""

    delta: str


class ReasoningDone(_Content, tag="response.reasoning_text.done"):
    """The whole thought."""

    text: str


class ArgumentsDelta(_Event, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, tag="response.function_call_arguments.done"):
    """The whole arguments."""

    item_id: str
    output_index: int
    name: str
    arguments: str


Lifecycle: TypeAlias = Created | Queued | InProgress | Completed | IncompleteEvent | Failed
StreamEvent: TypeAlias = (
    Lifecycle
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)

TERMINAL = (Completed, IncompleteEvent, Failed)
"""Exactly one of these ends a stream."""


def frame(event: StreamEvent) -> bytes:
    """Return an event as it is sent, in one piece."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: %b\ndata: %b\n\n" % (name, escape_separators(dumps(event)))

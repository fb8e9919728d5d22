"""The stream events of a response; each is one JSON text, and a server-sent event named by its type.

Most are structs as they are sent. Deltas come once for each token, so all that does not change between those
of an item is encoded once, in a `Place`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from modeld.gateway.encoding import dumps, quote
from modeld.gateway.sse import escape_separators
from modeld.responses.items import Logprob, OutputItem, Response


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
    """A last event: the answer was cut short, or cancelled (there is no event of that name)."""


class Failed(_Lifecycle, tag="response.failed"):
    """A last event: there is no answer, or only a part of one."""


class ErrorEvent(_Event, tag="error"):
    """What went wrong, told twice: flat as SDKs type it, and nested as OpenAI sends it."""

    code: str | None
    message: str
    param: str | None
    error: dict[str, str | None]


class ItemAdded(_Event, tag="response.output_item.added"):
    """An item begins, with nothing in it."""

    output_index: int
    item: OutputItem


class ItemDone(_Event, tag="response.output_item.done"):
    """An item is complete."""

    output_index: int
    item: OutputItem


class _OfItem(_Event):
    item_id: str
    output_index: int


class _Content(_OfItem):
    content_index: int


class PartAdded(_Content, tag="response.content_part.added"):
    """A part of an item begins."""

    part: Any


class PartDone(_Content, tag="response.content_part.done"):
    """A part is complete."""

    part: Any


class TextDone(_Content, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[Logprob]


class ReasoningDone(_Content, tag="response.reasoning_text.done"):
    """The whole thought."""

    text: str


class _Summary(_OfItem):
    summary_index: int


class SummaryPartAdded(_Summary, tag="response.reasoning_summary_part.added"):
    """A part of a summary begins."""

    part: Any


class SummaryPartDone(_Summary, tag="response.reasoning_summary_part.done"):
    """A part of a summary is complete; `status` is "incomplete" where it was cut, else left out."""

    part: Any
    status: Literal["incomplete"] | UnsetType = UNSET


class SummaryDone(_Summary, tag="response.reasoning_summary_text.done"):
    """The whole part of the summary."""

    text: str


class ArgumentsDone(_OfItem, tag="response.function_call_arguments.done"):
    """The whole arguments."""

    name: str
    arguments: str


class McpArgumentsDone(_OfItem, tag="response.mcp_call_arguments.done"):
    """The whole arguments."""

    arguments: str


class McpCallInProgress(_OfItem, tag="response.mcp_call.in_progress"):
    """A tool of a server is being run."""


class McpCallCompleted(_OfItem, tag="response.mcp_call.completed"):
    """The tool has answered."""


class McpCallFailed(_OfItem, tag="response.mcp_call.failed"):
    """The tool has no answer."""


class McpListInProgress(_OfItem, tag="response.mcp_list_tools.in_progress"):
    """A server is asked for its tools."""


class McpListCompleted(_OfItem, tag="response.mcp_list_tools.completed"):
    """The tools are known."""


class McpListFailed(_OfItem, tag="response.mcp_list_tools.failed"):
    """The tools are not known."""


class Place:
    """Where deltas of one kind go: an item, and the part of it. `head` ends where the number begins."""

    __slots__ = ("head", "item_id", "output_index")

    def __init__(self, kind: type[Delta], item_id: str, output_index: int) -> None:
        self.item_id = item_id
        self.output_index = output_index
        self.head = b'{"type":"%b","item_id":%b,"output_index":%d%b,"sequence_number":' % (
            kind.type.encode(),
            quote(item_id),
            output_index,
            kind.part,
        )


class Delta(msgspec.Struct, gc=False):
    """A piece of what an item holds."""

    type: ClassVar[str]
    part: ClassVar[bytes] = b',"content_index":0'

    sequence_number: int
    delta: str
    place: Place

    @property
    def item_id(self) -> str:
        """The item's id."""
        return self.place.item_id

    @property
    def output_index(self) -> int:
        """The item's place in the output."""
        return self.place.output_index


class TextDelta(Delta):
    """More text; `logprobs` are [] when nobody asked for them."""

    type = "response.output_text.delta"

    logprobs: list[Logprob]


class ReasoningDelta(Delta):
    """More of a thought."""

    type = "response.reasoning_text.delta"


class SummaryDelta(Delta):
    """More of a summary."""

    type = "response.reasoning_summary_text.delta"
    part = b',"summary_index":0'


class ArgumentsDelta(Delta):
    """More of a call's arguments."""

    type = "response.function_call_arguments.delta"
    part = b""


class McpArgumentsDelta(Delta):
    """The arguments of a call at a server: all of them in one piece."""

    type = "response.mcp_call_arguments.delta"
    part = b""


Terminal: TypeAlias = Completed | IncompleteEvent | Failed
StreamEvent: TypeAlias = _Event | Delta

TERMINAL = (Completed, IncompleteEvent, Failed)
"""Exactly one of these ends a stream."""


def payload(event: StreamEvent) -> bytes:
    """Return an event's JSON text, its type first, on one line whatever a client takes for the end of one."""
    if isinstance(event, Delta):
        place = event.place
        if type(event) is not TextDelta:
            return b'%b%d,"delta":%b}' % (place.head, event.sequence_number, quote(event.delta))
        if not event.logprobs:
            return b'%b%d,"delta":%b,"logprobs":[]}' % (place.head, event.sequence_number, quote(event.delta))
        logprobs = escape_separators(dumps(event.logprobs))
        return b'%b%d,"delta":%b,"logprobs":%b}' % (
            place.head,
            event.sequence_number,
            quote(event.delta),
            logprobs,
        )
    return escape_separators(dumps(event))


def framed(json: bytes) -> bytes:
    """Return what `payload` gave as a server-sent event, in one piece."""
    return b"event: %b\ndata: %b\n\n" % (json[9 : json.index(b'"', 9)], json)


def frame(event: StreamEvent) -> bytes:
    """Return an event as a server-sent event, in one piece."""
    return framed(payload(event))

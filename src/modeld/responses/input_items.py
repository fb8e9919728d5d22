"""The items that may be sent, as structs: what is checked of them, and read out of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from modeld.gateway.decoding import invalid

Item: TypeAlias = dict[str, Any]
"""An item as kept: JSON, whose type and id are known."""

Id: TypeAlias = Annotated[str, Meta(max_length=512)]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    """Text of anybody but the model."""

    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str
    annotations: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None


class PlainText(msgspec.Struct, tag_field="type", tag="text"):
    """Text of anybody, as older clients send it."""

    text: str


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    """The model's words when it refused."""

    refusal: str


class Image(msgspec.Struct, tag_field="type", tag="input_image"):
    """A picture."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class File(msgspec.Struct, tag_field="type", tag="input_file"):
    """A file; known so that it can be refused by its name."""


class Audio(msgspec.Struct, tag_field="type", tag="input_audio"):
    """A recording; known so that it can be refused by its name."""


Content: TypeAlias = InputText | OutputText | PlainText | Refusal | Image | File | Audio


class _Item(msgspec.Struct, tag_field="type"):
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class Message(_Item, tag="message", kw_only=True):
    """What somebody says."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Content] | None = None


class Call(_Item, tag="function_call", kw_only=True):
    """A call that the model made and the caller ran."""

    call_id: Id
    name: str
    arguments: str


class CallOutput(_Item, tag="function_call_output", kw_only=True):
    """What came of it."""

    call_id: Id
    output: str | list[Content]


class _Thought(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class _Summary(msgspec.Struct, tag_field="type", tag="summary_text"):
    text: str


class Reasoning(_Item, tag="reasoning", kw_only=True):
    """What the model thought."""

    summary: list[_Summary] = []
    content: list[_Thought] | None = None
    encrypted_content: str | None = None


class _Listed(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


class McpListTools(_Item, tag="mcp_list_tools", kw_only=True):
    """What a server offered."""

    server_label: str
    tools: list[_Listed]
    error: str | None = None


class McpCall(msgspec.Struct, tag_field="type", tag="mcp_call", kw_only=True):
    """A call that modeld made at a server."""

    server_label: str
    name: str
    arguments: str
    id: Id | None = None
    approval_request_id: Id | None = None
    output: str | None = None
    error: dict[str, Any] | str | None = None
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"] | None = None


class McpApprovalRequest(_Item, tag="mcp_approval_request", kw_only=True):
    """A call that waited for the caller's word."""

    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(_Item, tag="mcp_approval_response", kw_only=True):
    """The caller's word."""

    approval_request_id: Id
    approve: bool
    reason: str | None = None


class Compaction(_Item, tag="compaction", kw_only=True):
    """A conversation in short, sealed."""

    encrypted_content: str


class Reference(_Item, tag="item_reference", kw_only=True):
    """An item that is kept already."""

    id: Annotated[str, Meta(min_length=1, max_length=512)]


Known: TypeAlias = (
    Message
    | Call
    | CallOutput
    | Reasoning
    | McpListTools
    | McpCall
    | McpApprovalRequest
    | McpApprovalResponse
    | Compaction
    | Reference
)


def read(item: Item, where: str) -> Known:
    """Return an item, checked. Raises BadRequest naming the field."""
    try:
        found: Known = msgspec.convert(item, Known)
        return found
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        path = place.rstrip("`").replace("[...]", "")
        raise invalid(f"{where}{path}", reason.replace("`", "")) from None

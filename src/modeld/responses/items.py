"""The items of a response, and the response itself: the shapes of OpenAI's Responses API as structs.

Optional fields that are always sent have a default; those that are left out when empty say so.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

Status: TypeAlias = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class AnyLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token and the natural logarithm of its probability; `bytes` are its text's in UTF-8."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class Logprob(AnyLogprob, frozen=True, gc=False):
    """That of a token that was chosen, with the best alternatives."""

    top_logprobs: tuple[AnyLogprob, ...] = ()


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """A piece of an answer. `logprobs` are [] when nobody asked for them."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[Logprob] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """A piece of a thought."""

    text: str = ""


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    """A piece of a thought's summary."""

    text: str = ""


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thinks: in `summary` where that was asked for, else in `content`.

    `encrypted_content` is there only where it was asked for.
    """

    id: str
    status: ItemStatus = "in_progress"
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    encrypted_content: str | UnsetType = UNSET


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function that the caller is to run; `arguments` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "in_progress"


class McpListTools(msgspec.Struct, tag_field="type", tag="mcp_list_tools"):
    """What an MCP server offers; `error` says why that is not known, and is left out where it is.

    Never null: the Vercel AI SDK refuses that.
    """

    id: str
    server_label: str
    tools: list[dict[str, Any]] = []
    error: str | UnsetType = UNSET


class McpCall(msgspec.Struct, tag_field="type", tag="mcp_call"):
    """A tool that modeld ran at an MCP server.

    `error` is one of mcp_protocol_error, mcp_tool_execution_error and http_error; then there is no output.
    """

    id: str
    server_label: str
    name: str
    arguments: str = ""
    approval_request_id: str | None = None
    output: str | None = None
    error: dict[str, Any] | None = None
    status: ItemStatus | Literal["failed"] = "in_progress"


class McpApprovalRequest(msgspec.Struct, tag_field="type", tag="mcp_approval_request"):
    """A call that waits until the caller allows it."""

    id: str
    server_label: str
    name: str
    arguments: str


class Compaction(msgspec.Struct, tag_field="type", tag="compaction"):
    """A conversation in short, which only modeld can read."""

    id: str
    encrypted_content: str


OutputItem: TypeAlias = (
    OutputMessage | ReasoningItem | FunctionCall | McpListTools | McpCall | McpApprovalRequest | Compaction
)


class InputTokensDetails(msgspec.Struct):
    """`cache_write_tokens` is always 0 here."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """Tokens of thoughts among those of the output."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of all turns of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


ErrorCode: TypeAlias = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
"""Of OpenAI's closed list, what can happen here."""


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: ErrorCode
    message: str


class Incomplete(msgspec.Struct):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class Response(msgspec.Struct, kw_only=True):
    """The object: every key that OpenAI's document and the Open Responses schema require, and no fewer.

    Of the other keys, those without a value are left out.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | list[Any] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[Any] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: dict[str, str] | UnsetType = UNSET
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | UnsetType = UNSET
    metadata: dict[str, str] = {}

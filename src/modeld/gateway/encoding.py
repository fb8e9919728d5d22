"""What the encoders of chat and completions share: JSON text, log probabilities, usage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from modeld.errors import EngineError
from modeld.gateway.sse import escape_separators
from modeld.protocol.tasks import Event, TokenLogprob, Usage

LEAST_LOGPROB = -9999.0
"""What OpenAI sends for a token of no probability; JSON has no minus infinity."""

dumps = msgspec.json.Encoder().encode
"""Encode to JSON text."""


class ChunkEncoder(Protocol):
    """Turns the events of one call into server-sent events."""

    usage: Usage | None

    def encode(self, events: Sequence[Event]) -> list[bytes]:
        """Return the server-sent events for these events, each whole."""
        ...

    def end(self) -> list[bytes]:
        """Return what follows the last event, [DONE] not included. Raises EngineError."""
        ...


class Collector(Protocol):
    """Gathers the events of one call into a single answer."""

    usage: Usage | None

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        ...

    def body(self) -> bytes:
        """Return the answer's JSON text. Raises EngineError."""
        ...


def quote(text: str) -> bytes:
    """Return text as a JSON string that no client takes for two lines."""
    json = dumps(text)
    return json if text.isascii() else escape_separators(json)


def sse_frame(before: bytes, value: bytes, after: bytes) -> bytes:
    """Return one server-sent event around a value; for what is not sent for every token."""
    return b"data: " + before + escape_separators(value) + after + b"\n\n"


def finite(logprob: float) -> float:
    """Return a log probability that JSON can hold."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return chat's `logprobs.content`."""
    return [
        {
            "token": token.token,
            "logprob": finite(token.logprob),
            "bytes": token.bytes,
            "top_logprobs": [
                {"token": top.token, "logprob": finite(top.logprob), "bytes": top.bytes} for top in token.top
            ],
        }
        for token in tokens
    ]


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def unfinished(index: int) -> EngineError:
    """Return the error for an engine that ended a call in the middle of a choice."""
    return EngineError(
        f"the engine ended the call without finishing choice {index}", code="incomplete_answer"
    )

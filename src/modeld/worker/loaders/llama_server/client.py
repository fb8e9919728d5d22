"""HTTP to the llama.cpp server: one fresh connection for each request, answers always streamed.

Pooled connections are not used: llama.cpp closes kept-alive ones in a way that races with the next request.
Answers are streamed even when the caller wants one piece, because the engine notices a reader's leaving only
while it streams; a whole answer would be generated to its end for nobody.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from modeld.errors import BadRequest, EngineError, ModeldError, ModelUnavailable, WorkerDied
from modeld.worker.loaders.llama_server.connection import Connection

T = TypeVar("T")

UNREADABLE = "invalid_image"
"""Code of the error for a picture that the engine's decoder refuses."""


class TooLong(BadRequest):
    """A request of more tokens than fit: it has `given`, `limit` fit."""

    def __init__(self, given: int, limit: int) -> None:
        super().__init__(
            f"the request has {given} tokens, the model's context holds {limit}; shorten it, or raise n_ctx",
            code="context_length_exceeded",
            param="messages",
        )
        self.given, self.limit = given, limit


class TopLogprob(msgspec.Struct):
    """llama.cpp's alternative token."""

    token: str
    logprob: float | None
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """llama.cpp's chosen token."""

    top_logprobs: list[TopLogprob] = []


class Logprobs(msgspec.Struct):
    """`choices[].logprobs`, in the chat shape for both endpoints."""

    content: list[TokenLogprob] | None = None


class FunctionDelta(msgspec.Struct):
    """`tool_calls[].function`."""

    name: str | None = None
    arguments: str | None = None


class ToolDelta(msgspec.Struct):
    """`delta.tool_calls[]`."""

    index: int = 0
    id: str | None = None
    function: FunctionDelta = msgspec.field(default_factory=FunctionDelta)


class Delta(msgspec.Struct):
    """`choices[].delta`."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolDelta] | None = None


class Choice(msgspec.Struct):
    """One choice of a chunk; `delta` from chat, `text` from completions."""

    delta: Delta = msgspec.field(default_factory=Delta)
    text: str = ""
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int = 0


class EngineUsage(msgspec.Struct):
    """`usage`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class EngineFault(msgspec.Struct):
    """`error`."""

    message: str = ""
    type: str = ""
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class Chunk(msgspec.Struct):
    """What of a stream's `data:` line matters here."""

    choices: list[Choice] = []
    usage: EngineUsage | None = None
    error: EngineFault | None = None


class _Errors(msgspec.Struct):
    error: EngineFault


_chunk = msgspec.json.Decoder(Chunk)
_error = msgspec.json.Decoder(_Errors)
_encode = msgspec.json.Encoder().encode


class Client:
    """Requests to one engine."""

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)

    async def healthy(self) -> bool:
        """Tell whether the engine has loaded and answers."""
        try:
            async with self._request("GET", "/health", b"") as answer:
                return answer.status == 200
        except OSError:
            return False

    async def fetch(self, method: str, path: str, body: Any = None) -> Any:
        """Return the decoded JSON answer. Raises the engine's error as a ModeldError."""
        try:
            async with self._request(method, path, _encode(body) if body is not None else b"") as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise _refusal(answer.status, text)
                return msgspec.json.decode(text)
        except OSError as error:
            raise _broken(error) from error
        except msgspec.MsgspecError as error:
            raise EngineError(f"the engine's answer to {path} cannot be read: {error}") from error

    async def ask(self, path: str, body: Any, kind: type[T]) -> T:
        """Post `body` and return the answer as `kind`. Raises as `fetch` does."""
        answer = await self.fetch("POST", path, body)
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:
            raise EngineError(f"the engine's answer to {path} cannot be read: {error}") from error

    @asynccontextmanager
    async def stream(
        self, path: str, body: Any, pictures: Sequence[str] = ()
    ) -> AsyncIterator[AsyncIterator[Chunk]]:
        """Post `body` and give the answer's chunks; leaving the block stops the engine's work.

        `pictures`: where the body has some; the engine does not say which of them it cannot read.
        Raises BadRequest for what the engine refuses as the caller's fault, EngineError for its own, and
        WorkerDied when the connection breaks before the end.
        """
        try:
            async with self._request("POST", path, _encode(body)) as answer:
                if answer.status != 200:
                    refusal = _refusal(answer.status, await answer.read())
                    if refusal.code == UNREADABLE and len(pictures) == 1:
                        refusal.param = pictures[0]
                    raise refusal
                yield _chunks(answer)
        except OSError as error:
            raise _broken(error) from error
        except msgspec.MsgspecError as error:
            raise EngineError(f"the engine sent a chunk that cannot be read: {error}") from error

    def _request(self, method: str, path: str, body: bytes) -> Connection:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return Connection(self._socket, head.encode(), body)


async def _chunks(answer: Connection) -> AsyncIterator[Chunk]:
    rest = b""
    async for data in answer:
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                if event == b"data: [DONE]":
                    return
                chunk = _chunk.decode(memoryview(event)[6:])
                if chunk.error is not None:
                    raise _fault(500, chunk.error)
                yield chunk
            elif event.startswith(b"error: "):
                raise _refusal(500, event[7:])
    raise WorkerDied("the engine ended its answer without saying so")


def _broken(error: OSError) -> WorkerDied:
    return WorkerDied(f"the connection to the engine broke: {error}")


def _refusal(status: int, text: bytes) -> ModeldError:
    try:
        fault = _error.decode(text).error
    except msgspec.MsgspecError:
        fault = EngineFault(text[:500].decode("utf-8", "replace"))
    return _fault(status, fault)


def _fault(status: int, fault: EngineFault) -> ModeldError:
    message = fault.message.strip() or f"the engine answered HTTP {status} without a word"
    if fault.type == "exceed_context_size_error":
        if fault.n_prompt_tokens and fault.n_ctx:
            return TooLong(fault.n_prompt_tokens, fault.n_ctx)
        return BadRequest(
            f"{message}; shorten it, or raise n_ctx", code="context_length_exceeded", param="messages"
        )
    if batch := _OVER_BATCH.search(message):
        return TooLong(int(batch[1]), int(batch[2]))
    if status == 503:
        return ModelUnavailable(f"the engine is not ready: {message}")
    if 400 <= status < 500 and "JSON schema" in message:
        return BadRequest(
            f"the engine cannot enforce this JSON schema: {message.rpartition('JSON schema error ')[2]}",
            code="invalid_json_schema",
            param="response_format",
        )
    if 400 <= status < 500 and "failed to parse grammar" in message:
        return BadRequest(
            f"the engine cannot read the grammar: {message}; it is to be GBNF",
            code="invalid_grammar",
            param="grammar",
        )
    if 400 <= status < 500 and "load image" in message:
        return BadRequest(
            "the engine cannot read a picture of this request: it is damaged, or of an unusual kind",
            code=UNREADABLE,
            param="messages",
        )
    if 400 <= status < 500:
        return BadRequest(message, code="engine_refused")
    if any(word in message for word in _TEMPLATE_WORDS):
        return BadRequest(
            f"the model's chat template refuses these messages: {message}",
            code="template_error",
            param="messages",
        )
    return EngineError(message)


_OVER_BATCH = re.compile(r"input \((\d+) tokens\) is too large to process.*batch size: (\d+)", re.DOTALL)
"""llama.cpp answers 500 when an input to embed does not fit into one physical batch."""

_TEMPLATE_WORDS = ("Jinja", "jinja", "template", "raise_exception")
"""llama.cpp answers 500 when a chat template raises; it is the request's fault, known by these words."""

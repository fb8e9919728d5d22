"""From the chunks that vLLM's serving layer streams to events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from modeld.errors import EngineError
from modeld.ids import new_id
from modeld.protocol.tasks import (
    Finish,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from modeld.worker.tools import ParserFactory

Out: TypeAlias = Text | Reasoning | ToolCallDelta | Finish

FLOOR = -9999.0
"""What OpenAI writes for a token that could not come."""


class _Top(msgspec.Struct):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None


class _Entry(_Top):
    top_logprobs: list[_Top] = []


class _Logprobs(msgspec.Struct):
    """Of both endpoints: `content` from chat, the rest from completions."""

    content: list[_Entry] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta = msgspec.field(default_factory=_Delta)
    text: str = ""
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class Fault(msgspec.Struct):
    """`error`."""

    message: str = ""
    code: int | str | None = 500
    param: str | None = None

    @property
    def status(self) -> int:
        """The HTTP status it would have had."""
        return self.code if isinstance(self.code, int) else 500


class Chunk(msgspec.Struct):
    """What of a stream's `data:` line matters here."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Fault | None = None


_decode = msgspec.json.Decoder(Chunk).decode


def decode(line: str) -> Chunk | None:
    """Read one line of a stream; None for its end and for what is no data. Raises EngineError."""
    data = line.strip()
    if not data.startswith("data:"):
        return None
    data = data[5:].strip()
    if data == "[DONE]":
        return None
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise EngineError(f"vLLM sent a chunk that cannot be read: {error}") from error


class _State:
    def __init__(self, parser: Any) -> None:
        self.parser = parser
        self.calls: dict[int, int] = {}
        self.finished = False


class Translator:
    """Translates the stream of one request with `n` choices, the first of which is the task's number `first`.

    `top`: how many alternatives were asked for, None for no log probabilities. `parser`: makes each choice's
    parser of calls, None where text is text.
    """

    def __init__(self, n: int, top: int | None, parser: ParserFactory | None = None, first: int = 0) -> None:
        self._top = top
        self._states = [_State(parser(first + index) if parser is not None else None) for index in range(n)]
        self._first = first
        self.usage = Usage(0, 0)

    def events(self, chunk: Chunk) -> list[Out]:
        """Return the events of one chunk. Raises EngineError for what an answer cannot hold."""
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        out: list[Out] = []
        for choice in chunk.choices:
            if not 0 <= choice.index < len(self._states):
                raise EngineError(f"vLLM answered for choice {choice.index} of {len(self._states)}")
            out += self._of_choice(choice)
        return out

    def unfinished(self) -> bool:
        """Say whether a choice has not come to its end."""
        return not all(state.finished for state in self._states)

    def _of_choice(self, choice: _Choice) -> list[Out]:
        state, index = self._states[choice.index], self._first + choice.index
        if state.finished:
            return []
        out: list[Out] = []
        if choice.delta.reasoning:
            out.append(Reasoning(choice.delta.reasoning, index))
        text = choice.delta.content or choice.text
        found = logprobs(choice.logprobs, self._top)
        if choice.finish_reason == "stop" and found and not text.endswith(found[-1].token):
            found = found[:-1]  # the token that ended the answer, and is no text of it
        # Tokens of thoughts and calls have log probabilities too; only those of text go out.
        if text or (found and not choice.delta.reasoning and not choice.delta.tool_calls):
            if state.parser is not None:
                out += state.parser.feed(text, found)
            else:
                out.append(Text(text, index, found))
        out += self._native(choice.delta.tool_calls or (), state, index)
        if choice.finish_reason is not None:
            out += self._finish(choice.finish_reason, state, index)
        return out

    def _native(self, calls: Sequence[_Call], state: _State, index: int) -> list[Out]:
        out: list[Out] = []
        for call in calls:
            function = call.function or _Function()
            arguments = function.arguments or ""
            if call.index not in state.calls:
                if not function.name:
                    continue  # a parser that has only seen a call's beginning
                number = state.calls[call.index] = len(state.calls)
                identity = call.id or new_id("call_")
                out.append(ToolCallDelta(number, arguments, identity, function.name, index))
            elif arguments:
                out.append(ToolCallDelta(state.calls[call.index], arguments, index=index))
        return out

    def _finish(self, reason: str, state: _State, index: int) -> list[Out]:
        state.finished = True
        out: list[Out] = []
        called = bool(state.calls)
        if state.parser is not None:
            out += state.parser.finish()
            if state.parser.strayed and not state.parser.called and reason == "stop":
                raise EngineError(
                    "the engine did not keep to the schema that forces a tool call, and answered in prose"
                )
            called = called or state.parser.called
        if reason in ("abort", "error"):
            raise EngineError(f"vLLM gave the request up (finish reason {reason})")
        if reason in ("length", "content_filter"):
            out.append(Finish("length" if reason == "length" else "content_filter", index))
        else:
            out.append(Finish("tool_calls" if called else "stop", index))
        return out


def _usage(wire: _Usage) -> Usage:
    cached = wire.prompt_tokens_details.cached_tokens if wire.prompt_tokens_details else 0
    thoughts = wire.completion_tokens_details.reasoning_tokens if wire.completion_tokens_details else 0
    written = wire.completion_tokens or 0
    return Usage(wire.prompt_tokens, written, cached or 0, min(thoughts or 0, written))


def logprobs(wire: _Logprobs | None, top: int | None) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities of a chunk with at most `top` alternatives; none when not asked for."""
    if wire is None or top is None:
        return ()
    if wire.content is not None:
        return tuple(
            TokenLogprob(
                entry.token,
                _number(entry.logprob),
                _bytes(entry.bytes),
                tuple(
                    TopLogprob(other.token, _number(other.logprob), _bytes(other.bytes))
                    for other in entry.top_logprobs[:top]
                ),
            )
            for entry in wire.content
        )
    chosen = wire.token_logprobs or []
    others = wire.top_logprobs or []
    return tuple(
        TokenLogprob(
            token,
            # The first token of an echoed prompt follows nothing, so it has no probability of its own.
            _number(chosen[at]) if at < len(chosen) and (chosen[at] is not None or at) else 0.0,
            _encoded(token),
            _best(others[at] if at < len(others) else None, top),
        )
        for at, token in enumerate(wire.tokens or ())
    )


def _best(found: dict[str, float | None] | None, top: int) -> tuple[TopLogprob, ...]:
    pairs = sorted(((_number(value), token) for token, value in (found or {}).items()), reverse=True)
    return tuple(TopLogprob(token, value, _encoded(token)) for value, token in pairs[:top])


def _number(value: float | None) -> float:
    return FLOOR if value is None else max(value, FLOOR)


def _bytes(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _encoded(token: str) -> tuple[int, ...] | None:
    # Half a character was decoded to the replacement character, and its bytes are lost.
    return None if "�" in token else tuple(token.encode("utf-8", "replace"))

"""Events to `text_completion` chunks, or to one `text_completion`. Pure: events in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from modeld.gateway.encoding import dumps, finite, quote, sse_frame, unfinished, usage_body
from modeld.protocol.tasks import Event, Finish, Text, TokenLogprob, Usage


@dataclass(slots=True)
class _Logprobs:
    """Collects completions' own shape; `offset` counts characters of the choice's text so far."""

    top: int
    offset: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[str, float]] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        for token in tokens:
            self.tokens.append(token.token)
            self.token_logprobs.append(finite(token.logprob))
            best = {top.token: finite(top.logprob) for top in token.top}
            # The chosen token is always among them, so there may be one more than asked for.
            best.setdefault(token.token, finite(token.logprob))
            self.top_logprobs.append(best)
            self.text_offset.append(self.offset)
            self.offset += len(token.token)

    def body(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs if self.top else None,
            "text_offset": self.text_offset,
        }


def _finish(reason: str) -> str:
    return "stop" if reason == "tool_calls" else reason  # this API knows no tools


class CompletionChunks:
    """Encodes one streamed answer; `top_logprobs` as in the task."""

    def __init__(
        self, *, id: str, created: int, model: str, n: int, include_usage: bool, top_logprobs: int | None
    ) -> None:
        self.usage: Usage | None = None
        self._n = n
        self._include_usage = include_usage
        self._top = top_logprobs
        self._head = (
            b'{"id":%b,"object":"text_completion","created":%d,"model":%b,"system_fingerprint":null,'
            b'"choices":[' % (quote(id), created, quote(model))
        )
        self._tail = b'],"usage":null}' if include_usage else b"]}"
        self._text_after = b',"logprobs":null,"finish_reason":null}' + self._tail + b"\n\n"
        self._before = [b"data: " + self._head + b'{"index":%d,"text":' % index for index in range(n)]
        self._offsets = [0] * n
        self._finished: set[int] = set()

    def encode(self, events: Sequence[Event]) -> list[bytes]:
        """Return the server-sent events for these events, each whole."""
        out: list[bytes] = []
        before, after = self._before, self._text_after
        for event in events:
            if type(event) is Text:
                if event.logprobs and self._top is not None:
                    out.append(self._with_logprobs(event, self._top))
                elif event.text:
                    out.append(before[event.index] + quote(event.text) + after)
            elif type(event) is Usage:
                self.usage = event
            elif type(event) is Finish:
                self._finished.add(event.index)
                out.append(self._chunk(event.index, "", None, _finish(event.reason)))
        return out

    def end(self) -> list[bytes]:
        """Return the usage chunk if it was asked for. Raises EngineError for a choice without a finish."""
        for index in range(self._n):
            if index not in self._finished:
                raise unfinished(index)
        if not self._include_usage or self.usage is None:
            return []
        return [sse_frame(self._head + b'],"usage":', dumps(usage_body(self.usage)), b"}")]

    def _with_logprobs(self, event: Text, top: int) -> bytes:
        logprobs = _Logprobs(top, self._offsets[event.index])
        logprobs.add(event.logprobs)
        self._offsets[event.index] = logprobs.offset
        return self._chunk(event.index, event.text, logprobs.body(), None)

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return sse_frame(self._head, dumps(choice), self._tail)


@dataclass(slots=True)
class _Choice:
    logprobs: _Logprobs
    text: list[str] = field(default_factory=list)
    finish: str | None = None


class CompletionCollector:
    """Gathers one answer that is not streamed; `top_logprobs` as in the task."""

    def __init__(self, *, id: str, created: int, model: str, n: int, top_logprobs: int | None) -> None:
        self.usage: Usage | None = None
        self._id, self._created, self._model = id, created, model
        self._wanted = top_logprobs is not None
        self._choices = [_Choice(_Logprobs(top_logprobs or 0)) for _ in range(n)]

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            match event:
                case Text():
                    choice = self._choices[event.index]
                    choice.text.append(event.text)
                    choice.logprobs.add(event.logprobs)
                case Finish():
                    self._choices[event.index].finish = _finish(event.reason)
                case Usage():
                    self.usage = event
                case _:
                    pass  # thinking and tool calls have no place in this API

    def body(self) -> bytes:
        """Return the `text_completion`. Raises EngineError for a choice without a finish."""
        choices = []
        for index, choice in enumerate(self._choices):
            if choice.finish is None:
                raise unfinished(index)
            choices.append(
                {
                    "index": index,
                    "text": "".join(choice.text),
                    "logprobs": choice.logprobs.body() if self._wanted else None,
                    "finish_reason": choice.finish,
                }
            )
        return dumps(
            {
                "id": self._id,
                "object": "text_completion",
                "created": self._created,
                "model": self._model,
                "system_fingerprint": None,
                "choices": choices,
                "usage": None if self.usage is None else usage_body(self.usage),
            }
        )

"""Events to `chat.completion.chunk`s, or to one `chat.completion`. Pure: events in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from modeld.gateway.encoding import chat_logprobs, dumps, quote, sse_frame, unfinished, usage_body
from modeld.protocol.tasks import Event, Finish, Reasoning, Text, TokenLogprob, ToolCallDelta, Usage


class ChatChunks:
    """Encodes one streamed answer.

    All that does not change between chunks is made once; for a token of plain text one string is quoted and
    three pieces are joined.
    """

    def __init__(self, *, id: str, created: int, model: str, n: int, include_usage: bool) -> None:
        self.usage: Usage | None = None
        self._n = n
        self._include_usage = include_usage
        self._head = (
            b'{"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"system_fingerprint":null,'
            b'"choices":[' % (quote(id), created, quote(model))
        )
        self._tail = b'],"usage":null}' if include_usage else b"]}"
        self._text_after = b'},"logprobs":null,"finish_reason":null}' + self._tail + b"\n\n"
        self._before: dict[int, bytes] = {}  # by choice: everything up to the quoted text
        self._finished: set[int] = set()

    def encode(self, events: Sequence[Event]) -> list[bytes]:
        """Return the server-sent events for these events, each whole."""
        out: list[bytes] = []
        before, after = self._before, self._text_after
        for event in events:
            if type(event) is Text:
                head = before.get(event.index) or self._open(event.index, out)
                if event.logprobs:
                    out.append(self._with_logprobs(event))
                elif event.text:
                    out.append(head + quote(event.text) + after)
            elif type(event) is Usage:
                self.usage = event
            else:
                self._other(event, out)
        return out

    def end(self) -> list[bytes]:
        """Return the usage chunk if it was asked for. Raises EngineError for a choice without a finish."""
        for index in range(self._n):
            if index not in self._finished:
                raise unfinished(index)
        if not self._include_usage or self.usage is None:
            return []
        return [sse_frame(self._head + b'],"usage":', dumps(usage_body(self.usage)), b"}")]

    def _open(self, index: int, out: list[bytes], content: str | None = "") -> bytes:
        """Begin a choice: its first chunk carries the role; `content` is null before a tool call."""
        head = self._before[index] = b"data: " + self._head + b'{"index":%d,"delta":{"content":' % index
        out.append(self._delta(index, {"role": "assistant", "content": content}))
        return head

    def _delta(
        self, index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return sse_frame(self._head, dumps(choice), self._tail)

    def _with_logprobs(self, event: Text) -> bytes:
        logprobs = {"content": chat_logprobs(event.logprobs), "refusal": None}
        return self._delta(event.index, {"content": event.text}, logprobs)

    def _other(self, event: Event, out: list[bytes]) -> None:
        assert isinstance(event, Text | Reasoning | ToolCallDelta | Finish), type(event)
        if event.index not in self._before:
            self._open(event.index, out, None if isinstance(event, ToolCallDelta) else "")
        match event:
            case Reasoning():
                if event.text:
                    out.append(self._delta(event.index, {"reasoning_content": event.text}))
            case ToolCallDelta():
                out.append(self._delta(event.index, {"tool_calls": [_tool_delta(event)]}))
            case Finish():
                self._finished.add(event.index)
                out.append(self._delta(event.index, {}, finish=event.reason))


def _tool_delta(event: ToolCallDelta) -> dict[str, Any]:
    if event.id is None and event.name is None:
        return {"index": event.call, "function": {"arguments": event.arguments}}
    return {
        "index": event.call,
        "id": event.id,
        "type": "function",
        "function": {"name": event.name, "arguments": event.arguments},
    }


@dataclass(slots=True)
class _Call:
    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    finish: str | None = None

    def message(self) -> dict[str, Any]:
        text = "".join(self.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not text else text,
            "refusal": None,
        }
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for _, call in sorted(self.calls.items())
            ]
        return message


class ChatCollector:
    """Gathers one answer that is not streamed."""

    def __init__(self, *, id: str, created: int, model: str, n: int, logprobs: bool) -> None:
        self.usage: Usage | None = None
        self._id, self._created, self._model, self._logprobs = id, created, model, logprobs
        self._choices = [_Choice() for _ in range(n)]

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            match event:
                case Text():
                    choice = self._choices[event.index]
                    choice.text.append(event.text)
                    choice.logprobs.extend(event.logprobs)
                case Reasoning():
                    self._choices[event.index].reasoning.append(event.text)
                case ToolCallDelta():
                    call = self._choices[event.index].calls.setdefault(event.call, _Call())
                    call.id = event.id if call.id is None else call.id
                    call.name = event.name if call.name is None else call.name
                    call.arguments.append(event.arguments)
                case Finish():
                    self._choices[event.index].finish = event.reason
                case Usage():
                    self.usage = event

    def body(self) -> bytes:
        """Return the `chat.completion`. Raises EngineError for a choice without a finish."""
        choices = []
        for index, choice in enumerate(self._choices):
            if choice.finish is None:
                raise unfinished(index)
            logprobs = (
                {"content": chat_logprobs(choice.logprobs), "refusal": None} if self._logprobs else None
            )
            choices.append(
                {
                    "index": index,
                    "message": choice.message(),
                    "logprobs": logprobs,
                    "finish_reason": choice.finish,
                }
            )
        return dumps(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "system_fingerprint": None,
                "choices": choices,
                "usage": None if self.usage is None else usage_body(self.usage),
            }
        )

"""From the events of an engine to those of a response. Pure: the one place that knows the order.

created, (queued,) in_progress, then items one after the other: an item is opened when its first piece comes
and closed before the next is opened, then exactly one last event. Several turns of an engine may make one
response: `turn` begins another, and usage adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from modeld.gateway.encoding import finite
from modeld.protocol.tasks import (
    Event,
    Finish,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from modeld.responses import events as e
from modeld.responses.items import (
    FunctionCall,
    Incomplete,
    InputTokensDetails,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseUsage,
)

NewId = Callable[[str], str]
"""`ids.new_id`, or a test's own."""


class Translator:
    """One response on its way. `response` is its state after the last event returned."""

    def __init__(self, response: Response, new_id: NewId) -> None:
        self.response = response
        self.over = False
        self._new_id = new_id
        self._number = 0
        self._open: OutputItem | None = None
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._call: int | None = None
        self._reason: str | None = None

    def begin(self, *, queued: bool = False) -> list[e.StreamEvent]:
        """Return the first events: created, and queued or in_progress."""
        out: list[e.StreamEvent] = [e.Created(sequence_number=self._next(), response=self._snapshot())]
        if queued:
            out.append(e.Queued(sequence_number=self._next(), response=self._snapshot()))
            return out
        return out + self.progress()

    def progress(self) -> list[e.StreamEvent]:
        """Return in_progress: work has begun."""
        self.response.status = "in_progress"
        return [e.InProgress(sequence_number=self._next(), response=self._snapshot())]

    def turn(self) -> list[e.StreamEvent]:
        """Begin another turn of the engine; return what closes the item that the last one left open."""
        out: list[e.StreamEvent] = []
        self._close(out)
        self._reason = None
        return out

    def feed(self, events: Iterable[Event]) -> list[e.StreamEvent]:
        """Return the stream events for these events of the engine."""
        out: list[e.StreamEvent] = []
        for event in events:
            if type(event) is Text:
                if event.text or event.logprobs:
                    self._text(event, out)
            elif type(event) is Reasoning:
                if event.text:
                    self._thought(event.text, out)
            elif type(event) is ToolCallDelta:
                self._arguments(event, out)
            elif type(event) is Finish:
                self._reason = event.reason
            elif type(event) is Usage:
                self._count(event)
        return out

    @property
    def calls(self) -> list[FunctionCall]:
        """The calls made so far, the open one not included."""
        return [item for item in self.response.output if isinstance(item, FunctionCall)]

    @property
    def finished(self) -> bool:
        """Whether the engine has said how its turn ended."""
        return self._reason is not None

    def complete(self, now: int) -> list[e.StreamEvent]:
        """Return the last events of a response that went well, or was cut short by its limit of tokens."""
        out: list[e.StreamEvent] = []
        cut = self._reason in ("length", "content_filter")
        self._close(out, "incomplete" if cut else "completed")
        if cut:
            self.response.status = "incomplete"
            self.response.incomplete_details = Incomplete(
                "max_output_tokens" if self._reason == "length" else "content_filter"
            )
            return self._last(out, e.IncompleteEvent)
        self.response.status, self.response.completed_at = "completed", now
        return self._last(out, e.Completed)

    def fail(self, code: str, message: str) -> list[e.StreamEvent]:
        """Return the last events of a response that failed: what is open is closed as incomplete."""
        out: list[e.StreamEvent] = []
        self._close(out, "incomplete")
        self.response.status, self.response.error = "failed", ResponseError(code, message)
        return self._last(out, e.Failed)

    # items

    def _text(self, event: Text, out: list[e.StreamEvent]) -> None:
        item = self._open
        if type(item) is not OutputMessage:
            item = OutputMessage(self._new_id("msg_"))
            self._add(item, out)
            out.append(
                e.PartAdded(
                    sequence_number=self._next(),
                    item_id=item.id,
                    output_index=self._at,
                    content_index=0,
                    part=OutputText(),
                )
            )
        logprobs = _logprobs(event.logprobs) if event.logprobs else []
        self._pieces.append(event.text)
        self._logprobs += logprobs
        out.append(
            e.TextDelta(
                sequence_number=self._next(),
                item_id=item.id,
                output_index=self._at,
                content_index=0,
                delta=event.text,
                logprobs=logprobs,
            )
        )

    def _thought(self, text: str, out: list[e.StreamEvent]) -> None:
        item = self._open
        if type(item) is not ReasoningItem:
            item = ReasoningItem(self._new_id("rs_"))
            self._add(item, out)
            out.append(
                e.PartAdded(
                    sequence_number=self._next(),
                    item_id=item.id,
                    output_index=self._at,
                    content_index=0,
                    part=ReasoningText(),
                )
            )
        self._pieces.append(text)
        out.append(
            e.ReasoningDelta(
                sequence_number=self._next(),
                item_id=item.id,
                output_index=self._at,
                content_index=0,
                delta=text,
            )
        )

    def _arguments(self, event: ToolCallDelta, out: list[e.StreamEvent]) -> None:
        item = self._open
        if type(item) is not FunctionCall or event.call != self._call:
            item = FunctionCall(self._new_id("fc_"), event.id or self._new_id("call_"), event.name or "")
            self._add(item, out)
            self._call = event.call
        if event.arguments:
            self._pieces.append(event.arguments)
            out.append(
                e.ArgumentsDelta(
                    sequence_number=self._next(),
                    item_id=item.id,
                    output_index=self._at,
                    delta=event.arguments,
                )
            )

    def _add(self, item: OutputItem, out: list[e.StreamEvent]) -> None:
        self._close(out)
        self._open, self._at = item, len(self.response.output)
        out.append(
            e.ItemAdded(
                sequence_number=self._next(), output_index=self._at, item=msgspec.structs.replace(item)
            )
        )

    def _close(self, out: list[e.StreamEvent], status: ItemStatus = "completed") -> None:
        """Close the open item, if there is one: its parts' done events, then its own."""
        item = self._open
        if item is None:
            return
        text, at = "".join(self._pieces), self._at
        match item:
            case OutputMessage(id=id):
                part = OutputText(text, [], self._logprobs)
                item.content = [part]
                out += [
                    e.TextDone(
                        sequence_number=self._next(),
                        item_id=id,
                        output_index=at,
                        content_index=0,
                        text=text,
                        logprobs=self._logprobs,
                    ),
                    e.PartDone(
                        sequence_number=self._next(), item_id=id, output_index=at, content_index=0, part=part
                    ),
                ]
            case ReasoningItem(id=id):
                thought = ReasoningText(text)
                item.content = [thought]
                out += [
                    e.ReasoningDone(
                        sequence_number=self._next(), item_id=id, output_index=at, content_index=0, text=text
                    ),
                    e.PartDone(
                        sequence_number=self._next(),
                        item_id=id,
                        output_index=at,
                        content_index=0,
                        part=thought,
                    ),
                ]
            case FunctionCall(id=id):
                item.arguments = text
                out.append(
                    e.ArgumentsDone(
                        sequence_number=self._next(),
                        item_id=id,
                        output_index=at,
                        name=item.name,
                        arguments=text,
                    )
                )
        item.status = status
        self.response.output = [*self.response.output, item]
        out.append(e.ItemDone(sequence_number=self._next(), output_index=at, item=item))
        self._open, self._pieces, self._logprobs, self._call = None, [], [], None

    def _count(self, usage: Usage) -> None:
        before = self.response.usage
        read = usage.prompt_tokens + (before.input_tokens if before else 0)
        made = usage.completion_tokens + (before.output_tokens if before else 0)
        cached = usage.cached_tokens + (before.input_tokens_details.cached_tokens if before else 0)
        thought = usage.reasoning_tokens + (before.output_tokens_details.reasoning_tokens if before else 0)
        self.response.usage = ResponseUsage(
            read, made, read + made, InputTokensDetails(cached), OutputTokensDetails(thought)
        )

    def _last(
        self, out: list[e.StreamEvent], kind: type[e.Completed | e.IncompleteEvent | e.Failed]
    ) -> list[e.StreamEvent]:
        self.over = True
        out.append(kind(sequence_number=self._next(), response=self._snapshot()))
        return out

    def _snapshot(self) -> Response:
        return msgspec.structs.replace(self.response)

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number


def _logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return log probabilities as a part carries them: with bytes, which are a list here and never null."""
    return [{**_one(token), "top_logprobs": [_one(top) for top in token.top]} for token in tokens]


def _one(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    data = token.bytes if token.bytes is not None else tuple(token.token.encode("utf-8", "surrogatepass"))
    return {"token": token.token, "logprob": finite(token.logprob), "bytes": data}

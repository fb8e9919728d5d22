"""How items are opened and closed: the events around their pieces, and what they hold. Pure.

`translator` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from modeld.gateway.encoding import finite
from modeld.protocol.tasks import TokenLogprob, TopLogprob, Usage
from modeld.responses import events as e
from modeld.responses.items import (
    AnyLogprob,
    FunctionCall,
    InputTokensDetails,
    ItemStatus,
    Logprob,
    McpCall,
    McpListTools,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseUsage,
    SummaryText,
)

Number = Callable[[], int]
"""Gives the next sequence number."""


def opened(
    item: OutputItem, at: int, number: Number, *, summarised: bool = False
) -> tuple[list[e.StreamEvent], e.Place | None]:
    """Return what opens an item in place `at` of the output, and the place of the deltas that follow.

    `summarised`: a thought is shown as a summary.
    """
    # A copy, because the item itself is filled in later.
    added = e.ItemAdded(sequence_number=number(), output_index=at, item=msgspec.structs.replace(item))
    id = item.id
    match item:
        case OutputMessage():
            part = _part_added(id, at, OutputText(), number)
            return [added, part], e.Place(e.TextDelta, id, at)
        case ReasoningItem() if summarised:
            summary = e.SummaryPartAdded(
                sequence_number=number(), item_id=id, output_index=at, summary_index=0, part=SummaryText()
            )
            return [added, summary], e.Place(e.SummaryDelta, id, at)
        case ReasoningItem():
            part = _part_added(id, at, ReasoningText(), number)
            return [added, part], e.Place(e.ReasoningDelta, id, at)
        case FunctionCall():
            return [added], e.Place(e.ArgumentsDelta, id, at)
        case McpListTools():
            return [added, e.McpListInProgress(sequence_number=number(), item_id=id, output_index=at)], None
        case McpCall():
            begun = e.McpCallInProgress(sequence_number=number(), item_id=id, output_index=at)
            return [added, begun], e.Place(e.McpArgumentsDelta, id, at)
        case _:
            return [added], None


def _part_added(id: str, at: int, part: OutputText | ReasoningText, number: Number) -> e.PartAdded:
    return e.PartAdded(sequence_number=number(), item_id=id, output_index=at, content_index=0, part=part)


def closed(
    item: OutputItem,
    at: int,
    text: str,
    logprobs: list[Logprob],
    status: ItemStatus,
    number: Number,
    *,
    summarised: bool = False,
) -> list[e.StreamEvent]:
    """Fill in an item from all its pieces, joined, and return what closes it, its own done event last."""
    out: list[e.StreamEvent] = []
    id = item.id
    match item:
        case OutputMessage():
            said = OutputText(text, [], logprobs)
            item.content, item.status = [said], status
            out = [
                e.TextDone(
                    sequence_number=number(),
                    item_id=id,
                    output_index=at,
                    content_index=0,
                    text=text,
                    logprobs=logprobs,
                ),
                _part_done(id, at, said, number),
            ]
        case ReasoningItem() if summarised:
            summary = SummaryText(text)
            item.summary, item.status = [summary], status
            out = [
                e.SummaryDone(
                    sequence_number=number(), item_id=id, output_index=at, summary_index=0, text=text
                ),
                e.SummaryPartDone(
                    sequence_number=number(),
                    item_id=id,
                    output_index=at,
                    summary_index=0,
                    part=summary,
                    status=msgspec.UNSET if status == "completed" else "incomplete",
                ),
            ]
        case ReasoningItem():
            thought = ReasoningText(text)
            item.content, item.status = [thought], status
            out = [
                e.ReasoningDone(
                    sequence_number=number(), item_id=id, output_index=at, content_index=0, text=text
                ),
                _part_done(id, at, thought, number),
            ]
        case FunctionCall(name=name):
            item.arguments, item.status = text, status
            out = [
                e.ArgumentsDone(
                    sequence_number=number(), item_id=id, output_index=at, name=name, arguments=text
                )
            ]
        case McpListTools(error=error):
            ended = e.McpListCompleted if error is msgspec.UNSET else e.McpListFailed
            out = [ended(sequence_number=number(), item_id=id, output_index=at)]
        case McpCall(error=error):
            item.status = "failed" if error is not None else status
            over = e.McpCallCompleted if item.status == "completed" else e.McpCallFailed
            out = [over(sequence_number=number(), item_id=id, output_index=at)]
    return [*out, e.ItemDone(sequence_number=number(), output_index=at, item=item)]


def _part_done(id: str, at: int, part: OutputText | ReasoningText, number: Number) -> e.PartDone:
    return e.PartDone(sequence_number=number(), item_id=id, output_index=at, content_index=0, part=part)


def summed(before: ResponseUsage | None, usage: Usage) -> ResponseUsage:
    """Return the tokens of a response after one more turn."""
    read, made = usage.prompt_tokens, usage.completion_tokens
    cached, thought = usage.cached_tokens, usage.reasoning_tokens
    if before is not None:
        read, made = read + before.input_tokens, made + before.output_tokens
        cached += before.input_tokens_details.cached_tokens
        thought += before.output_tokens_details.reasoning_tokens
    return ResponseUsage(read, made, read + made, InputTokensDetails(cached), OutputTokensDetails(thought))


def logprobs(tokens: Sequence[TokenLogprob]) -> list[Logprob]:
    """Return log probabilities as a part carries them: with bytes, which are a list here and never null."""
    return [
        Logprob(
            token.token,
            finite(token.logprob),
            _bytes(token),
            tuple([AnyLogprob(top.token, finite(top.logprob), _bytes(top)) for top in token.top]),
        )
        for token in tokens
    ]


def _bytes(token: TokenLogprob | TopLogprob) -> tuple[int, ...]:
    return token.bytes if token.bytes is not None else tuple(token.token.encode("utf-8", "surrogatepass"))

"""From the events of an engine to those of a response. Pure: the one place that knows the order.

created, (queued,) in_progress, then items one after the other: an item is opened when its first piece comes
and closed before the next is opened, then exactly one last event. Several turns of an engine may make one
response; between them stand the calls that modeld itself makes at MCP servers.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Container, Iterable
from typing import Any

import msgspec

from modeld.protocol.tasks import Event, Finish, Reasoning, Text, ToolCallDelta, Usage
from modeld.responses import building
from modeld.responses import events as e
from modeld.responses.items import (
    ErrorCode,
    FunctionCall,
    Incomplete,
    ItemStatus,
    Logprob,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    OutputItem,
    OutputMessage,
    ReasoningItem,
    Response,
    ResponseError,
)

NewId = Callable[[str], str]
"""`ids.new_id`, or a test's own."""

INTERRUPTED = "the response ended before the server answered"
"""The error of a list of tools that never came."""

_CODES = frozenset(typing.get_args(ErrorCode))


class HeldCall(msgspec.Struct, frozen=True):
    """A call of a server's tool, as the model made it; `arguments` is JSON text, not checked."""

    call_id: str
    name: str
    arguments: str


class Translator:
    """One response on its way.

    `response` is its state after the last event returned; `over`: its last event was made. `calls` are the
    function calls of this turn that the caller is to run. `summarised`: thoughts are shown as summaries.
    `seal` encrypts a whole thought, where that was asked for; it must not raise. `remote`: names of functions
    that are tools of MCP servers; their calls make no events and wait in `take_held`.

    Every turn is fed, then settled or turned; then come the calls at servers, and the next turn or the end.
    """

    def __init__(
        self,
        response: Response,
        new_id: NewId,
        *,
        summarised: bool = False,
        seal: Callable[[str], str] | None = None,
        remote: Container[str] = (),
    ) -> None:
        self.response = response
        self.over = False
        self.reason: str | None = None
        self.calls: list[FunctionCall] = []
        self._new_id = new_id
        self._summarised = summarised
        self._seal = seal
        self._remote = remote
        self._number = 0
        self._begun = False
        self._turned = False
        self._item: OutputItem | None = None
        self._at = 0
        self._place: e.Place | None = None
        self._pieces: list[str] = []
        self._logprobs: list[Logprob] = []
        self._call: int | None = None
        self._holding: HeldCall | None = None
        self._held: list[HeldCall] = []

    # the beginning

    def begin(self, *, queued: bool = False) -> list[e.StreamEvent]:
        """Return the first events: created, and queued or in_progress."""
        self.response.status = "queued" if queued else "in_progress"
        out: list[e.StreamEvent] = [e.Created(sequence_number=self._next(), response=self._snapshot())]
        if queued:
            return [*out, e.Queued(sequence_number=self._next(), response=self._snapshot())]
        return out + self.progress()

    def progress(self) -> list[e.StreamEvent]:
        """Return in_progress: work has begun. Nothing when that was said before."""
        if self._begun:
            return []
        self._begun = True
        self.response.status = "in_progress"
        return [e.InProgress(sequence_number=self._next(), response=self._snapshot())]

    # what the engine says

    def feed(self, events: Iterable[Event]) -> list[e.StreamEvent]:
        """Return the stream events for these events of the engine; the first ones begin a turn."""
        out: list[e.StreamEvent] = []
        for event in events:
            if self._turned:
                self._turned, self.calls = False, []
            kind = type(event)
            if kind is Text:
                if event.text or event.logprobs:  # type: ignore[union-attr]
                    self._text(event, out)  # type: ignore[arg-type]
            elif isinstance(event, Reasoning):
                if event.text:
                    self._thought(event.text, out)
            elif isinstance(event, ToolCallDelta):
                self._arguments(event, out)
            elif isinstance(event, Finish):
                self.reason = event.reason
            elif isinstance(event, Usage):
                self.response.usage = building.summed(self.response.usage, event)
        return out

    def settle(self) -> list[e.StreamEvent]:
        """Return what closes the item that is open: as incomplete where the engine was cut short.

        Of a turn that was cut short no held call is left, because its arguments may have been cut too.
        """
        cut = self.reason in ("length", "content_filter")
        out: list[e.StreamEvent] = []
        self._close(out, "incomplete" if cut else "completed")
        if cut:
            self._held = []
        return out

    def turn(self) -> list[e.StreamEvent]:
        """Settle, and forget how the turn ended: what is fed next is another one."""
        out = self.settle()
        self.reason, self._turned = None, True
        return out

    def take_held(self) -> list[HeldCall]:
        """Return the calls of servers' tools that the model has made; each is returned once."""
        held, self._held = self._held, []
        return held

    # what MCP servers say

    def list_begin(self, label: str) -> list[e.StreamEvent]:
        """Return what says that a server is asked for its tools."""
        out: list[e.StreamEvent] = []
        self._open(McpListTools(self._new_id("mcpl_"), label), out)
        return out

    def list_end(self, tools: list[dict[str, Any]], error: str | None = None) -> list[e.StreamEvent]:
        """Return what says that the server has told its tools, or why it has not."""
        item = self._item
        assert isinstance(item, McpListTools), item
        item.tools, item.error = tools, msgspec.UNSET if error is None else error
        return self.settle()

    def call_begin(
        self, label: str, name: str, arguments: str, approval_request_id: str | None = None
    ) -> list[e.StreamEvent]:
        """Return what says that a server's tool is run. `name` is the server's own name of it."""
        out: list[e.StreamEvent] = []
        item = McpCall(self._new_id("mcp_"), label, name, approval_request_id=approval_request_id)
        place = self._open(item, out)
        item.arguments = arguments
        out.append(e.McpArgumentsDelta(self._next(), arguments, place))
        out.append(
            e.McpArgumentsDone(
                sequence_number=self._next(), item_id=item.id, output_index=self._at, arguments=arguments
            )
        )
        return out

    def call_end(self, output: str | None, error: dict[str, Any] | None) -> list[e.StreamEvent]:
        """Return what says that the tool has answered, or failed with this typed error."""
        item, out = self._item, list[e.StreamEvent]()
        assert isinstance(item, McpCall), item
        item.output, item.error = output, error
        self._close(out)
        return out

    def approval(self, label: str, name: str, arguments: str) -> list[e.StreamEvent]:
        """Return what asks the caller to allow a call; the item is the last of the output then."""
        out: list[e.StreamEvent] = []
        self._open(McpApprovalRequest(self._new_id("mcpr_"), label, name, arguments), out)
        self._close(out)
        return out

    # the end

    def finish(self, now: int) -> e.Terminal:
        """Return the last event of a response that went well, or that its limit of tokens cut short.

        Everything is settled by then.
        """
        assert self._item is None, self._item
        if self.reason in ("length", "content_filter"):
            self.response.status = "incomplete"
            self.response.incomplete_details = Incomplete(
                "max_output_tokens" if self.reason == "length" else "content_filter"
            )
            return self._last(e.IncompleteEvent)
        self.response.status, self.response.completed_at = "completed", now
        return self._last(e.Completed)

    def fail(self, code: str, message: str, now: int) -> list[e.StreamEvent]:
        """Return the last events of a response that failed: what is open is closed as incomplete.

        A last event that was made before, and not sent, is replaced. A code that is not one of OpenAI's
        becomes server_error.
        """
        out = self._break_off()
        known: Any = code if code in _CODES else "server_error"
        self.response.status, self.response.error = "failed", ResponseError(known, message)
        return [*out, self._last(e.Failed)]

    def cancel(self, now: int) -> list[e.StreamEvent]:
        """Return the last events of a response that somebody has cancelled.

        There is no event of that name: it ends as incomplete, with the status cancelled.
        """
        out = self._break_off()
        self.response.status = "cancelled"
        return [*out, self._last(e.IncompleteEvent)]

    def error(self, code: str | None, message: str, param: str | None, type: str) -> list[e.StreamEvent]:
        """Return an error as an event, behind what closes the open item as incomplete; `fail` follows.

        So nothing stands between it and response.failed. It replaces a last event that was not sent.
        """
        out = self._break_off()
        told = e.ErrorEvent(
            sequence_number=self._next(),
            code=code,
            message=message,
            param=param,
            error={"type": type, "code": code, "message": message, "param": param},
        )
        return [*out, told]

    def _last(self, kind: type[e.Terminal]) -> e.Terminal:
        self.over = True
        if self.response.service_tier == "auto":
            self.response.service_tier = "default"
        return kind(sequence_number=self._next(), response=self._snapshot())

    def _break_off(self) -> list[e.StreamEvent]:
        self._withdraw()
        out: list[e.StreamEvent] = []
        if isinstance(self._item, McpListTools):
            self._item.error = INTERRUPTED
        self._close(out, "incomplete")
        self._held = []
        return out

    def _withdraw(self) -> None:
        """Take back a last event."""
        if self.over:
            self.over = False
            self._number -= 1
            response = self.response
            response.completed_at, response.incomplete_details, response.error = None, None, None

    # items

    def _text(self, event: Text, out: list[e.StreamEvent]) -> None:
        place = self._place
        if place is None or type(self._item) is not OutputMessage:
            place = self._open(OutputMessage(self._new_id("msg_")), out)
        logprobs = building.logprobs(event.logprobs) if event.logprobs else []
        self._pieces.append(event.text)
        self._logprobs += logprobs
        out.append(e.TextDelta(self._next(), event.text, place, logprobs))

    def _thought(self, text: str, out: list[e.StreamEvent]) -> None:
        place = self._place
        if place is None or type(self._item) is not ReasoningItem:
            place = self._open(ReasoningItem(self._new_id("rs_")), out)
        self._pieces.append(text)
        kind = e.SummaryDelta if self._summarised else e.ReasoningDelta
        out.append(kind(self._next(), text, place))

    def _arguments(self, event: ToolCallDelta, out: list[e.StreamEvent]) -> None:
        place = self._place
        if event.call != self._call:
            self._close(out)
            self._call = event.call
            id, name = event.id or self._new_id("call_"), event.name or ""
            if name in self._remote:
                self._holding = HeldCall(id, name, "")
            else:
                place = self._open(FunctionCall(self._new_id("fc_"), id, name), out)
                self._call = event.call
        if event.arguments:
            self._pieces.append(event.arguments)
            if self._holding is None:
                assert place is not None
                out.append(e.ArgumentsDelta(self._next(), event.arguments, place))

    def _open(self, item: OutputItem, out: list[e.StreamEvent]) -> Any:
        """Open an item; return the place of its deltas."""
        self._close(out)
        self._item, self._at = item, len(self.response.output)
        events, self._place = building.opened(item, self._at, self._next, summarised=self._summarised)
        out += events
        return self._place

    def _close(self, out: list[e.StreamEvent], status: ItemStatus = "completed") -> None:
        """Close what is open, if anything is."""
        item, text = self._item, "".join(self._pieces)
        if self._holding is not None:
            self._held.append(msgspec.structs.replace(self._holding, arguments=text))
        if item is not None:
            if isinstance(item, ReasoningItem) and self._seal is not None:
                item.encrypted_content = self._seal(text)
            out += building.closed(
                item, self._at, text, self._logprobs, status, self._next, summarised=self._summarised
            )
            self.response.output = [*self.response.output, item]
            if isinstance(item, FunctionCall):
                self.calls.append(item)
        self._item = self._place = self._call = self._holding = None
        self._pieces, self._logprobs = [], []

    def _snapshot(self) -> Response:
        return msgspec.structs.replace(self.response)

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number

"""From an engine's text to typed events: text, and tool calls streamed as argument deltas.

The parser holds back only what may still turn out to be a call. Whatever turns out to be none is released as
text, byte for byte; what is a call comes out once, as a call. White space around calls is swallowed. How the
engine cuts its text changes how soon things come out, never what comes out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from modeld.protocol.tasks import Text, TokenLogprob
from modeld.worker.tools.calls import CallSink, Output
from modeld.worker.tools.formats import ENVELOPE, Formats
from modeld.worker.tools.source import Reading, Source, Unexpected, read_space

_PROSE = re.compile(r"(?:[ \t\r\n]*+[^<\[ \t\r\n]++)*+")
"""Text that begins no call, with the white space inside it but not behind it."""

_LEFTOVER = re.compile(r"[\]}),;`\s]*")
"""What may be missing or left at the end of an answer cut off between two calls: never text."""


class Mode(Enum):
    """What the text may be."""

    PLAIN = "plain"
    """Text; calls, if any, are the engine's business."""
    FREE = "free"
    """Text with calls in any of the common formats."""
    CALLS = "calls"
    """Calls in the envelope, by a schema; should the engine ignore the schema, as FREE."""
    UNION = "union"
    """Calls in the envelope or else text that is passed on unread, by a schema."""


class CallParser:
    """Parses the answer of one choice. Feed it every piece of text, then `finish` exactly once.

    `tools`: name → JSON Schema of the arguments or None; other names are no calls.
    `limit`: most calls that come out; later ones are dropped, text around them is not.
    """

    def __init__(
        self,
        mode: Mode = Mode.PLAIN,
        tools: Mapping[str, dict[str, Any] | None] | None = None,
        *,
        index: int = 0,
        limit: int | None = None,
        envelope: str = ENVELOPE,
    ) -> None:
        self._mode = mode
        self._index = index
        self._source = Source()
        self._sink = CallSink(self._source, index=index, limit=limit)
        self._formats = Formats(self._source, self._sink, tools or {}, envelope)
        self._keep = 0
        self._strayed = self._cut_off = False
        self._reading = self._read()

    @property
    def called(self) -> bool:
        """True when a tool call came out: an answer that ended by itself ended with "tool_calls"."""
        return self._sink.count > 0

    @property
    def strayed(self) -> bool:
        """True when a schema had to hold the answer to calls, and the engine wrote something else."""
        return self._strayed

    def feed(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> list[Output]:
        """Take a piece; return what is certain by now.

        `logprobs` of the piece travel with the text that comes of it; those of calls are dropped.
        """
        if self._mode is Mode.PLAIN:
            return [Text(text, self._index, logprobs)] if text or logprobs else []
        start = self._source.end
        self._source.feed(text)
        self._sink.tokens(start, self._source.end, logprobs)
        next(self._reading, None)
        out = self._sink.drain()
        self._source.forget(self._keep)
        return out

    def finish(self) -> list[Output]:
        """The answer is over, complete or cut off: return the rest."""
        self._source.closed = True
        next(self._reading, None)
        return self._sink.drain()

    # --- readers --------------------------------------------------------------------------------------------

    def _read(self) -> Reading[None]:
        if self._mode is Mode.PLAIN:
            return
        if self._mode in (Mode.CALLS, Mode.UNION):
            if not (yield from self._attempt(self._formats.constrained(), patient=False)):
                self._strayed = self._mode is Mode.CALLS and not self._cut_off
            self._formats.decided = False
        if self._mode is Mode.UNION:
            if self.called:
                yield from read_space(self._source)
            yield from self._pass()
            return
        if not self.called:
            yield from self._attempt(self._formats.whole(), patient=True)
        yield from self._prose()

    def _pass(self) -> Reading[None]:
        source = self._source
        while True:
            self._sink.text(source.at, source.end)
            source.at = source.end
            if source.closed:
                return
            self._keep = source.at
            yield

    def _prose(self) -> Reading[None]:
        source, sink = self._source, self._sink
        if self.called:
            yield from read_space(source)
        while True:
            start = source.at
            source.take(_PROSE)
            sink.text(start, source.at)
            held = self._keep = source.at
            char = yield from read_space(source)
            if not char:
                sink.text(held, source.at)
                return
            if char not in "<[":
                sink.text(held, source.at)
            elif (yield from self._attempt(self._formats.marked(), patient=True)):
                yield from read_space(source)
            else:
                source.at += 1
                sink.text(held, source.at)

    def _attempt(self, reader: Reading[None], *, patient: bool) -> Reading[bool]:
        """Let a reader try. True: the source stands behind the calls it took. False: nothing happened."""
        source, sink = self._source, self._sink
        start = source.at
        sink.begin(patient=patient)
        try:
            yield from reader
            sink.release()
            behind = source.at
        except Unexpected:
            self._cut_off = source.exhausted
            if self._cut_off:
                sink.release()
            sink.flush()
            behind = sink.safe
            if self._cut_off:
                rest = source.cut(behind, source.end)
                if self._formats.decided or _LEFTOVER.fullmatch(rest):
                    behind = source.end
        taken = sink.taken or (source.exhausted and self._formats.decided)
        sink.end()
        source.rewind(behind if taken else start)
        return taken

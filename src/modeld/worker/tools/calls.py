"""Where recognised calls and text are gathered, and when they may go out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from modeld.ids import new_id
from modeld.protocol.tasks import Text, TokenLogprob, ToolCallDelta
from modeld.worker.tools.source import Source, Unexpected

Output: TypeAlias = Text | ToolCallDelta

PATIENCE = 2048
"""Characters of an unconstrained call that are held back to see whether it is well formed; longer arguments
are then streamed, at the risk that they end badly."""

HOLD_LIMIT = 262_144
"""Characters held back at most for something that may become a call; then it is text."""


@dataclass(slots=True)
class _Held:
    name: str
    start: int
    arguments: str | None = None


class CallSink:
    """Takes what the readers find. Calls are held until `release`, except where the sink is impatient.

    `limit`: how many calls may come out; further ones are taken and dropped (the caller forbade them).
    `index`: the choice that the events belong to.
    """

    def __init__(self, source: Source, *, index: int, limit: int | None) -> None:
        self.count = 0
        self.taken = False
        self.safe = 0
        self._source = source
        self._index = index
        self._limit = limit
        self._patient = self._careful = True
        self._start = 0
        self._whole = 0
        self._held: list[_Held] = []
        self._live: int | None = None
        self._streaming = False
        self._text: tuple[int, int] | None = None
        self._tokens: list[tuple[int, int, tuple[TokenLogprob, ...]]] = []
        self._out: list[Output] = []
        source.on_alarm = self._alarm

    # --- text -----------------------------------------------------------------------------------------------

    def text(self, start: int, end: int) -> None:
        """Pass on the text between two positions."""
        if start == end:
            return
        if self._text is not None and self._text[1] == start:
            start = self._text[0]
        else:
            self._flush_text()
        self._text = (start, end)

    def tokens(self, start: int, end: int, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Note the log probabilities of a span; they go out with the first text that lies in it."""
        if logprobs:
            self._tokens.append((start, end, logprobs))

    def _flush_text(self) -> None:
        if self._text is None:
            return
        start, end = self._text
        self._text = None
        found: tuple[TokenLogprob, ...] = ()
        while self._tokens and self._tokens[0][0] < end:
            token_start, token_end, logprobs = self._tokens.pop(0)
            if token_end > start or token_start == token_end >= start:
                found += logprobs
        self._out.append(Text(self._source.cut(start, end), self._index, found))

    # --- calls ----------------------------------------------------------------------------------------------

    def begin(self, *, patient: bool) -> None:
        """A reader starts at `source.at`. Impatient: what it finds goes out at once."""
        self._start = self._whole = self.safe = self._source.at
        self._patient = self._careful = patient
        self.taken = False
        self._held.clear()
        self._source.alarm = self._start + PATIENCE if patient else None

    def end(self) -> None:
        """The reader is done; what is still held is dropped."""
        self._held.clear()
        self._live = None
        self._streaming = False
        self._source.alarm = None

    def open(self, name: str) -> None:
        """The JSON arguments of a call to `name` begin at `source.at`."""
        self._held.append(_Held(name, self._source.at))
        if not self._patient:
            self.release()

    def close(self) -> None:
        """The arguments of the call that is open end at `source.at`."""
        if self._streaming:
            self.flush()
            self._live = None
            self._streaming = False
        else:
            call = self._held[-1]
            call.arguments = self._source.cut_json(call.start, self._source.at)
        self.mark()

    def add(self, name: str, arguments: str) -> None:
        """A call whose arguments are known as a whole."""
        self._held.append(_Held(name, self._source.at, arguments))
        self.mark()
        if not self._patient:
            self.release()

    def mark(self) -> None:
        """All before `source.at` belongs to the calls found so far, and is not text."""
        self._whole = self._source.at
        if not self._held:
            self.safe = self._whole

    def release(self) -> None:
        """Let everything found so far go out."""
        if not self._held:
            return
        self._flush_text()
        for call in self._held:
            wanted = self._limit is None or self.count < self._limit
            if wanted:
                head = call.arguments or ""
                self._out.append(ToolCallDelta(self.count, head, new_id("call_"), call.name, self._index))
                self.count += 1
            if call.arguments is None:
                self._streaming = True
                self._live = call.start if wanted else None
        self._held.clear()
        self.taken = True
        self.safe = self._whole
        self.flush()

    def flush(self) -> None:
        """Send what has been read of the arguments that are being streamed."""
        if not self._streaming:
            return
        at = self._source.at
        if self._live is not None and at > self._live:
            piece = self._source.cut_json(self._live, at)
            self._out.append(ToolCallDelta(self.count - 1, piece, index=self._index))
            self._live = at
        self.safe = at
        self._source.forget(at)

    def drain(self) -> list[Output]:
        """Return the events since the last time."""
        self.flush()
        self._flush_text()
        out, self._out = self._out, []
        return out

    def restart(self) -> None:
        """What was found so far is out; the next call of the same reader gets its own patience."""
        self.release()
        if self._careful:
            self._patient = True
            self._start = self._source.at
            self._source.alarm = self._start + PATIENCE

    def _alarm(self) -> None:
        if self._held:
            self._patient = False
            self.release()
        elif self._patient and self._source.at < self._start + HOLD_LIMIT:
            self._patient = False
            self._source.alarm = self._start + HOLD_LIMIT
        elif not self.taken:
            raise Unexpected

"""What a model's workers wrote, the last of it, for `ctl logs` and for error messages."""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec

from modeld.clock import Clock

LINES = 1000
"""Lines kept for each model, over the lives of its workers."""

LINE_LIMIT = 4096
"""Characters kept of one line."""


class LogLine(msgspec.Struct, frozen=True):
    """One line; `time` is when it was read, in seconds since the epoch."""

    time: float
    text: str


class _Follower:
    def __init__(self) -> None:
        self.waiting: deque[LogLine] = deque(maxlen=LINES)
        self.wake = asyncio.Event()

    async def lines(self) -> AsyncIterator[LogLine]:
        while True:
            while self.waiting:
                yield self.waiting.popleft()
            self.wake.clear()
            await self.wake.wait()


class LogRing:
    """A bounded log with followers. A follower that lags by more than LINES lines loses the oldest.

    A replica's log goes `into` its model's as well, each line after `prefix`.
    """

    def __init__(self, clock: Clock, *, into: LogRing | None = None, prefix: str = "") -> None:
        self._clock = clock
        self._into = into
        self._prefix = prefix
        self._lines: deque[LogLine] = deque(maxlen=LINES)
        self._followers: set[_Follower] = set()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._partial = ""
        self._life = 0

    def begin_life(self) -> None:
        """A new worker starts: `tail` shows only what comes from now on."""
        self.flush()
        self._life = 0

    def feed(self, data: bytes) -> None:
        """Add output as it was read; an unfinished line waits for its end (up to LINE_LIMIT)."""
        text = self._partial + self._decode(data)
        *lines, self._partial = text.split("\n")
        for line in lines:
            self.add(line)
        if len(self._partial) > LINE_LIMIT:
            partial, self._partial = self._partial, ""
            self.add(partial)

    def flush(self) -> None:
        """Take an unfinished line as finished: its writer is gone."""
        partial, self._partial = self._partial + self._decode(b"", True), ""
        if partial:
            self.add(partial)

    def add(self, text: str) -> None:
        """Add one line."""
        line = LogLine(self._clock.time(), text.rstrip()[:LINE_LIMIT])
        self._lines.append(line)
        self._life += 1
        if self._into is not None:
            self._into.add(self._prefix + text)
        for follower in self._followers:
            follower.waiting.append(line)
            follower.wake.set()

    def lines(self) -> list[LogLine]:
        """Return the kept lines, oldest first."""
        return list(self._lines)

    def tail(self, count: int, within_s: float = float("inf")) -> str:
        """Return the last `count` lines of the present worker, at most `within_s` seconds old."""
        count = min(count, self._life, LINES)
        oldest = self._clock.time() - within_s
        lines = list(self._lines)[len(self._lines) - count :]
        return "\n".join(line.text for line in lines if line.time >= oldest)

    @contextmanager
    def follow(self) -> Iterator[AsyncIterator[LogLine]]:
        """Give an endless iterator over the lines from now on."""
        follower = _Follower()
        self._followers.add(follower)
        try:
            yield follower.lines()
        finally:
            self._followers.discard(follower)

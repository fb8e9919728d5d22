"""What vLLM and its processes print, read on its way to the log: progress while loading, and last words."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable

LAST_WORDS = 12
"""Lines of the log that an error shows."""

WIDTH = 600
"""Characters of one line that an error shows."""

FLUSH_S = 2.0
"""Seconds to wait for lines that are on their way through the pipe."""

_PREFIX = re.compile(r"^\([A-Za-z_]+[^)]*pid=\d+\)\s+")
_HEAD = re.compile(r"^(INFO|WARNING|ERROR|DEBUG|CRITICAL)\s+[\d-]+ [\d:]+ \[[^\]]*\]\s?")
_WHERE = re.compile(r"\[[\w.]+:\d+\]")
_SHARDS = re.compile(r"checkpoint shards:\s+(\d+)% Completed")
_RAISED = re.compile(r"^((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Exit|Refused))(?:: (.*))?$")
_IDLE = ("Waiting for", "No available shared memory broadcast block", "Still waiting")
"""How lines begin that say only that nothing has happened yet."""

STAGES: tuple[tuple[str, str, float], ...] = (
    ("Resolved architecture", "reading the configuration", 0.05),
    ("Initializing a V1 LLM engine", "starting the engine", 0.15),
    ("Starting to load model", "loading the weights", 0.25),
    ("Loading weights took", "preparing the weights", 0.7),
    ("Start compiling", "compiling", 0.75),
    ("Compiling a graph", "compiling", 0.75),
    ("torch.compile took", "compiling", 0.78),
    ("KV cache size", "making the KV cache", 0.85),
    ("Capturing CUDA graphs", "capturing CUDA graphs", 0.9),
    ("Warming up", "warming up", 0.8),
    ("init engine", "warming up", 0.95),
)
"""Words of vLLM's log, the stage they begin, and how far the load is then."""

WEIGHTS_FROM, WEIGHTS_TO = 0.25, 0.7
"""Between which fractions the weights are read."""


def bare(line: str) -> str:
    """Return a line without the process, level, time and place before its words."""
    return _HEAD.sub("", _PREFIX.sub("", line.strip()))


def stage_of(line: str) -> tuple[str, float] | None:
    """Return the stage and fraction that a line of vLLM's log tells, None if it tells none."""
    if shards := _SHARDS.search(line):
        part = min(int(shards[1]), 100) / 100
        return "loading the weights", WEIGHTS_FROM + (WEIGHTS_TO - WEIGHTS_FROM) * part
    for words, stage, fraction in STAGES:
        if words in line:
            return stage, fraction
    return None


def is_sign_of_life(line: str) -> bool:
    """Say whether a line shows that something goes on."""
    words = bare(line)
    return bool(words) and not words.startswith(_IDLE)


def cause(lines: list[str]) -> str | None:
    """Return what the first traceback in a log ended with, None without one.

    The first that ends is the cause; the ones behind it only say that somebody else has failed.
    """
    inside = False
    for number, line in enumerate(lines):
        words = bare(line)
        if words.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and (raised := _RAISED.match(words)):
            text = [raised[2] or ""]
            for later in lines[number + 1 :]:  # a message of several lines, as validation errors have
                if _place(later) != _place(line) or not bare(later) or len(text) > LAST_WORDS:
                    break
                text.append(bare(later))
            return f"{raised[1].rpartition('.')[2]}: {' '.join(text).strip()}"[: 2 * WIDTH]
    return None


def _place(line: str) -> str:
    """Return who said a line and where, without when; a line that does not say it is its own."""
    head = _PREFIX.match(line.strip())
    where = _WHERE.search(line[:200])
    return f"{head[0] if head else ''}{where[0]}" if where else line


class LogTap:
    """Takes over this process's standard output and error, and passes on every line of it.

    Children inherit both, so what they say comes by as well. `close` gives them back. `stage` is the last one
    told, `last_sign` when (by `time.monotonic`) something was said.
    """

    def __init__(self) -> None:
        self.last_sign = time.monotonic()
        self._lines: deque[str] = deque(maxlen=400)
        self._report: Callable[[str, float], None] | None = None
        self._marks: dict[bytes, threading.Event] = {}
        self.stage = ("starting torch and vLLM", 0.0)
        reading, self._writing = os.pipe()
        self._kept = os.dup(1), os.dup(2)
        os.dup2(self._writing, 1)
        os.dup2(self._writing, 2)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="log", daemon=True)
        self._thread.start()

    def to(self, report: Callable[[str, float], None] | None) -> None:
        """Tell stages and fractions, which never fall, to `report`, from the reading thread."""
        self._report = report

    def lines(self) -> list[str]:
        """Return the last lines, oldest first, when all written so far have been read."""
        mark = b"\0" + os.urandom(8).hex().encode()
        event = self._marks[mark] = threading.Event()
        os.write(self._writing, b"\n" + mark + b"\n")
        event.wait(FLUSH_S)
        return list(self._lines)

    def last_words(self) -> str:
        """Return the last lines, or a word that nothing was said."""
        return "\n".join(line[:WIDTH] for line in self.lines()[-LAST_WORDS:]) or "(the engine wrote nothing)"

    def close(self) -> None:
        """Give standard output and error back."""
        os.dup2(self._kept[0], 1)
        os.dup2(self._kept[1], 2)

    def _read(self, reading: int) -> None:
        rest = b""
        while data := os.read(reading, 1 << 16):
            # A progress bar ends its line with a return.
            *done, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > 1 << 20:
                done, rest = [*done, rest], b""
            for raw in done:
                if raw.startswith(b"\0") and (mark := self._marks.pop(raw, None)) is not None:
                    mark.set()
                elif raw.strip():
                    self._take(raw)

    def _take(self, raw: bytes) -> None:
        # Not `print`: a fork in another thread would inherit its lock.
        os.write(self._kept[0], raw + b"\n")
        line = raw.decode("utf-8", "replace").rstrip()
        self._lines.append(line)
        if not is_sign_of_life(line):
            return
        self.last_sign = time.monotonic()
        found = stage_of(line)
        if self._report is not None and found is not None and found[1] >= self.stage[1]:
            self.stage = found
            self._report(*found)

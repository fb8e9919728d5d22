"""Text that comes in pieces, read by generators that pause where a piece ends.

A reader is a generator: it looks at the next character with `yield from source.peek()`, which pauses while
there is none. So a reader is written as if it had the whole text, and how the text was cut cannot change what
it decides. Positions are absolute: the number of characters since the beginning of the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
"""A reader that ends with a T; each yield waits for more text."""

SPACE = re.compile(r"[ \t\r\n]*")
_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_HEX = "0123456789abcdefABCDEF"
_CLOSERS = {"{": "}", "[": "]"}


class Unexpected(Exception):
    """The text is not what the reader reads; `source.at` stands at the character that does not fit."""


class Source:
    """The text so far, and the position `at` of the next character to read."""

    def __init__(self) -> None:
        self.at = 0
        self.closed = False
        self.alarm: int | None = None
        self.on_alarm: Callable[[], None] | None = None
        self._text = ""
        self._base = 0
        self._controls: list[int] = []

    @property
    def end(self) -> int:
        """The position behind the text that has come so far."""
        return self._base + len(self._text)

    @property
    def exhausted(self) -> bool:
        """True when no character is left and none will come."""
        return self.closed and self.at >= self.end

    def feed(self, piece: str) -> None:
        """Append a piece."""
        self._text += piece

    def forget(self, before: int) -> None:
        """Let go of the text before this position; no reader may go back there."""
        if before > self._base:
            self._text = self._text[before - self._base :]
            self._base = before
            self._controls = [at for at in self._controls if at >= before]

    def rewind(self, at: int) -> None:
        """Go back to a position, as if nothing behind it had been read."""
        self.at = at
        while self._controls and self._controls[-1] >= at:
            self._controls.pop()

    def cut(self, start: int, end: int) -> str:
        """Return the text from `start` to before `end`, byte for byte."""
        return self._text[start - self._base : end - self._base]

    def cut_json(self, start: int, end: int) -> str:
        """Like `cut` for JSON text that was read; raw control characters inside strings become escapes.

        JSON forbids a raw line break inside a string, models write it none the less.
        """
        found = [at for at in self._controls if start <= at < end]
        if not found:
            return self.cut(start, end)
        parts = []
        for at in found:
            parts += [self.cut(start, at), json.dumps(self.cut(at, at + 1))[1:-1]]
            start = at + 1
        return "".join(parts) + self.cut(start, end)

    def peek(self) -> Reading[str]:
        """Return the next character without taking it, or "" at the end of the answer."""
        while self.alarm is not None and self.at >= self.alarm:
            self.alarm = None
            if self.on_alarm is not None:
                self.on_alarm()
        while self.at >= self.end:
            if self.closed:
                return ""
            yield
        return self._text[self.at - self._base]

    def take(self, pattern: re.Pattern[str]) -> int:
        """Take what matches of the text at hand, up to the alarm; return how many characters that were."""
        here = self.at - self._base
        stop = len(self._text) if self.alarm is None else min(len(self._text), self.alarm - self._base)
        match = pattern.match(self._text, here, stop)
        taken = match.end() - here if match else 0
        self.at += taken
        return taken

    def mark_control(self) -> None:
        """Note that the next character is a raw control character inside a JSON string."""
        self._controls.append(self.at)


def read_run(source: Source, pattern: re.Pattern[str]) -> Reading[str]:
    """Take all that matches, across pieces; return the character behind it ("" at the end).

    `pattern` matches runs of one class of characters, the empty run too.
    """
    while True:
        source.take(pattern)
        following = yield from source.peek()
        if not source.take(pattern):
            return following


def read_space(source: Source) -> Reading[str]:
    """Take white space; return the character behind it ("" at the end)."""
    return (yield from read_run(source, SPACE))


def read_literal(source: Source, literal: str) -> Reading[None]:
    """Take exactly this text. Raises Unexpected."""
    for char in literal:
        if (yield from source.peek()) != char:
            raise Unexpected
        source.at += 1


def read_any(source: Source, literals: tuple[str, ...]) -> Reading[str | None]:
    """Take the literal that stands here and return it; None as soon as it is none of them.

    No literal may be the beginning of another. After None, `source.at` is where it was.
    """
    start, prefix = source.at, ""
    while prefix not in literals:
        char = yield from source.peek()
        prefix += char
        if not char or not any(literal.startswith(prefix) for literal in literals):
            source.rewind(start)
            return None
        source.at += 1
    return prefix


def read_string(source: Source) -> Reading[None]:
    """Take a JSON string; raw control characters are let through and marked. Raises Unexpected."""
    yield from read_literal(source, '"')
    while True:
        source.take(_STRING_RUN)
        char = yield from source.peek()
        if char == '"':
            source.at += 1
            return
        if char == "\\":
            source.at += 1
            escape = yield from source.peek()
            if not escape or escape not in '"\\/bfnrtu':
                raise Unexpected
            source.at += 1
            for _ in range(4 if escape == "u" else 0):
                digit = yield from source.peek()
                if not digit or digit not in _HEX:
                    raise Unexpected
                source.at += 1
        elif not char:
            raise Unexpected
        elif char < " ":
            source.mark_control()
            source.at += 1


def read_value(source: Source) -> Reading[None]:
    """Take one JSON value of any kind and depth. Raises Unexpected.

    A number ends where something else begins, so at the top level it takes one look further.
    """
    open_: list[str] = []
    while True:
        char = yield from read_space(source)
        if char in ("{", "["):
            source.at += 1
            if (yield from read_space(source)) == _CLOSERS[char]:
                source.at += 1
            else:
                open_.append(char)
                if char == "{":
                    yield from _read_key(source)
                continue
        else:
            yield from _read_scalar(source, char)
        while open_:
            following = yield from read_space(source)
            if following == ",":
                source.at += 1
                if open_[-1] == "{":
                    yield from _read_key(source)
                break
            if following != _CLOSERS[open_[-1]]:
                raise Unexpected
            source.at += 1
            open_.pop()
        else:
            return


def _read_scalar(source: Source, char: str) -> Reading[None]:
    if char == '"':
        yield from read_string(source)
    elif char and char in "-0123456789":
        # Kept here, since the source may forget what it streams.
        number = ""
        while char and char in "-+0123456789.eE":
            number += char
            source.at += 1
            char = yield from source.peek()
        if not _NUMBER.fullmatch(number):
            raise Unexpected
    elif char in ("t", "f", "n"):
        yield from read_literal(source, {"t": "true", "f": "false", "n": "null"}[char])
    else:
        raise Unexpected


def _read_key(source: Source) -> Reading[None]:
    yield from read_space(source)
    yield from read_string(source)
    yield from read_space(source)
    yield from read_literal(source, ":")

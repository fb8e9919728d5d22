"""The log: the standard library's `logging`, set up once per process.

A record's fields are what its caller passes as `extra=`; `model` is the one that has a place of its own:

    log.info("loaded", extra={"model": "qwen", "seconds": 4.2})

    12:00:01 INFO    [qwen] loaded  seconds=4.2
    {"time":"2026-01-31T12:00:01.250Z","level":"info","logger":"modeld.x","message":"loaded","model":"qwen",…}
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal, TextIO, TypeAlias, get_args

from modeld.errors import UsageError

Format: TypeAlias = Literal["console", "json"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

REDACTED = "[redacted]"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""What every record carries; everything else on it came in as `extra`."""

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Text from models and clients must not move the cursor of whoever reads the log."""

_secrets: dict[str, None] = {}


def setup(format: Format = "console", level: Level = "info", *, stream: TextIO | None = None) -> None:
    """Send modeld's records from `level` up, and other libraries' warnings, to `stream` (default stderr).

    Replaces what an earlier call set up. Raises UsageError for an unknown format or level.
    """
    if format not in get_args(Format):
        raise UsageError(f"log format {format!r} is not one of {', '.join(get_args(Format))}")
    if level not in get_args(Level):
        raise UsageError(f"log level {level!r} is not one of {', '.join(get_args(Level))}")
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("modeld").setLevel(level.upper())
    logging.captureWarnings(True)


def redact(secret: str) -> None:
    """Never let `secret` appear in the log: not in a message, a field, nor a traceback."""
    if secret:
        _secrets[secret] = None
        # Inside JSON the same secret may be spelt with escapes.
        _secrets[json.dumps(secret)[1:-1]] = None
        _secrets[json.dumps(secret, ensure_ascii=False)[1:-1]] = None


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that `setup` can tell it from a test runner's.

    Without a stream of its own it writes to what `sys.stderr` is at that moment: while bars are drawn, that
    puts lines above them.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._own = stream
        super().__init__(stream)

    @property
    def stream(self) -> TextIO:
        """Where lines go now."""
        return self._own or sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """The base class assigns it once; there is nothing to keep."""


class _Redacting(logging.Formatter):
    """Works on the finished line, since a secret can come in by any part of a record."""

    def format(self, record: logging.LogRecord) -> str:
        line = self.line(record)
        for secret in sorted(_secrets, key=len, reverse=True):  # the longest first: one may contain another
            line = line.replace(secret, REDACTED)
        return line

    def line(self, record: logging.LogRecord) -> str:
        raise NotImplementedError

    def trace(self, record: logging.LogRecord) -> str:
        """Return the record's traceback and stack, or nothing."""
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


class ConsoleFormatter(_Redacting):
    """One line for people: local time, level, model, message, fields; further lines are indented."""

    def line(self, record: logging.LogRecord) -> str:
        """Return the text of `record`."""
        fields = _fields(record)
        model = fields.pop("model", None)
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{when} {record.levelname:<7} " + (f"[{model}] " if model else "") + record.getMessage()
        if fields:
            text += "  " + " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
        if trace := self.trace(record):
            text += "\n" + trace
        return text.translate(_CONTROL).replace("\n", "\n    ")


class JsonFormatter(_Redacting):
    """One JSON object per line: time (UTC), level, logger, message, then the fields as they were given."""

    def line(self, record: logging.LogRecord) -> str:
        """Return the JSON text of `record`."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _fields(record).items():
            entry[name if name not in entry else f"{name}_"] = value
        if trace := self.trace(record):
            entry["exception"] = trace
        return json.dumps(entry, default=str, ensure_ascii=False, separators=(",", ":"))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and not set(text) & set(' "=\n\t') else json.dumps(text, ensure_ascii=False)

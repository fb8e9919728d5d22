from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator

import pytest

from modeld.errors import UsageError
from modeld.telemetry import logging as telemetry

log = logging.getLogger("modeld.test")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(telemetry, "_secrets", {})
    root, ours = logging.getLogger(), logging.getLogger("modeld")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def _console(act: Callable[[], None], level: telemetry.Level = "info") -> list[str]:
    out = io.StringIO()
    telemetry.setup("console", level, stream=out)
    act()
    return out.getvalue().splitlines()


def _json(act: Callable[[], None], level: telemetry.Level = "info") -> list[dict[str, object]]:
    out = io.StringIO()
    telemetry.setup("json", level, stream=out)
    act()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_console_line() -> None:
    """Time, level, model, message and then the fields, quoted where they would be ambiguous."""
    (line,) = _console(
        lambda: log.info("loaded %d", 2, extra={"model": "qwen", "seconds": 4.25, "why": "a b"})
    )
    assert line[8:] == ' INFO    [qwen] loaded 2  seconds=4.25 why="a b"'
    assert [len(part) for part in line[:8].split(":")] == [2, 2, 2]


def test_json_line() -> None:
    """One object per line, with the fields as they were given and the standard keys never overwritten."""
    (entry,) = _json(lambda: log.warning("x", extra={"model": "q", "bytes": 7, "level": "mine", "path": io}))
    assert entry["level"] == "warning"
    assert entry["level_"] == "mine"
    assert entry["logger"] == "modeld.test"
    assert (entry["model"], entry["bytes"], entry["message"]) == ("q", 7, "x")
    assert isinstance(entry["path"], str)
    assert str(entry["time"]).endswith("Z")


def test_tracebacks() -> None:
    """A traceback is part of its record: one JSON line, or indented lines on the console."""

    def fail() -> None:
        try:
            raise ValueError("boom")
        except ValueError:
            log.exception("failed")

    (entry,) = _json(fail)
    assert "ValueError: boom" in str(entry["exception"])
    first, *more = _console(fail)
    assert first.endswith("failed")
    assert more[-1] == "    ValueError: boom"
    assert all(line.startswith("    ") for line in more)


@pytest.mark.parametrize("secret", ["sk-12345", 'quo"te\\', "naïve-ключ"])
@pytest.mark.parametrize("form", [_console, _json])
def test_secrets_never_appear(form: Callable[[Callable[[], None]], list[object]], secret: str) -> None:
    """A registered secret is cut from messages, arguments, fields and tracebacks, however it is escaped."""
    telemetry.redact(secret)

    def leak() -> None:
        try:
            raise ValueError(f"bad key {secret}")
        except ValueError:
            log.exception("key %s", secret, extra={"header": f"Bearer {secret}"})

    text = json.dumps(form(leak), ensure_ascii=False)
    assert text.count(telemetry.REDACTED) >= 3
    assert secret not in text
    assert json.dumps(secret)[1:-1] not in text


def test_longer_secret_first() -> None:
    """A secret that contains another is cut whole, and the empty string is no secret."""
    for secret in ("abc", "abcdef", ""):
        telemetry.redact(secret)
    (line,) = _console(lambda: log.info("abcdef!"))
    assert line.endswith(f" {telemetry.REDACTED}!")


def test_text_cannot_steer_the_terminal() -> None:
    """Escape sequences are spelt out, and a line break cannot fake a second record."""
    first, second = _console(lambda: log.info("\x1b[2Jhi\n12:00:00 INFO fake"))
    assert first.endswith("\\x1b[2Jhi")
    assert second == "    12:00:00 INFO fake"


def test_levels() -> None:
    """Modeld speaks from its level up; libraries and Python's warnings from "warning" up."""

    def act() -> None:
        log.debug("d")
        log.info("i")
        logging.getLogger("aiohttp.access").info("GET /")
        logging.getLogger("asyncio").warning("slow")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", UserWarning, stacklevel=1)

    assert [e["message"] for e in _json(act, "debug")][:3] == ["d", "i", "slow"]
    messages = [str(e["message"]) for e in _json(act)]
    assert messages[:2] == ["i", "slow"]
    assert "UserWarning: old" in messages[2]
    assert len(messages) == 3


def test_set_up_twice() -> None:
    """The last set-up holds alone: no line is written twice."""
    first = io.StringIO()
    telemetry.setup("json", "debug", stream=first)
    assert len(_console(lambda: log.info("once"))) == 1
    assert first.getvalue() == ""


def test_unknown_words() -> None:
    """A wrong format or level is the person's mistake, with the choices in the message."""
    with pytest.raises(UsageError, match="console, json"):
        telemetry.setup("xml")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="debug, info, warning, error"):
        telemetry.setup("json", "loud")  # type: ignore[arg-type]

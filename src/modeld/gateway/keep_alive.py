"""The `keep_alive` field of a request: for how long its model stays loaded after it."""

from __future__ import annotations

import math
import re

from modeld.gateway.decoding import invalid

LONGEST_S = 366 * 24 * 3600.0
"""Longest time in seconds; whoever means more means "never"."""

_FORM = 'expected seconds, or text such as "90s", "10m" or "1h30m"; 0 unloads at once, -1 or "never" keeps it'
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PIECE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_TEXT = re.compile(r"(-?)(?:(\d{1,12}(?:\.\d{1,9})?)|((?:\d{1,12}(?:\.\d{1,9})?(?:ms|s|m|h|d))+))", re.ASCII)


def seconds(value: float | str | None) -> float | None:
    """Return the time in seconds: `math.inf` for never, None for a field that was left out.

    A time below zero means never: clients written for Ollama send -1 or "-1m". Raises BadRequest with the
    param `keep_alive`.
    """
    if value is None:
        return None
    time = _parsed(value) if isinstance(value, str) else value
    if time < 0:
        return math.inf
    if math.isfinite(time) and time > LONGEST_S:
        raise invalid("keep_alive", f'it is at most {LONGEST_S:.0f} s (366 days); "never" is for ever')
    return time


def _parsed(text: str) -> float:
    text = text.strip().lower()
    if text == "never":
        return math.inf
    match = _TEXT.fullmatch(text) if len(text) <= 100 else None
    if match is None:
        raise invalid("keep_alive", _FORM)
    sign, number, pieces = match.groups()
    if number is not None:
        time = float(number)
    else:
        time = sum(float(count) * _UNITS[unit] for count, unit in _PIECE.findall(pieces))
    return -time if sign else time

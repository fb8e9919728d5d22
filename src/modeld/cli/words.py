"""Figures and foreign text as people read them. Pure."""

from __future__ import annotations

import time


def duration(seconds: float) -> str:
    """Return the largest whole unit, e.g. "42s", "3m", "5h", "12d"."""
    whole = max(int(seconds), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


_UNITS = ((2**20, "MiB", 0), (2**30, "GiB", 1), (2**40, "TiB", 1))
"""Bytes of a unit, its name, and the decimals it is shown with."""


def memory(size: int) -> str:
    """Return bytes as "512 MiB", "7.5 GiB" or "1.2 TiB"; "-" for none."""
    if size <= 0:
        return "-"
    unit, name, decimals = _unit(size)
    return f"{_amount(size, unit, decimals)} {name}"


def memory_of(used: int, expected: int) -> str:
    """Return bytes used of those expected, in one unit: "0.5/1.2 GiB"; "-/1.2 GiB" when nothing is used."""
    if used <= 0 or expected <= 0:
        return f"-/{memory(expected)}" if expected > 0 else memory(used)
    unit, name, decimals = _unit(max(used, expected))
    return f"{_amount(used, unit, decimals)}/{_amount(expected, unit, decimals)} {name}"


def _unit(size: int) -> tuple[int, str, int]:
    """Return the unit in which `size` has at most three digits before the point."""
    return next((unit for unit in _UNITS if size < 999.5 * unit[0]), _UNITS[-1])


def _amount(size: int, unit: int, decimals: int) -> str:
    least = 10**-decimals
    return f"{max(size / unit, least):.{decimals}f}"


def clock(seconds: float) -> str:
    """Return UTC epoch seconds as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def count(number: int, noun: str) -> str:
    """Return e.g. "1 request", "2 requests"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str) -> str:
    """Return `text` with control characters spelt out: an engine's output must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str) -> str:
    """Return `text` as one printable line."""
    return printable(" ".join(text.split()))


def cell(text: str) -> str:
    """Return `text`, a name say, as it can stand in a column: nothing is dropped, tabs are spelt out too."""
    return printable(text).replace("\t", "\\t")

"""Where text goes, and tables on it: folded on a terminal, one line per row when piped."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import click
import msgspec

COLUMNS = 80
"""The narrowest terminal that tables are made for."""

NARROWEST = 20
"""Columns that text is folded to at the least, however small the window."""

BELOW = "    "
"""What the lines below a row begin with."""


class Screen(msgspec.Struct, frozen=True):
    """Where text goes: `width` in columns, None when piped (nothing is folded then)."""

    width: int | None
    colour: bool

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Screen:
        """Look at `stream`: colour on a terminal only, and never with NO_COLOR or TERM=dumb."""
        if not stream.isatty():
            return cls(None, False)
        colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(max(shutil.get_terminal_size((COLUMNS, 24)).columns, NARROWEST), colour)

    def paint(self, text: str, colour: str | None) -> str:
        """Return `text` in `colour` where colours are shown."""
        return click.style(text, fg=colour) if colour and self.colour else text

    def fold(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        """Return the lines of `text`, the first after `first`, the others after `rest` (`first` if None)."""
        if not text:
            return []
        if self.width is None:
            return [first + text]
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_on_hyphens=False,
        )


@dataclass(frozen=True)
class Row:
    """One row; `below` is what there is to say besides, `colour` that of the second cell.

    `indent` goes before what stands below it on a terminal.
    """

    cells: Sequence[str]
    below: Sequence[str] = ()
    colour: str | None = None
    indent: str = BELOW


def table(headings: Sequence[str], words: int, rows: Sequence[Row], screen: Screen) -> Iterator[str]:
    """Yield the lines of a table; the first `words` columns are aligned to the left, the rest to the right.

    On a terminal the first column gives way: a cell that is too long for it stands on a line above its row.
    """
    lines = [headings, *(row.cells for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    if screen.width is not None:
        rest = sum(widths[1:]) + 2 * len(widths[1:])
        widths[0] = min(widths[0], max(screen.width - rest, len(headings[0])))

    def line(cells: Sequence[str], colour: str | None = None) -> str:
        placed = [
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        placed[1] = screen.paint(placed[1], colour)
        return "  ".join(placed)

    yield line(headings).rstrip()
    for row in rows:
        cells = list(row.cells)
        below = [text for text in row.below if text]
        if screen.width is None:
            yield "  ".join([line(cells), *(["; ".join(below)] if below else [])]).rstrip()
            continue
        if len(cells[0]) > widths[0]:
            yield from textwrap.wrap(cells[0], screen.width, break_on_hyphens=False)
            cells[0] = ""
        yield line(cells, row.colour).rstrip()
        for text in below:
            yield from screen.fold(text, row.indent)

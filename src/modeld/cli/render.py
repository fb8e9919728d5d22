"""What `ctl` shows to people. Text in, text out; rich is imported only for a progress bar on a terminal."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

import click
import msgspec

from modeld.admin.schemas import StatusReply
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import State, Status

COLUMNS = 80
"""The narrowest terminal the table is made for."""

COLOURS: dict[State, str] = {
    State.READY: "green",
    State.FAILED: "red",
    State.BACKOFF: "yellow",
    State.WAITING: "yellow",
    State.STARTING: "cyan",
    State.LOADING: "cyan",
    State.DRAINING: "magenta",
    State.STOPPING: "magenta",
}
"""Colour of a state; without one it is printed as it is."""

HEADINGS = ("MODEL", "STATE", "CAUSE", "SINCE", "MEMORY", "IN-FLIGHT", "QUEUE")
CAUSE_MAX = 18
"""A longer cause moves to the line below the row, where the message is."""


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
        return cls(max(shutil.get_terminal_size((COLUMNS, 24)).columns, 20), colour)


# --- words --------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Return the largest whole unit, e.g. "42s", "3m", "5h", "12d"."""
    whole = max(int(seconds), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def memory(size: int) -> str:
    """Return bytes as "512 MiB" or "7.5 GiB"; "-" for none."""
    if size <= 0:
        return "-"
    mebibytes = size / 2**20
    if mebibytes < 1000:
        return f"{max(round(mebibytes), 1)} MiB"
    return f"{mebibytes / 1024:.1f} GiB"


def clock(seconds: float) -> str:
    """Return UTC epoch seconds as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def printable(text: str) -> str:
    """Return `text` with control characters spelt out: an engine's output must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in text)


def event_line(event: FeedEvent) -> str:
    """Return one line for an event."""
    what = event.state or event.kind
    percent = f" {event.progress:.0%}" if event.progress is not None else ""
    cause = f" ({event.cause})" if event.cause else ""
    message = f": {_one_line(event.message)}" if event.message else ""
    return f"{clock(event.time)} {event.model or '-'} {what}{percent}{cause}{message}"


def outcome_line(status: Status) -> str:
    """Return one line for the outcome of a move."""
    uses = f", {memory(status.bytes_used)}" if status.bytes_used else ""
    return f"{status.name} is {status.state}{uses}"


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


# --- the status page ----------------------------------------------------------------------------------------


def status_page(reply: StatusReply, screen: Screen, *, now: float) -> str:
    """Return the daemon in one line and its models as a table; `now` is UTC seconds since the epoch.

    On a terminal no line is wider than the screen (of at least 80 columns): long names, causes and messages
    get lines of their own. Piped, each model is exactly one line.
    """
    head = f"modeld {reply.version}, pid {reply.pid}, up {duration(reply.uptime)}, {reply.address}"
    if not reply.models:
        return f"{head}\nno models are configured"
    rows = [_row(status, now) for status in reply.models]
    names = max(len(row[0]) for row in (HEADINGS, *rows))
    rest = [max(len(row[i]) for row in (HEADINGS, *rows)) for i in range(1, len(HEADINGS))]
    if screen.width is not None:
        rest[1] = min(rest[1], CAUSE_MAX)
        names = min(names, max(screen.width - sum(rest) - 2 * len(rest), len(HEADINGS[0])))
    widths = [names, *rest]
    lines = [head, _cells(HEADINGS, widths)]
    for status, row in zip(reply.models, rows, strict=True):
        lines += _model(status, row, widths, screen)
    return "\n".join(lines)


def _row(status: Status, now: float) -> list[str]:
    state = str(status.state)
    if status.progress is not None and status.state in (State.STARTING, State.LOADING):
        state += f" {status.progress:.0%}"
    return [
        printable(status.name).replace("\t", "\\t"),
        state,
        _one_line(status.cause) or "-",
        duration(now - status.since),
        memory(status.bytes_used),
        str(status.in_flight),
        str(status.queued),
    ]


def _model(status: Status, row: list[str], widths: list[int], screen: Screen) -> Iterator[str]:
    message = _one_line(status.message)
    if screen.width is None:
        yield _cells(row, widths) + (f"  {message}" if message else "")
        return
    if len(row[0]) > widths[0]:
        yield from textwrap.wrap(row[0], screen.width, break_on_hyphens=False)
        row[0] = ""
    if len(row[2]) > widths[2]:
        message = f"{row[2]}: {message}" if message else row[2]
        row[2] = "↓"
    yield _cells(row, widths, COLOURS.get(status.state) if screen.colour else None)
    yield from textwrap.wrap(message, screen.width, initial_indent="    ", subsequent_indent="    ")


def _cells(row: list[str] | tuple[str, ...], widths: list[int], colour: str | None = None) -> str:
    """Return the cells side by side, words to the left and figures to the right."""
    cells = [
        cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
    ]
    if colour:
        cells[1] = click.style(cells[1], fg=colour)
    return "  ".join(cells).rstrip()


# --- progress -----------------------------------------------------------------------------------------------

Show = Callable[[FeedEvent], None]


def progress(title: str, screen: Screen) -> AbstractContextManager[Show]:
    """Show the events of a move on stderr: a bar on a terminal, else a line for each."""
    return _bar(title, screen) if screen.width is not None else _lines()


@contextmanager
def _lines() -> Iterator[Show]:
    yield lambda event: click.echo(event_line(event), err=True)


@contextmanager
def _bar(title: str, screen: Screen) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[stage]}", markup=False),
    )
    console = Console(stderr=True, no_color=not screen.colour)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, stage="")

        def show(event: FeedEvent) -> None:
            stage = _one_line(event.message) or (event.state or "")
            total = None if event.progress is None else 1.0
            bar.update(task, total=total, completed=event.progress or 0.0, stage=stage)

        yield show

"""Models coming up, for people: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import click

from modeld.cli.render import event_line
from modeld.cli.table import Screen
from modeld.cli.words import one_line
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import State

if TYPE_CHECKING:
    from rich.console import Console

    from modeld.supervisor.pool import Pool

LINE_STEP = 0.1
"""A plain line each time a model's progress has grown by this share, and at each new stage or state."""

AGAIN = ": trying again, "
"""What a pull says when something went wrong; the reason follows, and is worth a line."""

NAME_WIDTH = 24
BAR_WIDTH = 16
"""Columns of a terminal for a model's name and its bar; the rest of the line is for words."""

AT_REST = frozenset({State.READY, State.FAILED, State.STOPPED})
"""States whose bar does not move."""

Show = Callable[[FeedEvent], None]
Said = Callable[[str], Sequence[str]]
"""Gives the lines to print for a model that has become ready."""
Settled = Callable[[], Awaitable[None]]


class Lines:
    """Decides which feed events deserve a line: a bar's every step would flood a log."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, float]] = {}

    def worth(self, event: FeedEvent) -> bool:
        """Say whether a progress event tells something that the last ones did not."""
        words = event.message.split()
        stage, done = words[0] if words else "", event.progress or 0.0
        if AGAIN in event.message:
            stage += AGAIN
        before = self._shown.get(event.model)
        if before is not None and before[0] == stage and done - before[1] < LINE_STEP:
            return False
        self._shown[event.model] = (stage, done)
        return True

    def line(self, event: FeedEvent) -> str | None:
        """Return the line for an event, or None when the last one, or the log, says enough."""
        if event.kind != "progress" or not self.worth(event):
            return None
        share = f" ({event.progress:.0%})" if event.progress is not None else ""
        return f"{one_line(event.model)}: {one_line(event.message)}{share}"


def bar_words(message: str) -> str:
    """Return a message for the little room beside a bar: a pull's figures without its long reference."""
    what, colon, figures = message.partition(": ")
    return f"pulling {figures}" if colon and what.startswith("pulling ") else message


# --- of a command -------------------------------------------------------------------------------------------


def progress(screen: Screen) -> AbstractContextManager[Show]:
    """Show the events of a move or a change on stderr: a bar for each model on a terminal, else lines."""
    return _bars(screen) if screen.width is not None else _lines()


@contextmanager
def _lines() -> Iterator[Show]:
    lines = Lines()

    def show(event: FeedEvent) -> None:
        if event.kind != "progress" or lines.worth(event):
            click.echo(event_line(event), err=True)

    yield show


@contextmanager
def _bars(screen: Screen | None) -> Iterator[Show]:
    """Draw on stderr, or without a screen on stdout; the bars are gone at the end."""
    with _drawn(screen) as (_, show):
        yield show


@contextmanager
def _drawn(screen: Screen | None) -> Iterator[tuple[Console, Show]]:
    """Give the bars' console too: what is printed on it stands above them."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn
    from rich.table import Column

    columns = (
        TextColumn(
            "{task.fields[model]}", markup=False, table_column=Column(no_wrap=True, max_width=NAME_WIDTH)
        ),
        BarColumn(bar_width=BAR_WIDTH, table_column=Column(min_width=BAR_WIDTH)),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
    )
    console = None if screen is None else Console(stderr=True, no_color=not screen.colour)
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, expand=True) as drawn:

        def show(event: FeedEvent) -> None:
            if not event.model:
                return
            if event.model not in bars:
                bars[event.model] = drawn.add_task("", total=None, model=one_line(event.model))
            done = event.progress
            if event.kind == "state" and event.state in AT_REST:
                done = 1.0 if event.state == State.READY else 0.0
            words = one_line(bar_words(event.message)) or event.state or ""
            drawn.update(
                bars[event.model],
                description=words if event.progress is None else f"{event.progress:4.0%} {words}",
                total=1.0 if done is not None else None,
                completed=done or 0.0,
            )

        yield drawn.console, show


# --- of the daemon in a terminal ----------------------------------------------------------------------------


async def show_lines(pool: Pool, said: Said, settled: Settled) -> None:
    """Print lines until `settled` returns: no model is on its way any more."""
    lines = Lines()

    def show(event: FeedEvent) -> None:
        if (text := lines.line(event)) is not None:
            print(text, flush=True)
        for text in _said(event, said):
            print(text, flush=True)

    await _until(settled, pool, show)


async def show_bars(pool: Pool, said: Said, settled: Settled) -> None:
    """Draw a bar for each model until `settled` returns; what is said stays."""
    with _drawn(None) as (console, draw):

        def show(event: FeedEvent) -> None:
            draw(event)
            for text in _said(event, said):
                # Never broken into lines of the terminal's width: a command is there to be copied.
                console.print(text, soft_wrap=True, markup=False, emoji=False, highlight=False)

        await _until(settled, pool, show)


def _said(event: FeedEvent, said: Said) -> Sequence[str]:
    return said(event.model) if event.kind == "state" and event.state == State.READY else ()


async def _until(settled: Settled, pool: Pool, show: Show) -> None:
    with pool.feed.subscribe(replay=True) as events:
        async with asyncio.TaskGroup() as group:
            shown = group.create_task(_each(events, show))
            await settled()
            await asyncio.sleep(0)  # what is in the queue by now still belongs to it
            shown.cancel()


async def _each(events: AsyncIterator[FeedEvent], show: Show) -> None:
    async for event in events:
        show(event)

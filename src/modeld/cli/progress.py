"""Models coming up, for people: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from modeld.supervisor.events import FeedEvent
from modeld.supervisor.pool import Pool
from modeld.supervisor.states import State

LINE_STEP = 0.1
"""A plain line each time a model's progress has grown by this share, and at each new stage or state."""

NAME_WIDTH = 24
BAR_WIDTH = 16
"""Columns of a terminal for a model's name and its bar; the rest of the line is for words."""

SETTLED = frozenset({State.READY, State.FAILED, State.STOPPED})


class Lines:
    """Decides which feed events deserve a line: a bar's every step would flood a log."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, float]] = {}

    def line(self, event: FeedEvent) -> str | None:
        """Return the line for an event, or None when the last one, or the log, says enough."""
        if event.kind != "progress":
            return None
        words = event.message.split()
        stage, done = words[0] if words else "", event.progress or 0.0
        before = self._shown.get(event.model)
        if before is not None and before[0] == stage and done - before[1] < LINE_STEP:
            return None
        self._shown[event.model] = (stage, done)
        share = f" ({done:.0%})" if event.progress is not None else ""
        return f"{event.model}: {event.message}{share}"


def _all_settled(pool: Pool) -> bool:
    return all(status.state in SETTLED for status in pool.statuses())


async def show_lines(pool: Pool) -> None:
    """Print lines until every model has settled."""
    lines = Lines()
    with pool.feed.subscribe(replay=True) as events:
        while not _all_settled(pool):
            if (text := lines.line(await anext(events))) is not None:
                print(text, flush=True)


async def show_bars(pool: Pool) -> None:
    """Draw a bar for each model until every one has settled."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.fields[model]}", table_column=Column(no_wrap=True, max_width=NAME_WIDTH)),
        BarColumn(bar_width=BAR_WIDTH, table_column=Column(min_width=BAR_WIDTH)),
        TextColumn("{task.description}", table_column=Column(no_wrap=True, ratio=1)),
    )
    bars: dict[str, TaskID] = {}
    bar = Progress(*columns, transient=True, expand=True)
    with pool.feed.subscribe(replay=True) as events, bar as progress:
        while not _all_settled(pool):
            event = await anext(events)
            if not event.model:
                continue
            if event.model not in bars:
                bars[event.model] = progress.add_task("", total=None, model=event.model)
            done = event.progress
            progress.update(
                bars[event.model],
                description=event.message.splitlines()[0] if event.message else event.state or "",
                total=1.0 if done is not None else None,
                completed=done or 0.0,
            )

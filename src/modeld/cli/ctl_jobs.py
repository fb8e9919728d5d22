"""`modeld ctl jobs`: the jobs of all callers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime

import click

from modeld.admin.client import AdminClient
from modeld.admin.schemas import JobReport
from modeld.cli.output import AS_JSON, document_out, line_out
from modeld.cli.table import Row, Screen, table
from modeld.cli.words import cell, count, duration, one_line
from modeld.errors import ModeldError, StartupError
from modeld.supervisor.states import State

HEADINGS = ("JOB", "STATUS", "KIND", "MODEL", "ITEMS", "FAILED", "AGE")
WORDS = 4
"""So many of the columns hold words."""

COLOURS = {"done": "green", "error": "red", "cancelled": "magenta", "processing": "cyan"}

LINE_STEP = 0.1
"""A plain line of progress each time a job has come on by this share."""

Show = Callable[[JobReport], None]


@click.group()
def jobs() -> None:
    """Look at submitted work and steer it."""


@jobs.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many."
)
@click.option("--unfinished", is_flag=True, help="Only what is not over.")
@AS_JSON
@click.pass_obj
def list_(client: AdminClient, limit: int, unfinished: bool, as_json: bool) -> None:
    """Show the jobs, the newest first."""
    reply = client.jobs(limit, unfinished=unfinished)
    if as_json:
        document_out(reply)
        return
    if not reply.jobs:
        line_out("no jobs")
        return
    now, screen = datetime.now().timestamp(), Screen.of(sys.stdout)
    for line in table(HEADINGS, WORDS, [_row(job, now) for job in reply.jobs], screen):
        line_out(line)


@jobs.command()
@click.argument("id")
@AS_JSON
@click.pass_obj
def show(client: AdminClient, id: str, as_json: bool) -> None:
    """Show one job: how far it is, and how its items failed."""
    job = client.job(id)
    if as_json:
        document_out(job)
        return
    for line in page(job, datetime.now().timestamp()):
        line_out(line)
    if why := _why_waiting(client, job):
        line_out(f"  {why}")


@jobs.command()
@click.argument("id")
@click.pass_obj
def cancel(client: AdminClient, id: str) -> None:
    """End a job, queued or running; what it has done so far can be fetched."""
    line_out(summary(client.cancel_job(id)))


@jobs.command()
@click.argument("id")
@AS_JSON
@click.pass_obj
def wait(client: AdminClient, id: str, as_json: bool) -> None:
    """Wait for a job's end, showing how it gets on; ends with 1 when it is not done."""
    last: JobReport | None = None
    with _going_on(id), _progress(Screen.of(sys.stderr)) as progress:
        for job in client.follow_job(id):
            progress(job)
            last = job
    if last is None or not last.over:
        raise StartupError(f"modeld stopped before the job {id} was over; it goes on when modeld runs again")
    if as_json:
        document_out(last)
    else:
        line_out(summary(last))
    if last.status != "done":
        raise ModeldError(last.error or f"the job was {last.status}", code=last.code or last.status)


# --- what is shown ------------------------------------------------------------------------------------------


def _row(job: JobReport, now: float) -> Row:
    cells = (
        cell(job.id),
        job.status,
        cell(job.kind),
        cell(job.model),
        f"{job.done}/{job.items}",
        str(job.failed),
        duration(now - job.created),
    )
    return Row(cells, (one_line(job.error),) if job.error else (), COLOURS.get(job.status))


def page(job: JobReport, now: float) -> Iterator[str]:
    """Give the lines about a job; `now` is UTC seconds since the epoch."""
    yield summary(job)
    ago = duration(now - job.created)
    yield f"  {cell(job.kind)} on {cell(job.model)}, submitted {ago} ago by {job.caller}"
    at_work = 0 if job.over else job.items - job.waiting - job.done - job.failed
    yield f"  {job.done} done, {job.failed} failed, {at_work} at work, {job.waiting} waiting"
    if job.begun is not None:
        spent = (job.ended or now) - job.begun
        yield f"  began {duration(job.begun - job.created)} after that, {duration(spent)} of work"
    if not job.over and job.deadline is not None:
        yield f"  must be over in {duration(job.deadline - now)}"
    if job.over and job.expires is not None:
        yield f"  can be fetched for {duration(job.expires - now)}"
    for failure in job.failures:
        yield f"  item {failure.place}: {one_line(failure.message)}"
    if job.failed > len(job.failures):
        yield f"  and {count(job.failed - len(job.failures), 'more item')} that failed"


def _why_waiting(client: AdminClient, job: JobReport) -> str:
    """Return what a job's model does, when that is why the job waits."""
    if job.over or not job.waiting:
        return ""
    for model in client.status().models:
        if model.name == job.model and model.state is not State.READY:
            return f"waits: its model is {model.state}" + (
                f": {one_line(model.message)}" if model.message else ""
            )
    return ""


def summary(job: JobReport) -> str:
    """Return one line about a job."""
    failed = f", {job.failed} failed" if job.failed else ""
    why = f": {one_line(job.error)}" if job.error else ""
    return f"{cell(job.id)} is {job.status}, {job.done} of {count(job.items, 'item')} done{failed}{why}"


# --- progress -----------------------------------------------------------------------------------------------


@contextmanager
def _going_on(id: str) -> Iterator[None]:
    """Tell whoever interrupts the waiting that this stops nothing."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"modeld goes on with it; `modeld ctl jobs show {id}` shows how", err=True)
        raise


def _progress(screen: Screen) -> AbstractContextManager[Show]:
    return _bar(screen) if screen.width is not None else _lines()


@contextmanager
def _lines() -> Iterator[Show]:
    shown: list[tuple[str, float]] = []

    def show(job: JobReport) -> None:
        share = (job.done + job.failed) / job.items
        if not shown or job.status != shown[-1][0] or share - shown[-1][1] >= LINE_STEP:
            shown.append((job.status, share))
            click.echo(summary(job), err=True)

    yield show


@contextmanager
def _bar(screen: Screen) -> Iterator[Show]:
    """Draw on stderr; the bar is gone at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not screen.colour)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as drawn:
        bar = drawn.add_task("", total=None)

        def show(job: JobReport) -> None:
            drawn.update(bar, description=job.status, total=job.items, completed=job.done + job.failed)

        yield show

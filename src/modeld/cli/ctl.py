"""`modeld ctl`: look at and steer a running daemon, over its admin socket."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path

import click
import msgspec

from modeld.admin.client import AdminClient
from modeld.cli import render
from modeld.config import paths
from modeld.errors import StartupError
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import Status

STOPPED = "modeld has stopped"


@click.group()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="MODELD_STATE_DIR",
    show_envvar=True,
    help="State directory of the daemon to speak to.",
)
@click.pass_context
def ctl(context: click.Context, state_dir: Path | None) -> None:
    """Look at and steer a running daemon."""
    context.obj = AdminClient(paths.admin_socket(paths.state_dir(state_dir, os.environ)))


@ctl.command()
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")
@click.pass_obj
def status(client: AdminClient, as_json: bool) -> None:
    """Show every model: state, cause, since when, memory, calls in flight and waiting."""
    reply = client.status()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(reply), indent=2))
        return
    click.echo(render.status_page(reply, render.Screen.of(sys.stdout), now=datetime.now().timestamp()))


@ctl.command()
@click.argument("name")
@click.pass_obj
def load(client: AdminClient, name: str) -> None:
    """Load a model now; ends when it is ready."""
    _move(client, name, "load")


@ctl.command()
@click.argument("name")
@click.pass_obj
def unload(client: AdminClient, name: str) -> None:
    """Let a model finish its calls and stop it."""
    _move(client, name, "unload")


@ctl.command()
@click.argument("name")
@click.pass_obj
def restart(client: AdminClient, name: str) -> None:
    """Unload a model and load it again."""
    _move(client, name, "restart")


@ctl.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until interrupted.")
@click.pass_obj
def logs(client: AdminClient, name: str, follow: bool) -> None:
    """Print the last log lines of a model's worker and engine."""
    for line in client.logs(name, follow=follow):
        _line(f"{render.clock(line.time)} {render.printable(line.text)}")
    if follow:
        raise StartupError(STOPPED)


@ctl.command()
@click.option("--no-follow", is_flag=True, help="Print what is known and end.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object per line.")
@click.pass_obj
def events(client: AdminClient, no_follow: bool, as_json: bool) -> None:
    """Print what happens to the models, from the oldest event kept, until interrupted."""
    for event in client.events(follow=not no_follow):
        _line(msgspec.json.encode(event).decode() if as_json else render.event_line(event))
    if not no_follow:
        raise StartupError(STOPPED)


def _move(client: AdminClient, name: str, verb: str) -> None:
    """Show the move's progress on stderr and its outcome on stdout."""
    outcome: Status | None = None
    with render.progress(f"{verb} {name}", render.Screen.of(sys.stderr)) as show:
        for item in client.move(name, verb):
            if isinstance(item, FeedEvent):
                show(item)
            else:
                outcome = item
    assert outcome is not None, "AdminClient.move ends with a Status or raises"
    _line(render.outcome_line(outcome))


def _line(text: str) -> None:
    """Print and flush: whoever reads a stream wants each line when it comes."""
    click.echo(text)
    sys.stdout.flush()

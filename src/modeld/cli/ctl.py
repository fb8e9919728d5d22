"""`modeld ctl`: look at and steer a running daemon, over its admin socket."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path

import click
import msgspec

from modeld.admin.client import AdminClient
from modeld.admin.schemas import StatusReply
from modeld.cli import machine, render
from modeld.cli.ctl_change import add, reconcile, reload, remove
from modeld.cli.ctl_jobs import jobs
from modeld.cli.ctl_models import STATE, bring, models, rm
from modeld.cli.output import AS_JSON, document_out, going_on, line_out
from modeld.cli.progress import progress
from modeld.cli.table import Screen
from modeld.cli.words import clock, printable
from modeld.config import paths
from modeld.errors import ModeldError, NotFound, StartupError
from modeld.hardware.machine import HOST
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
    state = paths.state_dir(state_dir, os.environ)
    context.obj, context.meta[STATE] = AdminClient(paths.admin_socket(state)), state


@ctl.command()
@click.argument("name", required=False)
@AS_JSON
@click.pass_obj
def status(client: AdminClient, name: str | None, as_json: bool) -> None:
    """Show every model: what it does and why, since when, memory, calls in flight and waiting.

    With NAME show that model only, and what it really is and uses, as its worker found it.
    """
    reply = client.status()
    if name is not None:
        reply = msgspec.structs.replace(reply, models=(_named(reply, name),))
    if as_json:
        document_out(reply)
        return
    now, screen = datetime.now().timestamp(), Screen.of(sys.stdout)
    line_out(render.status_page(reply, screen, now=now, labels=_labels(client, reply)))
    if name is not None and (facts := reply.models[0].facts) is not None:
        line_out("\n".join(render.facts_lines(facts, screen)))


@ctl.command()
@AS_JSON
@click.pass_obj
def devices(client: AdminClient, as_json: bool) -> None:
    """Show the machine's memories, who holds how much of them, and which engines are there."""
    reply = client.devices()
    if as_json:
        document_out(reply)
        return
    line_out(machine.devices_page(reply, Screen.of(sys.stdout)))


@ctl.command()
@click.argument("name")
@AS_JSON
@click.pass_obj
def estimate(client: AdminClient, name: str, as_json: bool) -> None:
    """Show the memory a model takes as a sum, line by line, and where it would go."""
    reply = client.estimate(name)
    if as_json:
        document_out(reply)
        return
    line_out(machine.estimate_page(reply, Screen.of(sys.stdout)))


# --- one model ----------------------------------------------------------------------------------------------


@ctl.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Unload models that are busy, too, if it needs their memory.")
@click.pass_obj
def load(client: AdminClient, name: str, force: bool) -> None:
    """Load a model now; ends when it is ready."""
    _move(client, name, "load", force)


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
        line_out(f"{clock(line.time)} {printable(line.text)}")
    if follow:
        raise StartupError(STOPPED)


@ctl.command()
@click.option("--no-follow", is_flag=True, help="Print what is known and end.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object per line.")
@click.pass_obj
def events(client: AdminClient, no_follow: bool, as_json: bool) -> None:
    """Print what happens to the models, from the oldest event kept, until interrupted."""
    for event in client.events(follow=not no_follow):
        line_out(msgspec.json.encode(event).decode() if as_json else render.event_line(event))
    if not no_follow:
        raise StartupError(STOPPED)


for _command in (add, remove, reconcile, reload, jobs, models, bring, rm):
    ctl.add_command(_command)


# --- showing ------------------------------------------------------------------------------------------------


def _move(client: AdminClient, name: str, verb: str, force: bool = False) -> None:
    """Show the move's progress on stderr and its outcome on stdout."""
    outcome: Status | None = None
    with going_on(), progress(Screen.of(sys.stderr)) as show:
        for item in client.move(name, verb, force):
            if isinstance(item, FeedEvent):
                show(item)
            else:
                outcome = item
    assert outcome is not None, "AdminClient.move ends with a Status or raises"
    line_out(render.outcome_line(outcome))


def _named(reply: StatusReply, name: str) -> Status:
    for status in reply.models:
        if status.name == name:
            return status
    known = ", ".join(printable(status.name) for status in reply.models) or "none"
    raise NotFound(f"there is no model {name!r}; there is: {known}")


def _labels(client: AdminClient, reply: StatusReply) -> dict[str, str]:
    """Ask for the GPUs' short names when a model lies on one; the page does without them if need be."""
    if all(set(copy.devices) <= {HOST} for model in reply.models for copy in model.replicas):
        return {}
    try:
        return machine.labels(client.devices())
    except ModeldError:
        return {}

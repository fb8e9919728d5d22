"""The commands of `modeld ctl` that change which models there are: add, remove, reconcile, reload."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import click

from modeld.admin.client import AdminClient
from modeld.admin.schemas import Change, ChangeResult, Strategy
from modeld.cli.changes import outcome_page, plan_page
from modeld.cli.output import AS_JSON, document_out, going_on, line_out
from modeld.cli.progress import progress
from modeld.cli.table import Screen
from modeld.cli.words import cell
from modeld.errors import UsageError
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import State


def _change_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all changes take; they come as `how`."""

    @click.option("--dry-run", is_flag=True, help="Show the plan and do nothing.")
    @click.option(
        "--replace-strategy",
        type=click.Choice(["blue_green", "stop_start"]),
        help="How a model that differs is replaced: the new one first, or the old one away first.",
    )
    @AS_JSON
    @wraps(command)
    def with_options(dry_run: bool, replace_strategy: Strategy | None, as_json: bool, **rest: Any) -> None:
        client = click.get_current_context().find_object(AdminClient)
        assert client is not None, "the group `ctl` makes one"
        command(_Changing(client, dry_run, replace_strategy, as_json), **rest)

    return with_options


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--model", metavar="REF", help="Add this one model in place of FILE: a path, org/repo or org/repo:glob."
)
@click.option("--name", help="Its name; the reference's last part by default.")
@click.option("--usecase", help="What it is for, e.g. generate, embed; by its file or engine by default.")
@click.option("--loader", help="Engine that runs it; by its file by default.")
@click.option("--num-gpus", type=float, help="GPUs: a share of one below 1, else a whole number.")
@click.option("--num-cpus", type=float, help="CPU cores.")
@click.option("--num-replicas", type=int, help="Copies that run.")
@click.option("--max-ongoing-requests", type=int, help="Requests one copy takes at once.")
@_change_options
def add(changing: _Changing, file: Path | None, model: str | None, **options: Any) -> None:
    """Add models, from FILE or --model.

    Those there already are replaced if they differ, and left alone if they do not.
    """
    if (file is None) == (model is None):
        raise UsageError("give one of FILE and --model REF")
    if file is not None:
        given = [f"--{key.replace('_', '-')}" for key, value in options.items() if value is not None]
        if given:
            raise UsageError(f"{', '.join(given)}: goes with --model; a FILE says this for each model")
        changing.run("add", *_read(file))
    elif model is not None:
        from modeld.cli.reference import told_by_files
        from modeld.config.load import from_document, single_model

        loader, usecase = options.pop("loader"), options.pop("usecase")
        model, loader, usecase = told_by_files(model, Path.cwd(), loader=loader, usecase=usecase)
        document = single_model(model, loader=loader, usecase=usecase, **options)
        from_document(document, Path.cwd())
        changing.run("add", document, str(Path.cwd()))


@click.command()
@click.argument("names", nargs=-1, required=True)
@_change_options
def remove(changing: _Changing, names: tuple[str, ...]) -> None:
    """Let models finish their calls, and forget them."""
    changing.run("remove", names=tuple(dict.fromkeys(names)))


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@_change_options
def reconcile(changing: _Changing, file: Path | None) -> None:
    """Make the models exactly those of FILE, or of the last configuration in effect."""
    if file is None:
        changing.run("reconcile")
    else:
        changing.run("reconcile", *_read(file))


@click.command()
@_change_options
def reload(changing: _Changing) -> None:
    """Let the daemon read its own configuration file again."""
    changing.run("reload")


@dataclass(frozen=True)
class _Changing:
    """How a change is asked for and shown."""

    client: AdminClient
    dry_run: bool
    strategy: Strategy | None
    as_json: bool

    def run(
        self,
        kind: Literal["add", "remove", "reconcile", "reload"],
        document: dict[str, Any] | None = None,
        base: str = "",
        names: tuple[str, ...] = (),
    ) -> None:
        """Show the plan, and unless it is a dry run carry it out; exit with 1 when part of it failed."""
        change = Change(kind, document, base, names, self.strategy)
        screen = Screen.of(sys.stdout)
        plan = self.client.plan(change)
        if self.dry_run or not self.as_json:
            document_out(plan) if self.as_json else line_out(plan_page(plan, screen))
        if self.dry_run:
            return
        result: ChangeResult | None = None
        with going_on(), progress(Screen.of(sys.stderr)) as show:
            for item in self.client.apply(change):
                if isinstance(item, FeedEvent):
                    show(item)
                else:
                    result = item
        assert result is not None, "AdminClient.apply ends with a ChangeResult or raises"
        if self.as_json:
            document_out(result)
        else:
            if result.plan != plan:  # another change came first
                line_out(f"the plan has changed meanwhile:\n{plan_page(result.plan, screen)}")
            line_out(outcome_page(result.outcomes, screen) or "done")
            failed = [each.name for each in result.outcomes if each.message.startswith(str(State.FAILED))]
            if added := [cell(name) for name in failed if name in result.plan.adds]:
                again, forget = f"`modeld ctl load {added[0]}`", f"`modeld ctl remove {' '.join(added)}`"
                click.echo(
                    f"what failed stays configured: {again} tries again, {forget} forgets it", err=True
                )
        if not all(outcome.ok for outcome in result.outcomes):
            click.get_current_context().exit(1)


def _read(file: Path) -> tuple[dict[str, Any], str]:
    """Return a file's plain data and the folder of its relative paths; warnings go to stderr.

    Raises ConfigError with the places of all mistakes: here they are known, in the daemon no more.
    """
    from modeld.config.load import load

    loaded = load(file, os.environ)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    return loaded.document, str(loaded.base)

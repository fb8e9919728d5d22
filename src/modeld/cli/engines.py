"""`modeld engines`: which engines are here, and environments of their own for them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from modeld.cli.output import AS_JSON, document_out
from modeld.cli.sentences import said
from modeld.cli.table import Row, Screen, table
from modeld.cli.words import cell, memory, one_line
from modeld.config import paths
from modeld.engines.pins import Variant
from modeld.engines.place import Place
from modeld.errors import StartupError, UsageError

if TYPE_CHECKING:
    from modeld.config.schema import Config
    from modeld.engines.listing import Engine
    from modeld.engines.pip import Beat, Tell
    from modeld.protocol.capabilities import Capability

HEADINGS = ("ENGINE", "WHERE", "VARIANT", "SIZE")

LINE_STEP = 0.25
"""A plain line each time that a download or the installation has grown by this share."""

_COLOURS = {"missing": "yellow"}

_CONFIG = click.option(
    "--config", "-c", "file", type=click.Path(path_type=Path), help="The daemon's configuration file."
)
_STATE_DIR = click.option(
    "--state-dir", type=click.Path(path_type=Path), help="State directory, in place of the configuration's."
)
_NAME = click.argument("name")


@click.group()
def engines() -> None:
    """Look at the engines, and give them environments of their own.

    Engines disagree about the versions of what they stand on. What is installed here is used by itself; an
    engine in the daemon's own environment, and an interpreter that the configuration names, go first.
    """


@engines.command("list")
@_CONFIG
@_STATE_DIR
@AS_JSON
def list_(file: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Show every engine: where it is, and what would bring it."""
    from modeld.engines import listing

    config, place = _place(file, state_dir)
    named = config.engines.named() if config is not None else {}
    binary = config.engines.llama_server.binary if config is not None else None
    found = asyncio.run(_look(place, None if binary is None else str(binary), named))
    rows = listing.engines(place, found, named)
    if as_json:
        document_out(listing.Engines(rows))
    else:
        click.echo("\n".join(table(HEADINGS, 3, [_row(each) for each in rows], Screen.of(sys.stdout))))


async def _look(place: Place, binary: str | None, named: dict[str, str]) -> dict[str, Capability]:
    from modeld.clock import SystemClock
    from modeld.supervisor.capabilities import Capabilities, override_from

    look = Capabilities(clock=SystemClock(), override=override_from(os.environ), managed=place.python)
    return await look.all(binary=binary, pythons=named)


def _row(engine: Engine) -> Row:
    below = [said(engine.detail)]
    if engine.python:
        below.append(cell(engine.python))
    if engine.note:
        below.append(engine.note)
    if engine.fix:
        below.append(f"to get it: {one_line(engine.fix)}")
    cells = (engine.name, engine.where, engine.variant or "-", memory(engine.size))
    return Row(cells, below, _COLOURS.get(engine.where, "green"))


@engines.command()
@_NAME
@click.option("--cpu", "wished", flag_value=Variant.CPU.value, help="The build that needs no GPU.")
@click.option("--cuda", "wished", flag_value=Variant.CUDA.value, help="The build for NVIDIA's GPUs.")
@click.option("--metal", "wished", flag_value=Variant.METAL.value, help="The build for Apple silicon.")
@_CONFIG
@_STATE_DIR
def install(name: str, wished: str | None, file: Path | None, state_dir: Path | None) -> None:
    """Give the engine NAME an environment of its own.

    Without --cpu, --cuda or --metal the build is the one for this machine. An engine that is installed is
    replaced when the new one works; a failed or interrupted installation changes nothing.
    """
    from modeld.engines.install import install as carry_out
    from modeld.engines.variant import choose, recipes_of
    from modeld.hardware.probe import system_probe

    recipes = recipes_of(name)
    _, place = _place(file, state_dir)
    _check_owner(place.root.parent)
    wish = None if wished is None else Variant(wished)
    variant = choose(name, wish, system_probe(os.environ).look(), lambda program: bool(shutil.which(program)))
    before = place.home(name)
    with _stopped_by_signals(), _progress(name, Screen.of(sys.stderr)) as tell:
        try:
            about = carry_out(place, name, variant, recipes[variant], tell)
        except (KeyboardInterrupt, SystemExit):
            kept = "what was installed before is kept" if before is not None else "nothing is installed"
            click.echo(f"{name}: interrupted; {kept}", err=True)
            raise
    click.echo(
        f"{name} {about.version} ({about.variant}) is installed: {memory(about.size)} in {place.home(name)}"
    )


@engines.command()
@_NAME
@click.option("--force", is_flag=True, help="Also while the running daemon uses it.")
@_CONFIG
@_STATE_DIR
def remove(name: str, force: bool, file: Path | None, state_dir: Path | None) -> None:
    """Remove the environment that modeld has made for the engine NAME."""
    from modeld.engines.install import remove as carry_out
    from modeld.engines.variant import recipes_of

    recipes_of(name)
    _, place = _place(file, state_dir)
    _check_owner(place.root.parent)
    used = carry_out(place, name, lambda: _users(place, name), force=force)
    click.echo(f"{name} is removed")
    for folder in used:
        click.echo(f"{folder} is in use still; the next install or remove of {name} clears it up")


def _users(place: Place, name: str) -> Sequence[str]:
    """Return the running daemon's models whose workers this environment is for."""
    from modeld.admin.client import NOT_RUNNING, AdminClient

    daemon = AdminClient(paths.admin_socket(place.root.parent))
    try:
        models = [status.name for status in daemon.status().models if status.loader == name]
        if not models:
            return ()
        found = daemon.devices().loaders.get(name)
    except StartupError as error:
        if error.code == NOT_RUNNING:
            return ()
        raise
    return models if found is not None and found.python == place.python(name) else ()


def _place(file: Path | None, state_dir: Path | None) -> tuple[Config | None, Place]:
    config = None
    if file is not None:
        from modeld.config.load import load_config

        config = load_config(file, os.environ)
    chosen = state_dir.absolute() if state_dir is not None else config.state_dir if config else None
    return config, Place(paths.state_dir(chosen, os.environ))


def _check_owner(state_dir: Path) -> None:
    """Raise UsageError for root in another user's state directory: that user's daemon could not read what
    root makes, and root would run what that user can change.
    """
    with suppress(FileNotFoundError):
        owner = state_dir.stat().st_uid
        if os.geteuid() == 0 != owner:
            raise UsageError(
                f"{state_dir} belongs to uid {owner}: run this as that user, not as root; for the system's "
                "service: systemd-run --pipe --wait -p DynamicUser=yes -p User=modeld "
                f"-p StateDirectory=modeld {sys.argv[0]} {' '.join(sys.argv[1:])}"
            )


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """End in good order when a signal comes, as with Ctrl-C."""

    def stop(number: int, _frame: object) -> NoReturn:
        # The clean-up that follows must not be cut short by a second signal.
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {
        number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- how far it is ------------------------------------------------------------------------------------------


@contextmanager
def _progress(name: str, screen: Screen) -> Iterator[Tell]:
    """Show on stderr how far an installation is: a bar on a terminal, else lines."""
    if screen.width is None:
        lines = Lines()

        def line(beat: Beat) -> None:
            if lines.worth(beat):
                click.echo(f"{name}: {in_words(beat)}", err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    columns = (
        TextColumn(name, markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
    )
    console = Console(stderr=True, no_color=not screen.colour)
    with Progress(*columns, console=console, transient=True, expand=True) as drawn:
        bar = drawn.add_task("", total=None)

        def draw(beat: Beat) -> None:
            total = None if beat.done is None else 1.0
            drawn.update(bar, description=in_words(beat), total=total, completed=beat.done or 0.0)

        yield draw


def in_words(beat: Beat) -> str:
    """Return one line about how far it is."""
    share = f" ({beat.done:.0%})" if beat.done is not None else ""
    return one_line(f"{beat.stage} {beat.words}{share}")


class Lines:
    """Decides which beats deserve a line."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._done = 0.0

    def worth(self, beat: Beat) -> bool:
        """Say whether a beat tells something that the last line did not."""
        what = (beat.stage, beat.words if beat.stage in ("downloading", "building") else "")
        done = beat.done or 0.0
        if what == self._last and done - self._done < LINE_STEP:
            return False
        self._last, self._done = what, done
        return True

"""`modeld`: the commands, and how their errors end. Exit codes: 0 done, 1 failed, 2 bad input, 130 ^C.

Commands are imported when they are called, so that `modeld version` and `modeld ctl` do not wait for the
daemon's libraries.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from modeld import __version__
from modeld.errors import ConfigError, ModeldError, NotFound, UsageError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("modeld.cli.serve:serve", "Run the daemon."),
    "check": ("modeld.cli.check:check", "Read a configuration file and say what is wrong with it."),
    "doctor": ("modeld.cli.doctor:doctor", "Look whether this machine has what modeld needs."),
    "engines": ("modeld.cli.engines:engines", "Look at the engines, and install them."),
    "ctl": ("modeld.cli.ctl:ctl", "Look at and steer a running daemon."),
    "version": ("modeld.cli.main:version", "Print the version."),
}
"""Command → where its click command lives, and its line in the help, which must not cost an import."""


class Commands(click.Group):
    """The command group, with modeld's errors and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that is called."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of its output who has seen enough (`| head`) is no failure."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # so that a reader who left is met here and not at interpreter exit
        except BrokenPipeError:
            # What is still buffered must go somewhere quiet.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run a command and exit with its code; never a traceback for what a person got wrong."""
        options["standalone_mode"] = False
        try:
            code = super().main(args, *rest, **options)
        except ModeldError as error:
            # A ConfigError begins with file:line:column, for editors that jump there.
            click.echo(f"{error}" if isinstance(error, ConfigError) else f"Error: {error}", err=True)
            # A name that is not there is bad input as well.
            code = 2 if isinstance(error, UsageError | NotFound) else 1
        except click.ClickException as error:
            error.show(sys.stderr)
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            code = 130
        sys.exit(code if isinstance(code, int) else 0)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="modeld %(version)s")
def modeld() -> None:
    """One daemon for all your models, behind one OpenAI-compatible address."""


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"modeld {__version__}")


def main() -> NoReturn:
    """Run the command line of this process."""
    modeld.main(prog_name="modeld")

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from modeld import __version__
from modeld.cli import main as cli
from modeld.errors import ConfigError, ModeldError, StartupError, UsageError


def _fails(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.fixture
def as_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[click.Command], None]:
    """Put another command in the place of `version`."""
    return lambda command: monkeypatch.setattr(cli, "version", command)


@pytest.mark.parametrize("line", [["version"], ["--version"]])
def test_version(line: list[str]) -> None:
    """Both spellings print the package's version."""
    result = CliRunner().invoke(cli.modeld, line)
    assert (result.exit_code, result.stdout) == (0, f"modeld {__version__}\n")


def test_help_lists_every_command() -> None:
    """The help shows the commands in the table's order, without importing them."""
    result = CliRunner().invoke(cli.modeld, ["-h"])
    listed = [line.split()[0] for line in result.stdout.partition("Commands:\n")[2].splitlines()]
    assert (result.exit_code, listed) == (0, ["serve", "check", "doctor", "engines", "ctl", "version"])


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_exists(name: str) -> None:
    """Each entry of the table leads to a click command that has a help."""
    result = CliRunner().invoke(cli.modeld, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: modeld {name}")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("no such option"), 2, "Error: no such option"),
        (ConfigError("unknown key", file=Path("m.yaml"), line=3, column=5), 2, "m.yaml:3:5: unknown key"),
        (StartupError("port taken"), 1, "Error: port taken"),
        (ModeldError("odd"), 1, "Error: odd"),
        (click.ClickException("clicked"), 1, "Error: clicked"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(
    as_version: Callable[[click.Command], None], error: BaseException, code: int, message: str
) -> None:
    """Each kind of error has its exit code and one message on stderr, never a traceback."""
    as_version(_fails(error))
    result = CliRunner().invoke(cli.modeld, ["version"])
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (code, "", message)


def test_defects_are_not_hidden(as_version: Callable[[click.Command], None]) -> None:
    """An exception nobody raised on purpose keeps its traceback."""
    as_version(_fails(ZeroDivisionError()))
    assert isinstance(CliRunner().invoke(cli.modeld, ["version"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("line", [["frob"], ["version", "--frob"], ["ctl", "load"], []])
def test_bad_input(line: list[str]) -> None:
    """A wrong command line exits with 2 and shows the usage."""
    result = CliRunner().invoke(cli.modeld, line)
    assert result.exit_code == 2
    assert "Usage: modeld" in result.stderr


def test_reader_who_left() -> None:
    """Output into a closed pipe ends quietly."""
    code = "import os,sys; r,w=os.pipe(); os.close(r); os.dup2(w,1); from modeld.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "version"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_module_is_the_program() -> None:
    """`python -m modeld` is `modeld`."""
    result = subprocess.run(
        [sys.executable, "-m", "modeld", "version"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, f"modeld {__version__}\n")

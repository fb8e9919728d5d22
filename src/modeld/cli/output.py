"""How the commands of `ctl` write, and how they end when somebody stops watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

AS_JSON = click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")
"""The option that all commands share whose answer is one document."""


def line_out(text: str) -> None:
    """Print and flush: whoever reads a stream wants each line when it comes."""
    click.echo(text)
    sys.stdout.flush()


def document_out(body: msgspec.Struct) -> None:
    """Print a document for programs."""
    line_out(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())


@contextmanager
def going_on() -> Iterator[None]:
    """Tell whoever interrupts the watching that this stops nothing."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("modeld goes on with it; `modeld ctl events` shows how", err=True)
        raise

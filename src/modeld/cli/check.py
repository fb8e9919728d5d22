"""`modeld check FILE`: read a configuration and say what is in it, or what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check the configuration FILE without starting anything."""
    from modeld.config.load import load_config
    from modeld.config.schema import warnings

    config = load_config(file, os.environ)
    count = len(config.models)
    click.echo(f"{file}: ok, {count} model{'' if count == 1 else 's'}")
    for model in config.models:
        click.echo(f"  {model.name}: {model.loader}, {model.usecase}, {model.model}")
    for line in warnings(config):
        click.echo(f"warning: {line}")

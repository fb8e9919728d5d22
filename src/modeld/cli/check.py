"""`modeld check FILE`: read a configuration and say what is in it, or what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from modeld.config.load import Loaded
    from modeld.config.schema import Config, Model


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check the configuration FILE without starting anything."""
    from modeld.config.load import load

    loaded = load(file, os.environ)
    doubts = _check_references(loaded, file) + _check_exposure(loaded.config, file)
    count = sum(1 for _ in loaded.config.keyed_models())
    click.echo(f"{file}: ok, {_counted(count, 'model')}")
    for route, models in _gateways(loaded.config):
        click.echo(f"{route}:" if models else f"{route}: no models")
        for model in models:
            click.echo(f"  {model.name}: {model.loader}, {model.usecase}, {model.model}")
            click.echo(f"    {_wishes(loaded.config, model)}")
    for line in (*loaded.warnings, *doubts):
        click.echo(f"warning: {line}")


def _check_references(loaded: Loaded, file: Path) -> list[str]:
    """Return warnings, with their places, for models whose files are not there.

    Raises ConfigError for references to packages and demo models that are wrong: they are so anywhere. A path
    that is not there may be there when the daemon starts.
    """
    from modeld.config.document import Document
    from modeld.config.explain import dotted
    from modeld.errors import ConfigError

    config = loaded.config
    places: list[tuple[tuple[str | int, ...], Model]] = [
        (("models", at, "model"), model) for at, model in enumerate(config.models)
    ]
    for number, gateway in enumerate(config.gateways):
        own = enumerate(gateway.models)
        places += [(("gateways", number, "models", at, "model"), model) for at, model in own]
    found = [(path, model.model, doubt) for path, model in places if (doubt := _doubt(model, loaded.base))]
    if not found:
        return []
    document = Document(file.read_text("utf-8"), file)
    warnings = []
    for path, reference, doubt in found:
        line, column = document.place(path)
        message = f"{dotted(path)}: {doubt}"
        if reference.startswith(("pypi:", "demo:")):
            raise ConfigError(message, file=file, line=line, column=column)
        warnings.append(f"{file}:{line}:{column}: {message}")
    return warnings


def _check_exposure(config: Config, file: Path) -> list[str]:
    """Return a warning where `modeld serve` will refuse to open the API to other machines without keys."""
    if config.listen.is_loopback or config.api_keys:
        return []
    return [
        f"{file}: listen: {config.listen.host} can be reached from other machines, so `modeld serve` asks "
        "for api_keys (or MODELD_API_KEYS)"
    ]


def _doubt(model: Model, base: Path) -> str:
    """Return why a model will not be found, or "" when nothing speaks against it."""
    from modeld.errors import UsageError
    from modeld.library.refs import LocalRef, parse

    if model.loader == "fake":
        return ""
    try:
        found = parse(model.model, base)
    except UsageError as error:
        # whisper.cpp knows models by names of their own.
        return "" if model.loader == "whispercpp" and ":" not in model.model else str(error)
    return f"there is no {found.path}" if isinstance(found, LocalRef) and not found.path.exists() else ""


def _gateways(config: Config) -> list[tuple[str, tuple[Model, ...]]]:
    from modeld.config.schema import slug

    default = [("/v1", config.models)] if config.models or not config.gateways else []
    return default + [(f"/{slug(gateway.name)}/v1", gateway.models) for gateway in config.gateways]


def _wishes(config: Config, model: Model) -> str:
    """Return in one line what a model asks for."""
    wishes = ["loaded at start" if model.load == "eager" else "loaded on demand", _gpus(model.gpus)]
    scaling = model.autoscaling_config
    if scaling is None:
        wishes.append(_counted(model.num_replicas, "replica"))
    else:
        wishes.append(f"{scaling.min_replicas} to {_counted(scaling.max_replicas, 'replica')} by load")
    seconds = config.keep_alive_for(model)
    if model.pin:
        wishes.append("pinned")
    elif seconds is not None:
        wishes.append(f"unloaded after {seconds:g} s without a request")
    if model.priority:
        wishes.append(f"priority {model.priority}")
    if model.aliases:
        wishes.append(f"also called {', '.join(model.aliases)}")
    return ", ".join(wishes)


def _gpus(gpus: float | None) -> str:
    if gpus is None:
        return "GPUs as modeld decides"
    if gpus == 0:
        return "no GPU"
    return f"{gpus:g} of a GPU" if gpus < 1 else _counted(int(gpus), "GPU")


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"

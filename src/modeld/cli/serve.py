"""`modeld serve`: the daemon in the foreground, and what it tells whoever started it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modeld.errors import UsageError

if TYPE_CHECKING:
    from modeld.config.schema import Config
    from modeld.daemon import FrontEnd, Running


DEMO = (
    "Serve small models that come as Python packages: chat, embeddings, speech and transcription, as far as "
    "their engines are installed."
)


@click.command()
@click.option("--config", "-c", "file", type=click.Path(path_type=Path), help="Configuration file (YAML).")
@click.option("--demo", is_flag=True, help=DEMO)
@click.option("--host", help="Address to listen on, in place of the configuration's.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes any free one.")
@click.option("--state-dir", type=click.Path(path_type=Path), help="Where the daemon keeps its state.")
def serve(file: Path | None, demo: bool, host: str | None, port: int | None, state_dir: Path | None) -> None:
    """Run the daemon until SIGTERM or Ctrl-C.

    Without --config and --demo it serves the models it served last. SIGHUP reads the file again. The first
    signal lets open requests finish, the second ends them.
    """
    config, warnings = _configuration(file, demo, host, port, state_dir)

    from modeld.telemetry import logging
    from modeld.trust import nobody_trusted

    with nobody_trusted():
        from modeld import daemon

    logging.setup(config.log.format, config.log.level)
    for key in config.api_keys:
        logging.redact(key.get_secret_value())
    for warning in warnings:
        getLogger("modeld.config").warning("%s", warning)
    base = file.absolute().parent if file is not None else Path.cwd()
    main = daemon.run(
        config,
        os.environ,
        base=base,
        file=None if file is None else file.absolute(),
        resume=file is None and not demo,
        front_end=_demonstration(config) if demo else _show,
    )
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: the standard loop does
        asyncio.run(main)
    else:
        uvloop.run(main)


def _demonstration(config: Config) -> FrontEnd:
    """Return what shows the demo. Raises UsageError for a variable MODELD_CAPABILITIES that is wrong."""
    from modeld.config import paths
    from modeld.engines.place import Place
    from modeld.library import demo
    from modeld.supervisor.capabilities import override_from

    managed = Place(paths.state_dir(config.state_dir, os.environ))
    known = {model.loader: True for model in demo.DEMO_MODELS if managed.python(model.loader) is not None}
    absent = demo.missing({**known, **(override_from(os.environ) or {})})
    return partial(_show, then=demo.coming(absent), notes=demo.how_to_get(absent))


def _configuration(
    file: Path | None, demo: bool, host: str | None, port: int | None, state_dir: Path | None
) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration as the command line changes it, and what is to be said about its file."""
    from modeld.config.schema import Config

    warnings: tuple[str, ...] = ()
    if demo and file is not None:
        raise UsageError("--demo brings its own configuration: give one of --demo and --config, not both")
    if demo:
        from modeld.config.load import apply_environment
        from modeld.library.demo import demo_document

        config = apply_environment(Config.model_validate(demo_document()), os.environ)
    elif file is not None:
        from modeld.config.load import load

        loaded = load(file, os.environ)
        config, warnings = loaded.config, loaded.warnings
    else:
        from modeld.config.load import apply_environment

        config = apply_environment(Config(), os.environ)
    listen = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    if listen or state_dir is not None:
        changes: dict[str, object] = {"listen": config.listen.model_copy(update=listen)}
        if state_dir is not None:
            changes["state_dir"] = state_dir.absolute()
        config = config.model_copy(update=changes)
    return config, warnings


async def _show(running: Running, then: Sequence[str] = (), notes: Sequence[str] = ()) -> None:
    """Tell on standard output where it listens, how the models come up, and what to try; last the notes.

    The models named in `then` are brought up, as far as there is room for them, once all others are at rest.
    """
    from modeld.cli.examples import Examples
    from modeld.supervisor.states import State

    print(f"modeld listens on {running.address}/v1", flush=True)
    if sys.stdout.isatty():
        from modeld.cli.progress import show_bars as show
    else:
        from modeld.cli.progress import show_lines as show
    pool = running.pool
    expected = [status for status in pool.statuses() if not status.on_demand or status.name in then]
    examples = Examples(expected, running.address, keyed=running.keyed)

    def said(name: str) -> list[str]:
        return [line for status in pool.statuses() if status.name == name for line in examples.of(status)]

    async def settled() -> None:
        await pool.settled()
        idle = {status.name for status in pool.statuses() if status.state is State.STOPPED}
        for name in then:
            if name in idle:  # one that a request has brought on its way keeps that request's claims
                pool.wake(name)
        await pool.settled()

    await show(pool, said, settled)
    statuses = pool.statuses()
    for status in statuses:
        if status.state is State.READY:
            for line in examples.of(status, at_last=True):
                print(line)
    for status in statuses:
        first = status.message.splitlines()[0] if status.message else ""
        print(f"  {status.name}: {status.state}" + ("" if status.state is State.READY else f" - {first}"))
    for note in notes:
        print(note)
    sys.stdout.flush()

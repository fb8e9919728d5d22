"""`modeld doctor`: is everything here that modeld needs? Works without a daemon."""

from __future__ import annotations

import asyncio
import enum
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modeld import __version__
from modeld.cli.machine import label
from modeld.cli.sentences import said
from modeld.cli.table import Screen
from modeld.cli.words import cell, count, memory, one_line
from modeld.config import paths
from modeld.errors import ModeldError, StartupError, UsageError
from modeld.hardware.machine import Condition, Device, Kind, Machine

if TYPE_CHECKING:
    from modeld.config.schema import Config
    from modeld.protocol.capabilities import Capability


class Mark(enum.StrEnum):
    """How bad a finding is. NOTE is worth knowing and needs nothing done; WRONG makes the exit code 1."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


COLOURS = {Mark.OK: "green", Mark.NOTE: "yellow", Mark.WRONG: "red"}
_WIDTH = max(map(len, Mark)) + 2


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at and found, and, unless it is OK, what to do."""

    mark: Mark
    text: str


@dataclass(frozen=True)
class Wanted:
    """What a configuration file asks of the machine.

    `models` are its models by loader. `programs` are the llama-server programs it names itself: with one of
    these the loader's own search does not matter. `interpreters` are those it names, by (loader, path), with
    the models that they run: there, too, the search does not matter. `gpus` are the models that say they need
    a GPU.
    """

    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()
    interpreters: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--state-dir", type=click.Path(path_type=Path), help="State directory, in place of the configuration's."
)
@click.pass_context
def doctor(context: click.Context, file: Path | None, state_dir: Path | None) -> None:
    """Look whether this machine has what modeld needs, and what the models of FILE need.

    Exits with 1 when something needed is missing; each line says what to do.
    """
    screen, wrong = Screen.of(sys.stdout), 0

    def tell(findings: Iterable[Finding]) -> None:
        nonlocal wrong
        for finding in findings:
            wrong += finding.mark is Mark.WRONG
            mark = screen.paint(finding.mark.ljust(_WIDTH), COLOURS[finding.mark])
            first, *rest = screen.fold(finding.text, " " * _WIDTH)
            click.echo("\n".join([mark + first[_WIDTH:], *rest]))

    tell([Finding(Mark.OK, f"modeld {__version__} on Python {platform.python_version()}, {sys.executable}")])
    config, found = _configuration(file)
    tell(found)
    wanted = wanted_by(config) if config is not None else None
    chosen = state_dir or (config.state_dir if config is not None else None)
    tell(engines(_find_engines(chosen), wanted))
    tell(interpreters(_ask(wanted.interpreters), wanted) if wanted is not None else [])
    tell(memories(_look(), wanted))
    tell(_state(chosen))
    tell([Finding(Mark.WRONG, f"{count(wrong, 'thing')} to put right")] if wrong else [])
    context.exit(1 if wrong else 0)


def _find_engines(state_dir: Path | None) -> Mapping[str, Capability]:
    """Look in the daemon's own environment, and in those that modeld has made."""
    from modeld.clock import SystemClock
    from modeld.engines.place import Place
    from modeld.supervisor.capabilities import Capabilities

    try:
        managed = Place(paths.state_dir(state_dir, os.environ)).python
    except UsageError:  # told of where the state directory is looked at
        return asyncio.run(Capabilities(clock=SystemClock()).all())
    return asyncio.run(Capabilities(clock=SystemClock(), managed=managed).all())


def _ask(asked: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Capability]:
    """Ask each interpreter that is named for its loader's engine."""
    from modeld.clock import SystemClock
    from modeld.supervisor.capabilities import Capabilities

    look = Capabilities(clock=SystemClock())

    async def all_of_them() -> Mapping[tuple[str, str], Capability]:
        return {(loader, python): await look.find(loader, python=python) for loader, python in asked}

    return asyncio.run(all_of_them())


def _look() -> Machine:
    from modeld.hardware.probe import system_probe

    return system_probe(os.environ).look()


# --- the file -----------------------------------------------------------------------------------------------


def _configuration(file: Path | None) -> tuple[Config | None, list[Finding]]:
    if file is None:
        return None, []
    from modeld.config.load import load

    try:
        loaded = load(file, os.environ)
    except UsageError as error:
        return None, [Finding(Mark.WRONG, one_line(line)) for line in error.message.splitlines()]
    models = sum(1 for _ in loaded.config.keyed_models())
    fine = Finding(Mark.OK, f"{one_line(str(file))}: {count(models, 'model')}")
    return loaded.config, [fine, *(Finding(Mark.NOTE, one_line(line)) for line in loaded.warnings)]


def wanted_by(config: Config) -> Wanted:
    """Return what a configuration asks of the machine."""
    models: dict[str, tuple[str, ...]] = {}
    interpreters: dict[tuple[str, str], tuple[str, ...]] = {}
    programs, gpus = set(), []
    for key, _, model in config.keyed_models():
        options = config.options_for(model)
        binary = options.get("binary") if model.loader == "llama_server" else None
        python = options.get("python")
        if python is not None:
            named = (model.loader, python)
            interpreters[named] = (*interpreters.get(named, ()), key)
        if binary is not None:
            programs.add(str(binary))
        elif python is None:
            models[model.loader] = (*models.get(model.loader, ()), key)
        if model.gpus:
            gpus.append(key)
    return Wanted(models, frozenset(programs), interpreters, tuple(gpus))


# --- engines ------------------------------------------------------------------------------------------------


def engines(found: Mapping[str, Capability], wanted: Wanted | None) -> Iterator[Finding]:
    """Yield a finding for each engine; without a file nothing is needed but that there is one at all."""
    needed = wanted.models if wanted is not None else {}
    for program in sorted(wanted.programs) if wanted is not None else ():
        if shutil.which(program) is None:
            yield Finding(
                Mark.WRONG,
                f"engine {one_line(program)}, which the file names, is not there or not executable; "
                "install it, or correct llama_server's binary in the file",
            )
        else:
            yield Finding(Mark.OK, f"engine {one_line(program)}, which the file names, is there")
    for loader, capability in sorted(found.items()):
        if loader == "fake" and loader not in needed:
            continue
        detail = said(capability.detail)
        if capability.available:
            where = f", in the environment of {one_line(capability.python)}" if capability.python else ""
            yield Finding(Mark.OK, f"engine {loader}: {detail}{where}")
            continue
        fix = f"to get it: {one_line(capability.fix)}" if capability.fix else "there is none for this machine"
        waiting = needed.get(loader, ())
        who = f"; needed by {_named(waiting)}" if waiting else ""
        yield Finding(
            Mark.WRONG if waiting else Mark.NOTE, f"engine {loader} is missing: {detail}; {fix}{who}"
        )
    for loader in sorted(set(needed) - set(found)):
        yield Finding(
            Mark.WRONG,
            f"engine {loader}: this version of modeld has no such loader; "
            f"needed by {_named(needed[loader])}: take another loader for them, or a newer modeld",
        )
    if wanted is None and not any(
        capability.available for loader, capability in found.items() if loader != "fake"
    ):
        yield Finding(Mark.WRONG, "no engine is there, so no model can be served; install one of those above")


def interpreters(found: Mapping[tuple[str, str], Capability], wanted: Wanted) -> Iterator[Finding]:
    """Yield a finding for each interpreter that the file names: the engine there, or what it lacks."""
    for (loader, python), capability in sorted(found.items()):
        name = f"engine {loader} of {one_line(python)}, which the file names"
        detail = said(capability.detail)
        if capability.available:
            yield Finding(Mark.OK, f"{name}: {detail}")
        else:
            fix = f"; to get it: {one_line(capability.fix)}" if capability.fix else ""
            who = _named(wanted.interpreters[loader, python])
            yield Finding(Mark.WRONG, f"{name}: {detail}{fix}; needed by {who}")


def _named(models: tuple[str, ...]) -> str:
    return ", ".join(map(cell, models))


# --- the machine --------------------------------------------------------------------------------------------


def memories(machine: Machine, wanted: Wanted | None) -> Iterator[Finding]:
    """Yield a finding for each memory, and one for the GPUs that are not there."""
    for device in machine.devices:
        yield Finding(*_memory(device))
    usable = [device for device in machine.devices if device.kind is not Kind.HOST and _fine(device)]
    if usable:
        return
    reason = said(machine.message) or "none can be used"
    if wanted is not None and wanted.gpus:
        yield Finding(
            Mark.WRONG,
            f"no GPU: {reason}; needed by {_named(wanted.gpus)}: "
            "install the driver, or set num_gpus: 0 for them to run on the CPU",
        )
    elif not machine.gpus:
        yield Finding(Mark.NOTE, f"no GPU: {reason}; models run on the CPU")


def _memory(device: Device) -> tuple[Mark, str]:
    name = ", ".join(dict.fromkeys((label(device), cell(device.name))))
    if _fine(device):
        return Mark.OK, f"{name}: {memory(device.free)} free of {memory(device.total)}"
    why = said(device.message) or str(device.condition)
    partitioned = device.condition is Condition.PARTITIONED
    return Mark.NOTE if partitioned else Mark.WRONG, f"{name}: not used: {why}"


def _fine(device: Device) -> bool:
    return device.condition is Condition.OK


# --- the daemon's place -------------------------------------------------------------------------------------


def _state(chosen: Path | None) -> Iterator[Finding]:
    try:
        folder = paths.state_dir(chosen, os.environ)
        yield writable(folder)
        yield daemon(paths.admin_socket(folder))
    except UsageError as error:
        yield Finding(Mark.WRONG, one_line(error.message))


def writable(folder: Path) -> Finding:
    """Say whether the state directory can be used, or made; changes nothing."""
    name = f"state directory {one_line(str(folder))}"
    place = next(path for path in (folder, *folder.parents) if path.exists() or path == path.parent)
    if not place.is_dir():
        return Finding(Mark.WRONG, f"{name}: {place} is a file; move it away, or give --state-dir")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            Mark.WRONG,
            f"{name}: user {os.geteuid()} may not write in {place} (mode {place.stat().st_mode & 0o777:04o}, "
            f"owner {place.stat().st_uid}); change its owner, or give another --state-dir",
        )
    return Finding(Mark.OK, f"{name}: " + ("writable" if place == folder else "will be made"))


def daemon(socket: Path) -> Finding:
    """Say whether a daemon answers on the admin socket, and whether it is of this version."""
    from modeld.admin.client import NOT_RUNNING, AdminClient

    try:
        reply = AdminClient(socket).status()
    except StartupError as error:
        absent = error.code == NOT_RUNNING
        return Finding(Mark.NOTE if absent else Mark.WRONG, one_line(error.message))
    except ModeldError as error:
        return Finding(Mark.WRONG, f"the daemon on {socket} is in trouble: {one_line(error.message)}")
    running = f"a daemon runs on {reply.address}, pid {reply.pid}, with {count(len(reply.models), 'model')}"
    if reply.version != __version__:
        return Finding(Mark.NOTE, f"{running}; it is modeld {reply.version}: restart it to run {__version__}")
    return Finding(Mark.OK, running)

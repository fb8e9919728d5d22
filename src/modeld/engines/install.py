"""Making an engine's environment: built aside, tried, and put into place in one moment; and removing it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from modeld.engines import pip
from modeld.engines.check import check
from modeld.engines.guard import guarded
from modeld.engines.pins import Recipe, Step, Variant
from modeld.engines.pip import Beat, Tell
from modeld.engines.place import SHORT_S, Installed, Place, in_use, remove_tree, size_of
from modeld.errors import ModeldError, UsageError

Check = Callable[[str, Recipe, Path, Mapping[str, str]], str]
"""`check.check`."""

VENV_S = 120.0
"""Seconds that making an empty environment may take."""


def install(
    place: Place,
    name: str,
    variant: Variant,
    recipe: Recipe,
    tell: Tell,
    *,
    env: Mapping[str, str] = os.environ,
    now: Callable[[], float] = time.time,
    try_out: Check = check,
) -> Installed:
    """Install an engine, in the place of the one that is there, if any; return what is told about it.

    However this ends before its last moment, what was installed before still is, and nothing else counts.
    Raises UsageError when another process is at it, ModeldError for what went wrong.
    """
    with place.locked(name, "installed"):
        check_room(recipe, place.root / name)
        home = place.fresh(name)
        try:
            environment = pip.clean_environment(env)
            tell(Beat("making the environment"))
            python = make_environment(home, environment)
            own_index = any(step.index for step in recipe.steps) and pip.has_own_index(python, environment)
            for step in recipe.steps:
                _carry_out(step, python, environment, own_index, tell)
            tell(Beat("trying it out"))
            version = try_out(name, recipe, python, environment)
            about = Installed(
                name,
                variant,
                version,
                recipe.packages,
                platform.python_version(),
                size_of(home),
                now(),
            )
            place.accept(name, home, about)
        except BaseException:
            remove_tree(home)
            raise
        place.clear(name)
        return about


def check_room(recipe: Recipe, folder: Path) -> None:
    """Raise ModeldError, with the numbers, when the disk has too little room for an installation."""
    free = shutil.disk_usage(folder).free
    if free < recipe.disk:
        raise ModeldError(
            f"{recipe.distribution} needs about {_gigabytes(recipe.disk)} while it is installed, and the "
            f"disk of {folder} has {_gigabytes(free)} free; make room, or choose another --state-dir",
            code="disk_full",
        )


def make_environment(home: Path, environment: Mapping[str, str]) -> Path:
    """Make an empty virtual environment of this program's Python, with a pip only if there is none here;
    return its interpreter.
    """
    home.mkdir(mode=0o700)
    output = ""
    bare = ["--without-pip"] if pip.here() else []
    with guarded([sys.executable, "-m", "venv", *bare, str(home)], environment) as process:
        try:
            said, _ = process.communicate(timeout=VENV_S)
        except subprocess.TimeoutExpired:
            raise ModeldError(
                f"making the environment did not end within {VENV_S:g} s", code="engine_install"
            ) from None
        output, code = said.decode("utf-8", "replace").strip(), process.returncode
    python = home / "bin" / "python"
    if code != 0 or not python.exists():
        debian = "ensurepip" in output or "python3-venv" in output
        fix = "; Debian and Ubuntu: apt install python3-venv" if debian else ""
        raise ModeldError(
            f"{sys.executable} cannot make an environment{fix}; it says: {output[-400:]}",
            code="engine_install",
        )
    return python


def _carry_out(step: Step, python: Path, environment: Mapping[str, str], own_index: bool, tell: Tell) -> None:
    options = [*step.options]
    if step.index and not own_index:
        options += ["--extra-index-url", step.index]
    scratch = python.parents[1] / "scratch"
    scratch.mkdir()
    try:
        pip.install(python, step.packages, options, {**environment, **step.environment}, scratch, tell)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _gigabytes(size: int) -> str:
    return f"{size / 1000**3:.1f} GB"


def remove(place: Place, name: str, users: Callable[[], Sequence[str]], *, force: bool = False) -> list[Path]:
    """Remove an engine's environment, and whatever else lies in its folder.

    `users` names the running daemon's models that need it. Returns the folders that workers still use, which
    stay until the next installation or removal. Raises UsageError for one that is not installed, and, without
    `force`, for one in use.
    """
    home = place.home(name)
    if home is None and not (place.root / name).is_dir():
        raise UsageError(f"modeld has made no environment for {name}: there is nothing to remove")
    with place.locked(name, "removed"):
        if home is not None and not force:
            if models := users():
                raise UsageError(
                    f"{name} is in use: the running daemon needs it for {', '.join(models)}; "
                    f"first modeld ctl remove {' '.join(models)}, or give --force"
                )
            if in_use(home, SHORT_S):
                raise UsageError(f"a worker runs in {home}; stop it, or give --force")
        place.forget(name)
        return place.clear(name)

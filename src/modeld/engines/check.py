"""Trying a new environment: the worker program answers under it, and the engine can be imported."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from modeld.engines.guard import guarded, signalled
from modeld.engines.pins import Recipe
from modeld.errors import ModeldError
from modeld.protocol.capabilities import Capability
from modeld.supervisor.process import exit_words, program

CHECK_S = 60.0
"""Seconds the worker program may take to say what is there."""

IMPORT_S = 300.0
"""Seconds the engine's import may take: torch's first one on a slow disk is read from cold files."""

LAST_LINES = 6


def check(loader: str, recipe: Recipe, python: Path, env: Mapping[str, str]) -> str:
    """Return the engine's version. Raises ModeldError with the last words of what failed."""
    said = _run([*program(str(python)), "--capabilities"], env, CHECK_S, "the worker program")
    try:
        found = msgspec.json.decode(said.rpartition("\n")[2], type=dict[str, Capability])
    except msgspec.MsgspecError as error:
        raise ModeldError(
            f"the worker program printed something else than its answer: {error}", code="engine_check"
        ) from None
    if not found[loader].available:
        raise ModeldError(f"the worker program finds no engine: {found[loader].detail}", code="engine_check")
    imports = "; ".join(f"import {module}" for module in recipe.modules)
    version = f"import importlib.metadata as m; print(); print(m.version({recipe.distribution!r}))"
    said = _run([str(python), "-c", f"{imports}; {version}"], env, IMPORT_S, "the engine's import")
    return said.rpartition("\n")[2]


def _run(command: Sequence[str], env: Mapping[str, str], limit: float, what: str) -> str:
    with guarded(command, env, apart=True) as process:
        try:
            said, complained = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise ModeldError(f"{what} did not end within {limit:g} s", code="engine_check") from None
    code = signalled(process.returncode)
    if code != 0:
        words = "\n".join(complained.decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:])
        raise ModeldError(
            f"{what} {exit_words(code)}" + (f"; its last words:\n{words}" if words else ""),
            code="engine_check",
        )
    return said.decode("utf-8", "replace").strip()

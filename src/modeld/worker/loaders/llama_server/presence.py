"""Whether there is a llama.cpp engine that `engine.command` would start, found in the same order as there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from modeld.protocol.capabilities import Capability
from modeld.worker.capabilities import ENGINES, installed

VERSION_S = 5.0
"""Seconds `llama-server --version` may take; it answers in milliseconds, once its libraries are read."""

PROGRAM = "llama-server"

_WORDS = 200


def look(options: Mapping[str, Any]) -> Capability:
    """Return the engine: the configured `binary`, else llama-server on PATH, else the xllamacpp package."""
    binary = options.get("binary")
    if binary:
        # A bare name is looked up on PATH, as a shell does.
        binary = shutil.which(binary) or binary
        if not os.path.isfile(binary) or not os.access(binary, os.X_OK):
            what = "is not executable" if os.path.isfile(binary) else "is not there"
            return Capability(False, f"the configured binary {binary} {what}", _fix_file(binary))
        return _runs(binary)
    found = shutil.which(PROGRAM)
    if found:
        return _runs(found)
    package = installed(ENGINES["llama_server"])
    if package.available:
        return package
    dead = _not_executable()
    if dead:
        return Capability(False, f"{dead} is not executable, and {package.detail}", _fix_file(dead))
    return Capability(
        False, f"there is no {PROGRAM} on PATH, and {package.detail}", _alternatives(package.fix)
    )


def _runs(binary: str) -> Capability:
    """Run the program for its version: one that lacks a shared library is found on PATH and never starts."""
    try:
        done = subprocess.run(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Capability(
            False, f"{binary} --version did not end within {VERSION_S:g} s", _alternatives(_pip())
        )
    except OSError as error:  # no such interpreter, or a program for another machine
        return Capability(False, f"{binary} cannot be started: {error.strerror}", _alternatives(_pip()))
    said = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if done.returncode != 0:
        ended = (
            f"exits with code {done.returncode}"
            if done.returncode > 0
            else f"dies of signal {-done.returncode}"
        )
        words = f": {said[-1][:_WORDS]}" if said else ""
        return Capability(False, f"{binary} --version {ended}{words}", _alternatives(_pip()))
    version = next((text for text in said if text.startswith("version")), "")
    return Capability(True, f"{binary}, {version[:_WORDS]}" if version else binary)


def _not_executable() -> str | None:
    """Return a file of the program's name on PATH that may not be run."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, PROGRAM)
        if os.path.isfile(path) and not os.access(path, os.X_OK):
            return path
    return None


def _fix_file(path: str) -> str:
    if os.path.isfile(path):
        return f"chmod +x {path}"
    return "correct binary in the configuration, or leave it out to use what is on PATH"


def _pip() -> str:
    return installed(ENGINES["llama_server"]).fix or "take it off PATH to use the installed xllamacpp"


def _alternatives(pip: str) -> str:
    """Return the pip command with those of the package managers this machine has."""
    if shutil.which("brew"):
        return f"{pip}, or: brew install llama.cpp"
    if shutil.which("apt"):
        return f"{pip}, or where apt has it: sudo apt install llama.cpp"
    return pip

"""Where things lie: state, cache, the admin socket, and the private directories of workers."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from modeld.errors import UsageError

LONGEST_SOCKET = 100
"""Longest path of a Unix socket in bytes; Linux takes 107, macOS 103."""

_LONGEST_BELOW_RUN = "x" * 24 + "/engine.sock"


def state_dir(config_value: Path | None, env: Mapping[str, str]) -> Path:
    """Return the absolute state directory; it need not exist yet.

    The first that is set: the configuration, MODELD_STATE_DIR, systemd's STATE_DIRECTORY,
    XDG_STATE_HOME/modeld, ~/.local/state/modeld. Raises UsageError when there is no home directory either.
    """
    return _directory("state", config_value, env, ".local/state")


def cache_dir(config_value: Path | None, env: Mapping[str, str]) -> Path:
    """Return the absolute cache directory; it need not exist yet.

    The first that is set: the configuration, MODELD_CACHE_DIR, systemd's CACHE_DIRECTORY,
    XDG_CACHE_HOME/modeld, ~/.cache/modeld. Raises UsageError when there is no home directory either.
    """
    return _directory("cache", config_value, env, ".cache")


def admin_socket(state_dir: Path) -> Path:
    """Return the path of the admin socket. Raises UsageError when a socket cannot have it."""
    socket = state_dir / "admin.sock"
    length = len(os.fsencode(socket))
    if length > LONGEST_SOCKET:
        raise UsageError(
            f"the state directory's path is too long for a socket: {socket} has {length} bytes, "
            f"the limit is {LONGEST_SOCKET}; set state_dir (or MODELD_STATE_DIR) to a shorter path"
        )
    return socket


def runtime_dir(state_dir: Path) -> Path:
    """Return the directory for workers' private directories: short enough for a socket two levels down.

    It is `state_dir`/run, or else one under the directory for temporary files, the same for every life of a
    daemon on this state directory. Whoever creates it there makes it 0700 and checks the owner: others may
    write beside it.
    """
    inside = state_dir / "run"
    if len(os.fsencode(inside / _LONGEST_BELOW_RUN)) <= LONGEST_SOCKET:
        return inside
    digest = hashlib.sha256(os.fsencode(os.path.abspath(state_dir))).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"modeld-{os.getuid()}-{digest}"


def _directory(kind: str, config_value: Path | None, env: Mapping[str, str], below_home: str) -> Path:
    variable = f"MODELD_{kind.upper()}_DIR"
    if config_value is not None:
        return _absolute(config_value, f"{kind}_dir", env)
    if value := env.get(variable):
        return _absolute(Path(value), variable, env)
    # systemd gives a colon-separated list when a unit names several; the first is ours.
    if value := env.get(f"{kind.upper()}_DIRECTORY", "").split(":")[0]:
        return _absolute(Path(value), f"{kind.upper()}_DIRECTORY", env)
    # The XDG specification says to ignore a relative path.
    if (value := env.get(f"XDG_{kind.upper()}_HOME", "")) and os.path.isabs(value):
        return Path(value) / "modeld"
    if not os.path.isabs(env.get("HOME", "")):
        raise UsageError(
            f"no place for {kind}: HOME is not set; set {kind}_dir in the configuration, or {variable}"
        )
    return Path(env["HOME"]) / below_home / "modeld"


def _absolute(path: Path, source: str, env: Mapping[str, str]) -> Path:
    text = os.fspath(path)
    if "\0" in text:
        raise UsageError(f"{source}: a path cannot hold a NUL character")
    if text == "~" or text.startswith("~/"):
        if not os.path.isabs(env.get("HOME", "")):
            raise UsageError(f"{source}: {text} needs HOME, which is not set; write the whole path")
        text = env["HOME"] + text[1:]
    return Path(os.path.abspath(text))

"""From a file and the environment to a `Config`. Every mistake is told at once, with file:line:column."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from modeld.config.document import Document
from modeld.config.explain import findings
from modeld.config.schema import Config
from modeld.config.values import Listen
from modeld.errors import ConfigError, UsageError

LARGEST_FILE = 1024**2
"""Largest configuration file in bytes; a larger one is something else by mistake."""


def load_config(file: Path, env: Mapping[str, str]) -> Config:
    """Read `file`, then apply the environment.

    Raises ConfigError for what the file says, UsageError for what the environment says.
    """
    document = Document(_read(file), file)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        hint = "; put it under a key, models:" if isinstance(data, list) else ""
        line, column = document.place(())
        raise ConfigError(
            f"expected a mapping (lines of key: value) at the top{hint}", file=file, line=line, column=column
        )
    try:
        config = Config.model_validate(data, context={"base": Path(os.path.abspath(file)).parent})
    except ValidationError as error:
        found = [
            (document.place(finding.path, key=finding.at_key), finding.message)
            for finding in findings(error.errors(include_url=False))
        ]
        # Not chained: pydantic's own text would show the values again.
        raise _joined(sorted(found), file) from None
    return apply_environment(config, env)


def apply_environment(config: Config, env: Mapping[str, str]) -> Config:
    """Return `config` as the environment changes it.

    MODELD_API_KEYS (separated by commas) are added; MODELD_LISTEN, MODELD_STATE_DIR and MODELD_CACHE_DIR
    replace what the file says. Relative directories are taken from the current one. Raises UsageError naming
    the variable.
    """
    update: dict[str, Any] = {}
    if keys := [key.strip() for key in env.get("MODELD_API_KEYS", "").split(",") if key.strip()]:
        try:
            checked = Config.model_validate({"api_keys": keys}).api_keys
        except ValidationError:
            raise UsageError(
                "MODELD_API_KEYS: expected keys of printable ASCII without spaces, separated by commas"
            ) from None
        update["api_keys"] = _without_duplicates(config.api_keys + checked)
    if listen := env.get("MODELD_LISTEN"):
        try:
            update["listen"] = Listen.parse(listen)
        except ValueError as error:
            raise UsageError(f"MODELD_LISTEN: {error}") from None
    for name, key in (("MODELD_STATE_DIR", "state_dir"), ("MODELD_CACHE_DIR", "cache_dir")):
        if value := env.get(name):
            try:
                checked_dirs = Config.model_validate({key: value}, context={"base": Path.cwd()})
            except ValidationError as error:
                message = findings(error.errors(include_url=False))[0].message
                raise UsageError(f"{name}: {message.removeprefix(key + ': ')}") from None
            update[key] = getattr(checked_dirs, key)
    return config.model_copy(update=update) if update else config


def _without_duplicates(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    return tuple({key.get_secret_value(): key for key in keys}.values())


def _read(file: Path) -> str:
    try:
        with open(file, "rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError("there is no such file", file=file) from None
    except IsADirectoryError:
        raise ConfigError("this is a directory; name the file in it", file=file) from None
    except PermissionError:
        raise ConfigError(f"cannot be read by user {os.getuid()}; check its permissions", file=file) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot be read: {reason}", file=file) from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(
            f"is over {LARGEST_FILE} bytes, which no configuration is; is it the right file?", file=file
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        raise ConfigError(
            f"the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8",
            file=file,
            line=before.count(b"\n") + 1,
            column=error.start - before.rfind(b"\n"),
        ) from None


def _joined(found: list[tuple[tuple[int, int], str]], file: Path) -> ConfigError:
    (line, column), first = found[0]
    others = [f"\n{file}:{place[0]}:{place[1]}: {message}" for place, message in found[1:]]
    return ConfigError(first + "".join(others), file=file, line=line, column=column)

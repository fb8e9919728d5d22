"""From a file, a document or the command line to a `Config`. Every mistake is told, with its place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import SecretStr, ValidationError

from modeld.config.document import Document
from modeld.config.explain import Finding, findings
from modeld.config.model import IMAGE_LOADERS, LoaderName
from modeld.config.schema import Config
from modeld.config.values import Listen
from modeld.errors import ConfigError, UsageError

LARGEST_FILE = 1024**2
"""Largest configuration file in bytes; a larger one is something else by mistake."""


_USECASES = {"whispercpp": "transcription", "sherpa_onnx": "tts"}
_QUANTISATION = re.compile(r"(?:I?Q|TQ)[1-8]_|MXFP4", re.IGNORECASE)
"""How the quantisations begin that only GGUF files have."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class Loaded:
    """A configuration, and the file it came from.

    `warnings` begin with file:line:column. `document` is the file's plain data as it was read, for
    `from_document`; it holds API keys if the file does. `base` is the folder of relative paths in it.
    """

    config: Config
    warnings: tuple[str, ...]
    document: dict[str, Any]
    base: Path


def load(file: Path, env: Mapping[str, str]) -> Loaded:
    """Read `file`, then apply the environment. Raises as `load_config` does."""
    from modeld.config.advice import ray_warning, warnings

    document, data, config = _checked(file)
    found = warnings(config)
    if (ray := ray_warning(data, lambda path: document.place(path, key=True)[0])) is not None:
        found.append(ray)
    placed = sorted((document.place(finding.path, key=finding.at_key), finding.message) for finding in found)
    lines = tuple(f"{file}:{line}:{column}: {message}" for (line, column), message in placed)
    return Loaded(apply_environment(config, env), lines, data, _base(file))


def load_config(file: Path, env: Mapping[str, str]) -> Config:
    """Read `file`, then apply the environment.

    Raises ConfigError for what the file says, UsageError for what the environment says.
    """
    return apply_environment(_checked(file)[2], env)


def from_document(data: Any, base: Path, *, allow_fake: bool = False) -> Config:
    """Check plain data that came without a file, e.g. over a socket; relative paths are taken from `base`.

    `allow_fake` adds to what the document says about it. The environment has no part in it. Raises
    ConfigError; each mistake begins with the key's full name, one on each line.
    """
    if not isinstance(data, dict):
        raise ConfigError("expected a mapping, as a configuration file holds it")
    try:
        return _validated({**data, "allow_fake": True} if allow_fake else data, base)
    except ValidationError as error:
        raise ConfigError("\n".join(finding.message for finding in _found(error))) from None


def single_model(
    model: str,
    *,
    name: str | None = None,
    usecase: str | None = None,
    loader: str | None = None,
    num_gpus: float | None = None,
    num_cpus: float | None = None,
    num_replicas: int | None = None,
    max_ongoing_requests: int | None = None,
) -> dict[str, Any]:
    """Return a document of one model, for `from_document`; what is None is guessed or left to its default.

    The name is the reference's last part, the loader llama_server for GGUF files, the usecase what the loader
    is for. Raises UsageError naming the option to give, when nothing can be guessed.
    """
    if loader is None:
        loader = _guessed_loader(model)
    if usecase is None and loader not in IMAGE_LOADERS:
        usecase = _USECASES.get(loader, "generate")
    written = {
        "name": _guessed_name(model) if name is None else name,
        "model": model,
        "usecase": usecase,
        "loader": loader,
        "num_gpus": num_gpus,
        "num_cpus": num_cpus,
        "num_replicas": num_replicas,
        "max_ongoing_requests": max_ongoing_requests,
    }
    return {"models": [{key: value for key, value in written.items() if value is not None}]}


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


def _guessed_loader(model: str) -> str:
    repo, _, pattern = model.removeprefix("pypi:").partition(":")
    if model.lower().endswith(".gguf") or (not pattern and re.search(r"[-_.]gguf$", repo, re.IGNORECASE)):
        return "llama_server"
    if pattern and (re.search("gguf", repo, re.IGNORECASE) or _QUANTISATION.match(pattern)):
        return "llama_server"
    choices = ", ".join(choice for choice in get_args(LoaderName) if choice != "fake")
    raise UsageError(
        f"{model!r} does not tell which engine runs it (llama_server runs GGUF files, vllm runs Hugging Face "
        f"folders); give --loader, one of {choices}"
    )


def _guessed_name(model: str) -> str:
    # "org/repo:glob" is known by its repository, "demo:name" by its name, everything else by its file.
    model = model.removeprefix("demo:")
    is_path = model.startswith(("/", ".", "~", "file:", "pypi:"))
    text = model if is_path else model.partition(":")[0]
    last = text.rstrip("/").rpartition("/")[2]
    name = _SHARD.sub("", re.sub(r"[-_.]gguf$", "", last, flags=re.IGNORECASE))
    if not re.search("[A-Za-z0-9]", name):
        raise UsageError(f"{model!r} has no name in it; give --name")
    return name


def _base(file: Path) -> Path:
    return Path(os.path.abspath(file)).parent


def _checked(file: Path) -> tuple[Document, dict[str, Any], Config]:
    document = Document(_read(file), file)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        hint = "; put it under a key, models:" if isinstance(data, list) else ""
        line, column = document.place(())
        raise ConfigError(
            f"expected a mapping (lines of key: value) at the top{hint}", file=file, line=line, column=column
        )
    try:
        return document, data, _validated(data, _base(file))
    except ValidationError as error:
        found = [
            (document.place(finding.path, key=finding.at_key), finding.message) for finding in _found(error)
        ]
        # Not chained: pydantic's own text would show the values again.
        raise _joined(sorted(found), file) from None


def _validated(data: dict[str, Any], base: Path) -> Config:
    return Config.model_validate(data, context={"base": base})


def _found(error: ValidationError) -> list[Finding]:
    return findings(error.errors(include_url=False))


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

"""What a valid configuration says that will not do what its writer may expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from modeld.config.explain import Finding, dotted
from modeld.config.outline import is_list, section_of
from modeld.config.schema import Config, Model
from modeld.config.values import Section

LOADERS = ("vllm", "llama_server", "diffusers", "stable_diffusion_cpp", "sherpa_onnx", "whispercpp", "fake")
"""The loaders this version has."""

USECASES = {
    "vllm": ("generate", "embed", "transcription", "translation"),
    "llama_server": ("generate", "embed"),
    "diffusers": ("image",),
    "stable_diffusion_cpp": ("image",),
    "sherpa_onnx": ("tts",),
    "whispercpp": ("transcription", "translation"),
}
"""What models of a loader can be called for; of a loader that is not named here, for anything."""

_MOST_NAMED = 8
_SWITCHES = ("yes", "no", "on", "off")


def warnings(config: Config) -> list[Finding]:
    """Return a finding for each thing the configuration asks for that this version does not do yet."""
    found: list[Finding] = []
    for index, model in enumerate(config.models):
        found += _of_model(model, ("models", index))
    for place, gateway in enumerate(config.gateways):
        for index, model in enumerate(gateway.models):
            found += _of_model(model, ("gateways", place, "models", index))
    return found


def ignored(data: Any, section: type[Section] = Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Give the path of each key in a valid document that is read and dropped, and what there is instead."""
    if not isinstance(data, Mapping):
        return
    for key, value in data.items():
        if key in section.ignored:
            yield (key,), section.ignored[key]
        field = section.model_fields.get(key)
        below = section_of(field) if field is not None else None
        if field is None or below is None:
            continue
        if not is_list(field):
            yield from (((key, *path), hint) for path, hint in ignored(value, below))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from (((key, index, *path), hint) for path, hint in ignored(item, below))


def ray_warning(document: Any, line: Callable[[tuple[str | int, ...]], int] | None = None) -> Finding | None:
    """Return the one warning about a document's Ray options, placed at the first of them; None without any.

    `line` tells in which line of the file a key stands.
    """
    found = list(ignored(document))
    if not found:
        return None
    if line is not None:
        found.sort(key=lambda entry: line(entry[0]))
    named: list[str] = []
    for path, instead in found[:_MOST_NAMED]:
        notes = [f"line {line(path)}"] if line is not None else []
        notes += [f"here: {instead}"] if instead else []
        named.append(dotted(path) + (f" ({'; '.join(notes)})" if notes else ""))
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    words = "Ray's options have no meaning on one machine and are ignored: "
    return Finding(found[0][0], True, words + ", ".join(named) + more)


def _of_model(model: Model, path: tuple[str | int, ...]) -> Iterator[Finding]:
    if model.loader not in LOADERS:
        yield _finding(
            (*path, "loader"),
            f"the loader {model.loader} is read, but this version does not have it yet; "
            f"{model.name!r} will not load",
        )
    elif model.usecase not in (served := USECASES.get(model.loader, (model.usecase,))):
        yield _finding(
            (*path, "usecase"),
            f"the usecase {model.usecase} is read, but models of {model.loader} serve only "
            f"{', '.join(served)}; nobody can call {model.name!r}",
        )
    for key, value in model.chat_template_kwargs.items():
        if isinstance(value, str) and value.lower() in _SWITCHES:
            yield _finding(
                (*path, "chat_template_kwargs", key), f"{value} is text in YAML 1.2; write true or false"
            )


def _finding(path: tuple[str | int, ...], message: str) -> Finding:
    return Finding(path, False, f"{dotted(path)}: {message}")

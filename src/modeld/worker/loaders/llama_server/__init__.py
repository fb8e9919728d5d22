"""GGUF models on llama.cpp's own server, run by this worker as its child.

The worker speaks the server's HTTP over a Unix socket (`client`), in the shapes of `translate`. What the
model's chat template can do is found out once, at load (`probe`): llama.cpp renders tools only if the
template does, and does not enforce `tool_choice`, so calls that must happen are enforced by a JSON schema
over the whole answer, which it does enforce (`worker.tools`). For the usecase `embed` the engine gives
vectors, or scores if the model is a reranker (`embedding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `capability` is asked of every loader at once, and needs none of this
    from modeld.protocol.capabilities import Capability
    from modeld.protocol.messages import LoadSpec
    from modeld.worker.loader import LoadedModel, Report


def capability(options: Mapping[str, Any]) -> Capability:
    """Return whether an engine is there and runs; `options` may have the loader's `binary`."""
    from modeld.worker.loaders.llama_server.presence import look

    return look(options)


async def load(spec: LoadSpec, report: Report) -> LoadedModel:
    """Start the engine and wait until it serves. Raises LoadFailed with the engine's last words."""
    from modeld.worker.loaders.llama_server.model import start  # brings in the tools and the client

    return await start(spec, report)

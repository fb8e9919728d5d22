"""What the worker that starts llama.cpp and the daemon that sizes it must see alike. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

DEFAULT_CONTEXT = 2048
"""Tokens of context for each request when the configuration says nothing."""

OWN_CONTEXT_BATCH = 8192
"""Tokens in one physical batch of an embedding model whose context is its own (n_ctx 0), so not known yet."""

NO_PROJECTOR = "none"
"""What `mmproj` says when a projector beside the model is not to be taken."""

_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_PREFERRED = ("f16", "bf16", "f32", "q8_0")


def embedding_batch(options: Mapping[str, Any]) -> int:
    """Return how many tokens an embedding model must take at once: an input cannot be split.

    Whole inputs of the context's length must fit into a physical batch, or the engine fails on them.
    """
    context = int(options.get("n_ctx", DEFAULT_CONTEXT)) or OWN_CONTEXT_BATCH
    return max(int(options.get("n_batch") or 0), context)


def projector_beside(model: str, names: Iterable[str]) -> str | None:
    """Return the file, among the names in a model's folder, of the projector that belongs to the model.

    Projectors are called mmproj*.gguf. Beside a single model any of them is its own; of several the one of
    half precision is taken, which loses nothing. Beside several models only mmproj-MODEL.gguf is known to
    fit.
    """
    found = sorted(name for name in names if name.endswith(".gguf"))
    projectors = [name for name in found if name.lower().startswith("mmproj")]
    models = {_SHARD.sub("", name) for name in found if name not in projectors}
    own = _SHARD.sub("", model)
    if models - {own}:
        return next((name for name in projectors if name.lower() == f"mmproj-{own}".lower()), None)
    return min(projectors, key=lambda name: (_rank(name), name), default=None)


def _rank(name: str) -> int:
    words = re.split(r"[-.]", name.lower())
    return next((at for at, kind in enumerate(_PREFERRED) if kind in words), len(_PREFERRED))

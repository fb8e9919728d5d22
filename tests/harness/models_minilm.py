"""all-MiniLM-L6-v2 as GGUF files: the demo's, and one with a scoring head of made-up numbers."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from modeld.library import fetch
from modeld.library.built import gguf_file
from modeld.library.built import minilm as converter
from modeld.library.built.catalogue import MINILM
from modeld.library.built.minilm import fields, tensors
from tests.harness.daemon import Daemon, running
from tests.harness.models import CACHE, llama, resolved

WIDTH = 384
"""Length of a vector."""

CONTEXT = 512
"""Tokens the model was trained for."""

PACKAGE = MINILM.parts[0].requirement
FOLDER = converter.FOLDER
"""Where the package has the model."""

_RANK_POOLING = 4


def minilm() -> Path:
    """Return the embedding model as f16, 46 MB, made once; its pooling is the mean."""
    return resolved("demo:minilm")


def minilm_reranker() -> Path:
    """Return the same weights with a scoring head of made-up numbers, made once; its pooling is "rank".

    Its scores are repeatable and depend on query and document, and mean nothing.
    """
    target = CACHE / "minilm" / "minilm-made-up-reranker-f16.gguf"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as folder:
            _write_reranker(Path(folder) / target.name)
            os.replace(Path(folder) / target.name, target)
    return target


def original(member: str) -> Path:
    """Return a file of the package as its makers wrote it, fetched once."""
    return resolved(f"pypi:{PACKAGE}/{FOLDER}{member}")


def wheel() -> Path:
    """Return the whole package, fetched once without its dependencies, which are several gigabytes."""
    kept = CACHE / "minilm"
    kept.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(kept.glob("*.whl"))):
        with tempfile.TemporaryDirectory(prefix=".new-", dir=kept) as folder:
            [new] = fetch.download([PACKAGE], PACKAGE, Path(folder), fetch.beat())
            os.replace(new, kept / new.name)
        found = sorted(kept.glob("*.whl"))
    return found[0]


@asynccontextmanager
async def embedding_daemon(chat_model: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with embedding models: `vec` as it is, `cut`, said to be trained for shorter vectors,
    `rank`, the reranker, and beside them `plain`, a chat model.
    """
    embedder = str(minilm())
    models = [
        {**llama("vec", embedder, parallel=2), "usecase": "embed", "aliases": ["text-embedding-3-small"]},
        {**llama("cut", embedder, matryoshka=True), "usecase": "embed"},
        {**llama("rank", minilm_reranker()), "usecase": "embed"},
        llama("plain", chat_model, n_ctx=512),
    ]
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with running(Path(folder), {"models": models}) as daemon:
            for model in models:
                await daemon.until(str(model["name"]), "ready")
            yield daemon


def _write_reranker(target: Path) -> None:
    import numpy as np

    words = original("vocab.txt").read_text("utf-8").splitlines()
    settings = json.loads(original("config.json").read_bytes())
    numbers = np.random.default_rng(7)
    head = {
        "cls.weight": numbers.normal(0.0, 0.1, (WIDTH, WIDTH)).astype(np.float32),
        "cls.bias": np.zeros(WIDTH, np.float32),
        "cls.output.weight": numbers.normal(0.0, 0.5, (1, WIDTH)).astype(np.float32),
        "cls.output.bias": np.zeros(1, np.float32),
    }
    weights = tensors(original("model.safetensors").read_bytes()) | head
    with target.open("xb") as out:
        gguf_file.write(out, fields(settings, words) | {"bert.pooling_type": _RANK_POOLING}, weights)

"""The real model that tests run on, and configurations around it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from modeld.library.demo import DEMO_MODELS
from modeld.library.resolve import Resolver
from tests.harness.daemon import Daemon, running

TEMPLATE = Path(__file__).with_name("templates") / "tools.jinja"

CACHE = Path(__file__).parents[2] / ".nox" / "cache"
"""Kept between runs, so that the model is fetched once."""


def demo_model() -> Path:
    """Return the demo's chat model, fetched once."""
    return resolved(DEMO_MODELS[0].ref)


def resolved(ref: str) -> Path:
    """Return what a reference stands for, fetched or built once for all runs."""
    resolver = Resolver(CACHE)

    def resolve() -> Path:
        return asyncio.run(resolver.resolve(ref, lambda *_: None))

    with ThreadPoolExecutor(1) as own_thread:  # the caller's may have a running event loop
        return own_thread.submit(resolve).result()


def llama(name: str, model: Path | str, **options: Any) -> dict[str, Any]:
    """Return a model entry for llama.cpp, with one thread: two stall on a busy machine."""
    return {
        "name": name,
        "model": str(model),
        "usecase": "generate",
        "loader": "llama_server",
        "llama_server_config": {"n_ctx": 2048, "threads": 1, **options},
    }


def fake(name: str, **script: Any) -> dict[str, Any]:
    """Return a model entry for the scripted loader."""
    return {"name": name, "model": "fake", "usecase": "generate", "loader": "fake", "fake_config": script}


@asynccontextmanager
async def demo_twice(model: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with two models: `plain`, the demo model as it is, with two slots, and `aware`, the same
    with a template that knows tools and thinking.
    """
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        models = [
            llama("plain", model, parallel=2),
            llama("aware", model, chat_template=str(TEMPLATE), extra_args=["--reasoning-budget", "24"]),
        ]
        async with running(Path(folder), {"models": models}) as daemon:
            await daemon.until("plain", "ready")
            await daemon.until("aware", "ready")
            yield daemon

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.python_sdk import KEY, AsyncSdk, Sdk, SyncSdk
from tests.harness.daemon import Daemon, running
from tests.harness.models import demo_model, fake, llama

TEMPLATE = Path(__file__).parents[1] / "harness" / "templates" / "tools.jinja"


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """Give the real demo model."""
    return demo_model()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with two models: `plain`, the demo model as it is, with two slots, and `aware`, the same
    with a template that knows tools and thinking.
    """
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        models = [
            llama("plain", demo_gguf, parallel=2),
            llama("aware", demo_gguf, chat_template=str(TEMPLATE), extra_args=["--reasoning-budget", "24"]),
        ]
        async with running(Path(folder), {"models": models}) as started:
            await started.until("plain", "ready")
            await started.until("aware", "ready")
            yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked() -> AsyncIterator[Daemon]:
    """Run a daemon that wants a key, with a scripted engine."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        config = {"models": [fake("scripted")], "api_keys": [KEY], "allow_fake": True}
        async with running(Path(folder), config) as started:
            await started.until("scripted", "ready")
            yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the Python SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client

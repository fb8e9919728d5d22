from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.python_sdk import KEY, AsyncSdk, Sdk, SyncSdk
from tests.harness.daemon import Daemon, running
from tests.harness.models import demo_twice, fake


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with the demo model twice: `plain` and `aware`."""
    async with demo_twice(demo_gguf) as started:
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

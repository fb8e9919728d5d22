"""Running the scripts under npm/: each prints one line of JSON, what its scenario saw."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

NPM = Path(__file__).parent / "npm"
LIMIT_S = 600.0
"""Seconds for one scenario; some take ten on a slow machine."""


@asynccontextmanager
async def scenario(script: str, url: str, name: str, *more: str) -> AsyncIterator[Any]:
    """Run a scenario and give what it saw; its process may live as long as the block, and must end well."""
    node = shutil.which("node")
    if node is None or not (NPM / "node_modules").exists():
        pytest.skip("needs Node.js, and `npm ci --prefix tests/conformance/npm`")
    process = await asyncio.create_subprocess_exec(
        node,
        str(NPM / script),
        f"{url}/v1",
        name,
        *more,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            line = await process.stdout.readline()
            if line:
                yield json.loads(line)
            rest, errors = await process.communicate(b"")  # with input, if empty: that closes its stdin
        assert process.returncode == 0, errors.decode()
        assert rest == b"", rest
        assert errors == b"", errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def seen(script: str, url: str, name: str, *more: str) -> Any:
    """Run a scenario to its end and return what it saw."""
    async with scenario(script, url, name, *more) as found:
        pass
    return found

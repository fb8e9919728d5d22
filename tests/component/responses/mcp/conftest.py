from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from modeld.gateway.egress import Egress
from modeld.responses.mcp.servers import policy, read_servers
from modeld.responses.mcp.session import McpLimits, Toolbox
from tests.harness.mcp_server import Server, serving

LIMITS = McpLimits(list_s=60, call_s=60, close_s=20)

Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Toolbox]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Give a server that all tests of a module share."""
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
async def _nothing_unheard() -> AsyncIterator[None]:
    """Fail a test in which a task's or a callback's exception went unheard."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    yield
    gc.collect()
    assert unheard == []


@pytest.fixture
def opened() -> Opened:
    """Open a box with one server, labelled x: `async with opened(url, limits..., **fields of the tool)`."""

    @asynccontextmanager
    async def box(
        url: str,
        *,
        egress: Egress | None = None,
        limits: dict[str, Any] | None = None,
        **body: Any,
    ) -> AsyncIterator[Toolbox]:
        servers = read_servers([{"type": "mcp", "server_label": "x", "server_url": url, **body}])
        async with Toolbox(servers, egress or Egress(policy()), replace(LIMITS, **(limits or {}))) as toolbox:
            yield toolbox

    return box

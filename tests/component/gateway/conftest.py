from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientSession, web

from modeld.clock import SystemClock
from modeld.gateway.app import GatewayRunner, build_app
from modeld.gateway.settings import GatewaySettings
from modeld.telemetry.metrics import Metrics
from tests.component.gateway.served import Serve, Served
from tests.fakes.pool import FakePool


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start gateways: `await serve(pool, seams, **settings)`; all are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(
            pool: FakePool | None = None, seams: Mapping[web.AppKey[Any], Any] | None = None, **settings: Any
        ) -> Served:
            pool = pool or FakePool()
            metrics = Metrics()
            app = build_app(pool, GatewaySettings(**settings), metrics, SystemClock())
            for key, seam in (seams or {}).items():
                app[key] = seam
            runner = GatewayRunner(app, shutdown_timeout=1.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            http = await stack.enter_async_context(ClientSession())
            return Served(app, pool, metrics, runner.addresses[0][1], http)

        yield start

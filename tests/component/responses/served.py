"""The whole room served on a loopback port: a scripted pool, a real store, time as the test has it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

from modeld.clock import Clock, SystemClock
from modeld.gateway.app import GatewayRunner, build_app
from modeld.gateway.egress import Egress, Policy
from modeld.gateway.settings import GatewaySettings
from modeld.ids import new_id
from modeld.responses.app import add_routes
from modeld.responses.background import Background
from modeld.responses.context import Context
from modeld.responses.mcp.servers import policy as mcp_policy
from modeld.responses.mcp.session import McpLimits
from modeld.responses.sealed import Seal
from modeld.store.approvals import Approvals
from modeld.store.conversations import Conversations
from modeld.store.db import Database
from modeld.store.responses import Responses
from modeld.telemetry.metrics import Metrics
from tests.fakes.pool import FakePool

Body = dict[str, Any]


@dataclass
class Served:
    """What a test may look at. `runner` stops the server before its time."""

    port: int
    pool: FakePool
    metrics: Metrics
    context: Context
    background: Background
    database: Database
    runner: web.AppRunner
    http: ClientSession

    @property
    def url(self) -> str:
        """Base URL, without the /v1."""
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Send a request; return the status and the decoded JSON body, None when there is none."""
        async with self.http.request(method, self.url + path, **options) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json" and raw
            return response.status, json.loads(raw) if is_json else None

    def value(self, name: str, **labels: str) -> float:
        """Return a metric's value, 0 when it has none yet."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def served(
    folder: Path,
    pool: FakePool | None = None,
    *,
    clock: Clock | None = None,
    context: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve the gateway and the Responses API; `settings` are the gateway's, `context` the room's.

    Signs of life come only where a test asks for them: on a slow machine they would come anywhere.
    """
    settings = {"keepalive_interval": 600.0, **settings}
    pool, clock, metrics = pool or FakePool(), clock or SystemClock(), Metrics()
    facts = GatewaySettings(**settings)
    app = build_app(pool, facts, metrics, clock)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database.open(folder / "modeld.sqlite3", clock))
        servers = mcp_policy((), require_https=False)
        room = Context(
            pool=pool,
            settings=facts,
            responses=Responses(database, new_id("life_")),
            conversations=Conversations(database),
            approvals=Approvals(database),
            seal=Seal(folder / "seal.key"),
            pictures=Egress(Policy("none", ())),
            mcp=Egress(servers),
            mcp_policy=servers,
            mcp_limits=McpLimits(),
            clock=clock,
            keep_s=None,
            replay_s=600.0,
            metrics=metrics,
        )
        room = replace(room, **(context or {}))
        background = await stack.enter_async_context(Background(room))
        add_routes(app, room, background)
        runner = GatewayRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = await stack.enter_async_context(ClientSession())
        yield Served(runner.addresses[0][1], pool, metrics, room, background, database, runner, http)

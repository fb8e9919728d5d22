"""`/health` (the process lives), `/readyz` (the models serve), `/metrics` (Prometheus)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from modeld.gateway import routing
from modeld.gateway.encoding import dumps
from modeld.supervisor.states import State, Status
from modeld.telemetry.metrics import CONTENT_TYPE

UP = frozenset({State.READY})
DOWN = frozenset({State.STOPPED, State.STOPPING, State.DRAINING})
"""States of a model that is not wanted at present, so nobody waits for it."""

SETTLED = frozenset({State.READY, State.FAILED})
"""States of an on-demand model that say something about the daemon; in all others it comes when it is called,
and a swap under way must not take the daemon out of somebody's rotation.
"""


def readiness(statuses: Iterable[Status]) -> dict[str, Any]:
    """Return what `/readyz` says, `uptime_s` aside.

    Expected are all models but those that were stopped, and those that are loaded on demand and are not
    loaded; ready means that each of them serves. `status` is ok, starting (some are coming), degraded (some
    failed), failed (all failed) or empty (none is expected, and none would come when called).
    """
    expected: list[Status] = []
    on_demand: list[str] = []
    for status in statuses:
        if status.on_demand and status.state not in SETTLED:
            on_demand.append(status.name)
        elif status.state not in DOWN:
            expected.append(status)
    loaded = [status.name for status in expected if status.state in UP]
    failed = {status.name: status.message for status in expected if status.state is State.FAILED}
    pending = {
        status.name: {"state": status.state, "progress": status.progress, "message": status.message}
        for status in expected
        if status.name not in failed and status.state not in UP
    }
    if not expected:
        word = "ok" if on_demand else "empty"
    elif pending:
        word = "starting"
    elif failed:
        word = "degraded" if loaded or on_demand else "failed"
    else:
        word = "ok"
    return {
        "status": word,
        "ready": word == "ok",
        "models_loaded": loaded,
        "models_expected": [status.name for status in expected],
        "models_pending": pending,
        "models_failed": failed,
        "models_on_demand": on_demand,
    }


async def health(request: web.Request) -> web.Response:
    """Say that the daemon lives; needs no key and touches no model."""
    gateway = request.app[routing.KEY]
    uptime = round(gateway.clock.monotonic() - gateway.started, 3)
    return web.Response(body=dumps({"status": "ok", "uptime_s": uptime}), content_type="application/json")


async def readyz(request: web.Request) -> web.Response:
    """Say whether every expected model serves: 200, or 503 with the reasons."""
    gateway = request.app[routing.KEY]
    answer = readiness(gateway.pool.statuses())
    answer["uptime_s"] = round(gateway.clock.monotonic() - gateway.started, 3)
    return web.Response(
        status=200 if answer["ready"] else 503, body=dumps(answer), content_type="application/json"
    )


async def metrics(request: web.Request) -> web.Response:
    """Return the metrics in Prometheus's text format."""
    return web.Response(
        body=request.app[routing.KEY].metrics.render(), headers={"content-type": CONTENT_TYPE}
    )


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    app.router.add_get("/health", health)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)

"""From the model name in a request to a model that can serve it, and the handlers' shared parts."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from modeld.clock import Clock
from modeld.errors import BadRequest, NotFound
from modeld.gateway.exchange import Exchange
from modeld.gateway.ports import Pool
from modeld.gateway.settings import GatewaySettings
from modeld.supervisor.states import Status
from modeld.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Gateway:
    """What every handler needs."""

    pool: Pool
    settings: GatewaySettings
    metrics: Metrics
    clock: Clock
    started: float
    """Monotonic time of the daemon's start."""

    created: int
    """The same in UTC seconds."""


KEY = web.AppKey("gateway", Gateway)
"""Where the application carries it."""


def find(pool: Pool, name: str, *, param: str | None = "model") -> Status:
    """Return a model's snapshot. Raises NotFound with OpenAI's code."""
    try:
        return pool.status(name)
    except NotFound:
        raise NotFound(
            f"the model {name[:200]!r} does not exist; GET /v1/models lists those that do",
            code="model_not_found",
            param=param,
        ) from None


def resolve(pool: Pool, name: str, usecase: str, exchange: Exchange) -> Status:
    """Return the snapshot of a model that serves this use. Raises NotFound, BadRequest."""
    status = find(pool, name)
    exchange.model = status.name
    if status.usecase != usecase:
        raise BadRequest(
            f"the model {status.name!r} is configured for the usecase {status.usecase!r}, "
            f"this route needs {usecase!r}",
            code="unsupported_task",
            param="model",
        )
    return status


def sees(status: Status) -> bool | None:
    """Say whether a model takes images, None when that is not known before it is loaded."""
    return None if status.facts is None else "vision" in status.facts.capabilities

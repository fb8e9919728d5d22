"""`GET /v1/models` and `/v1/models/{id}`: OpenAI's cards, and under `modeld` what it knows beyond."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from modeld.gateway import routing
from modeld.gateway.encoding import dumps
from modeld.supervisor.states import Status


def card(status: Status, created: int) -> dict[str, Any]:
    """Return one model as OpenAI's object, with `modeld` beside it; unknown facts are null or empty."""
    facts = status.facts
    return {
        "id": status.name,
        "object": "model",
        "created": created,
        "owned_by": "modeld",
        "modeld": {
            "state": status.state,
            "loader": status.loader,
            "usecase": status.usecase,
            "capabilities": list(facts.capabilities) if facts else [],
            "context_length": facts.context_length if facts else None,
        },
    }


async def list_models(request: web.Request) -> web.Response:
    """List every configured model, loaded or not."""
    gateway = request.app[routing.KEY]
    cards = [card(status, gateway.created) for status in gateway.pool.statuses()]
    return web.Response(body=dumps({"object": "list", "data": cards}), content_type="application/json")


async def retrieve(request: web.Request) -> web.Response:
    """Return one model."""
    gateway = request.app[routing.KEY]
    status = routing.find(gateway.pool, request.match_info["id"])
    return web.Response(body=dumps(card(status, gateway.created)), content_type="application/json")


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/v1/models/{id:.+}", retrieve)  # names may hold slashes

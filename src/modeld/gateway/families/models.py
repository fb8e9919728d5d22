"""`GET /v1/models` and `/v1/models/{id}`, at every gateway: OpenAI's cards, and under `modeld` what it knows
beyond.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from modeld.gateway import routing
from modeld.gateway.encoding import dumps
from modeld.supervisor.states import State, Status


def card(status: Status, name: str, created: int) -> dict[str, Any]:
    """Return a model as OpenAI's object, with `modeld` beside it; unknown facts are null or empty.

    `name` is its served name or one of its aliases; on the card of an alias `alias_of` is the served name.
    `footprint` is in bytes: what one replica takes, or is expected to. `replicas` counts those there are.
    """
    facts = status.facts
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "modeld",
        "modeld": {
            "state": status.state,
            "message": status.message,
            "loader": status.loader,
            "usecase": status.usecase,
            "capabilities": list(facts.capabilities) if facts else [],
            "context_length": facts.context_length if facts else None,
            "footprint": status.footprint or None,
            "pinned": status.pinned,
            "on_demand": status.on_demand,
            "replicas": {
                "ready": sum(replica.state is State.READY for replica in status.replicas),
                "total": len(status.replicas),
            },
            "aliases": list(status.aliases),
            "alias_of": None if name == status.served_name else status.served_name,
        },
    }


async def list_models(request: web.Request) -> web.Response:
    """List every model of the gateway, loaded or not, under each of its names."""
    gateway = request.app[routing.KEY]
    at = routing.gateway_name(request, gateway.pool)
    cards = [
        card(status, name, gateway.created)
        for status in gateway.pool.statuses()
        if status.gateway == at
        for name in (status.served_name, *status.aliases)
    ]
    return web.Response(body=dumps({"object": "list", "data": cards}), content_type="application/json")


async def retrieve(request: web.Request) -> web.Response:
    """Return one model, by any of its names."""
    gateway = request.app[routing.KEY]
    name = request.match_info["id"]
    status = routing.find(gateway.pool, routing.gateway_name(request, gateway.pool), name)
    return web.Response(body=dumps(card(status, name, gateway.created)), content_type="application/json")


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_get(app, "/v1/models", list_models)
    routing.add_get(app, "/v1/models/{id:.+}", retrieve)  # names may hold slashes

"""`POST /v1/chat/completions`, at every gateway."""

from __future__ import annotations

from aiohttp import web

from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.families.chat.request import read, to_task
from modeld.gateway.families.chat.response import ChatChunks, ChatCollector
from modeld.gateway.relay import Relay
from modeld.ids import new_id


async def create(request: web.Request) -> web.StreamResponse:
    """Continue a conversation, as a stream or in one body."""
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    body = read(await read_json(request, gateway.settings))
    status = routing.resolve(request, body.model, "generate", exchange)
    task = to_task(body, vision=routing.sees(status))
    opening = routing.opening(request, status, task, body.keep_alive)
    relay = Relay(request, exchange, gateway.settings, gateway.clock)
    created = int(gateway.clock.time())
    if body.stream:
        return await relay.streamed(
            opening,
            lambda: ChatChunks(
                id=new_id("chatcmpl-"),
                created=created,
                model=body.model,
                n=task.n,
                include_usage=body.include_usage,
            ),
        )
    collector = ChatCollector(
        id=new_id("chatcmpl-"),
        created=created,
        model=body.model,
        n=task.n,
        logprobs=task.top_logprobs is not None,
    )
    return await relay.collected(opening, collector)


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/chat/completions", create, expect)

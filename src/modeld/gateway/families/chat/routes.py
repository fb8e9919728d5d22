"""`POST /v1/chat/completions`, at every gateway."""

from __future__ import annotations

from aiohttp import web

from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.egress import Egress, Policy
from modeld.gateway.families.chat import pictures
from modeld.gateway.families.chat.request import read, to_task
from modeld.gateway.families.chat.response import ChatChunks, ChatCollector
from modeld.gateway.relay import Relay
from modeld.ids import new_id

EGRESS = web.AppKey("chat_egress", Egress)
"""What fetches the pictures that callers name by URL."""


async def create(request: web.Request) -> web.StreamResponse:
    """Continue a conversation, as a stream or in one body."""
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    raw = await read_json(request, gateway.settings)
    body = read(raw)
    status = routing.resolve(request, body.model, "generate", exchange)
    task = to_task(body, vision=routing.sees(status), media=gateway.settings.media)
    # What is fetched travels to the worker with the rest: together it must be what a body may be.
    room = gateway.settings.max_request_body - len(raw)
    task = await pictures.fetched(task, request.app[EGRESS], gateway.settings.media, room)
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
    media = app[routing.KEY].settings.media
    app[EGRESS] = Egress(Policy(media.fetch, media.fetch_hosts))
    routing.add_post(app, "/v1/chat/completions", create, expect)

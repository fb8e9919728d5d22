"""`POST /v1/completions`, at every gateway."""

from __future__ import annotations

from aiohttp import web

from modeld.gateway import exchange as exchanges
from modeld.gateway import keep_alive, routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.families.completions.merge import merged
from modeld.gateway.families.completions.request import read, to_tasks
from modeld.gateway.families.completions.response import CompletionChunks, CompletionCollector
from modeld.gateway.relay import Relay
from modeld.ids import new_id


async def create(request: web.Request) -> web.StreamResponse:
    """Continue one or several prompts, as a stream or in one body."""
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    body = read(await read_json(request, gateway.settings))
    status = routing.resolve(request, body.model, "generate", exchange)
    tasks = to_tasks(body)
    priority, kept_s = routing.priority(request), keep_alive.seconds(body.keep_alive)
    openings = [
        gateway.pool.open(status.name, task, exchange.identity, priority=priority, keep_alive=kept_s)
        for task in tasks
    ]
    opening = openings[0] if len(openings) == 1 else merged(openings, tasks[0].n)
    choices = len(tasks) * tasks[0].n
    relay = Relay(request, exchange, gateway.settings, gateway.clock)
    answer_id, created = new_id("cmpl-"), int(gateway.clock.time())
    if body.stream:
        return await relay.streamed(
            opening,
            lambda: CompletionChunks(
                id=answer_id,
                created=created,
                model=body.model,
                n=choices,
                include_usage=body.include_usage,
                top_logprobs=body.logprobs,
            ),
        )
    collector = CompletionCollector(
        id=answer_id, created=created, model=body.model, n=choices, top_logprobs=body.logprobs
    )
    return await relay.collected(opening, collector)


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/completions", create, expect)

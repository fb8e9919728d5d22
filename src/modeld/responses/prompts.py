"""`POST /v1/responses/input_tokens` and `/compact`: what a request would have read, counted or in short."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from modeld.errors import BadRequest
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.answer import json_answer
from modeld.gateway.body import expect, read_json
from modeld.ids import new_id
from modeld.protocol.tasks import ChatTask, Message
from modeld.responses import compact as summaries
from modeld.responses import context as contexts
from modeld.responses.asking import ask, count_tokens
from modeld.responses.context import Context
from modeld.responses.history import Items
from modeld.responses.inputs import Item
from modeld.responses.prepare import Prepared, context_length, prepare, read_messages, task_of
from modeld.responses.request import read
from modeld.responses.truncation import fitted
from modeld.supervisor.admission import Priority


async def count(request: web.Request) -> web.StreamResponse:
    """Say how many tokens a request's input has."""
    context = request.app[contexts.KEY]
    prepared = await _prepared(request, context)
    task = task_of(prepared, prepared.messages)
    tokens = await count_tokens(context, prepared, task, routing.priority(request))
    return json_answer({"object": "response.input_tokens", "input_tokens": tokens})


async def compact(request: web.Request) -> web.StreamResponse:
    """Have the model put a conversation in short: the items that go on in its place."""
    context, exchange = request.app[contexts.KEY], request[exchanges.KEY]
    prepared, priority = await _prepared(request, context), routing.priority(request)
    await context.seal.ready()
    try:
        events = await ask(context, prepared, _plan(context, prepared, prepared.messages), priority)
    except BadRequest as refusal:
        if refusal.code != "context_length_exceeded":
            raise
        # It is when the context is full that people compact: what is oldest is left out of the summary.
        messages = await _shortened(context, prepared, priority)
        events = await ask(context, prepared, messages, priority)
    text, usage = summaries.summary(events)
    exchange.usage = usage

    def seal(text: str) -> str:
        return context.seal.seal(summaries.KIND, text, prepared.identity)

    output = summaries.items((*prepared.before, *prepared.given), text, seal, new_id)
    created = int(context.clock.time())
    return json_answer(summaries.compacted(output, usage, id=new_id("resp_"), created=created))


async def _prepared(request: web.Request, context: Context) -> Prepared:
    exchange = request[exchanges.KEY]
    raw = await read_json(request, context.settings)
    prepared = await prepare(
        context,
        read(raw),
        identity=exchange.identity,
        gateway=routing.gateway_name(request, context.pool),
        room=context.settings.max_request_body - len(raw),
        dry=True,
    )
    exchange.model = prepared.model.name
    return prepared


def _plan(context: Context, prepared: Prepared, messages: tuple[Message, ...]) -> ChatTask:
    return summaries.plan(messages, context_length=context_length(context, prepared))


async def _shortened(context: Context, prepared: Prepared, priority: Priority) -> ChatTask:
    """Return the task for as much of the conversation as fits. Raises BadRequest."""
    length = context_length(context, prepared)
    if length is None:
        raise BadRequest("the input is too long for the model", code="context_length_exceeded", param="input")

    async def plan(before: Items, given: Items) -> ChatTask:
        return _plan(context, prepared, await read_messages(context, prepared, before, given))

    async def size(items: Sequence[Item]) -> int:
        return await count_tokens(context, prepared, await plan(tuple(items), ()), priority)

    before, given = await fitted(prepared.before, prepared.given, size, length, summaries.longest(length))
    return await plan(before, given)


def add_routes(app: web.Application) -> None:
    """Register these routes."""
    routing.add_post(app, "/v1/responses/input_tokens", count, expect)
    routing.add_post(app, "/v1/responses/compact", compact, expect)

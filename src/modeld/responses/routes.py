"""`/v1/responses` over HTTP, at every gateway: create, fetch, follow, cancel, delete."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from modeld.errors import BadRequest, NotFound, StoreFailed
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing, sse
from modeld.gateway.answer import json_answer
from modeld.gateway.body import expect, read_json
from modeld.gateway.envelope import CLIENT_CLOSED
from modeld.gateway.exchange import Exchange
from modeld.responses import context as contexts
from modeld.responses import listing
from modeld.responses.background import Background
from modeld.responses.context import Context
from modeld.responses.engine import Run
from modeld.responses.events import framed
from modeld.responses.outlets import KEEPALIVE, EventStream, Whole
from modeld.responses.prepare import Prepared, prepare
from modeld.responses.request import read
from modeld.store.responses import Stored

log = logging.getLogger("modeld.responses")

BACKGROUND = web.AppKey("responses_background", Background)
"""Where the application carries the runs that no connection waits for."""


async def create(request: web.Request) -> web.StreamResponse:
    """Answer with a response: in one body, as a stream, or with one that goes on in the background."""
    context, exchange = request.app[contexts.KEY], request[exchanges.KEY]
    raw = await read_json(request, context.settings)
    body = read(raw)
    prepared = await prepare(
        context,
        body,
        identity=exchange.identity,
        gateway=routing.gateway_name(request, context.pool),
        room=context.settings.max_request_body - len(raw),
    )
    exchange.model = prepared.model.name
    if body.background:
        return await _begin(request, prepared, streamed=bool(body.stream))
    if body.stream:
        return await _streamed(request, context, exchange, prepared)
    run = Run(context, prepared, Whole(context, prepared), routing.priority(request))
    try:
        response = await run.go()
    finally:
        _note(exchange, run)
    return json_answer(response)


async def _streamed(
    request: web.Request, context: Context, exchange: Exchange, prepared: Prepared
) -> web.StreamResponse:
    writer = sse.EventWriter(request, context.settings.client_stall_timeout)
    run = Run(context, prepared, EventStream(context, prepared, writer), routing.priority(request))
    try:
        response = await run.go()
        if response.error is not None:
            exchange.outcome = 502
        await writer.finish(sse.DONE)
    except ConnectionError:
        exchange.outcome = CLIENT_CLOSED
    finally:
        _note(exchange, run)
    return writer.response


async def _begin(request: web.Request, prepared: Prepared, *, streamed: bool) -> web.StreamResponse:
    background = request.app[BACKGROUND]
    response = await background.submit(prepared, streamed=streamed)
    if streamed:
        return await _follow(request, response.id, -1)
    return json_answer(response)


async def _follow(request: web.Request, id: str, after: int) -> web.StreamResponse:
    """Stream a run's events from its log: its reader may leave and come back."""
    context, background = request.app[contexts.KEY], request.app[BACKGROUND]
    writer = sse.EventWriter(request, context.settings.client_stall_timeout)
    try:
        async for events in background.follow(id, after, context.settings.keepalive_interval):
            await writer.send([framed(event) for event in events] if events else KEEPALIVE)
        await writer.finish(sse.DONE)
    except ConnectionError:
        request[exchanges.KEY].outcome = CLIENT_CLOSED
    except StoreFailed as failure:
        if not writer.started or request.transport is None:
            raise
        # The reader sees a stream that broke off, not one that is over, and may come back for the rest.
        log.warning("a stream broke off: %s", failure, extra={"response": id})
        request[exchanges.KEY].outcome = 503
        request.transport.abort()
    return writer.response


async def fetch(request: web.Request) -> web.StreamResponse:
    """Return a response, or the stream of its events."""
    context, background, identity, id = (
        request.app[contexts.KEY],
        request.app[BACKGROUND],
        request[exchanges.KEY].identity,
        request.match_info["id"],
    )
    query = request.query
    listing.check_include(query)
    after = _starting_after(query)
    streamed = listing.flag(query, "stream")
    live = background.live(identity, id)
    stored = None if live is not None and not streamed else await background.get(identity, id)
    if stored is None and live is None:
        raise not_found(id)
    if streamed:
        if stored is None or not stored.streamed:
            raise BadRequest(
                "a stream can only be read again of a response that was created with background and stream",
                code="invalid_value",
                param="stream",
            )
        if stored.log_expires is not None and stored.log_expires <= context.clock.time():
            raise BadRequest(
                f"the stream of a response can be read again for {context.replay_s:g} s after its end "
                "(responses.replay in the configuration), and that is over; get it without stream",
                code="invalid_value",
                param="stream",
            )
        return await _follow(request, id, -1 if after is None else after)
    if after is not None:
        raise BadRequest("starting_after needs stream=true", code="invalid_value", param="starting_after")
    return json_answer(live) if live is not None else _stored(stored)


async def delete(request: web.Request) -> web.StreamResponse:
    """Forget a response; one that is running ends first."""
    context, identity, id = (
        request.app[contexts.KEY],
        request[exchanges.KEY].identity,
        request.match_info["id"],
    )
    await request.app[BACKGROUND].cancel(identity, id, "deleted")
    if not await context.responses.delete(identity, id):
        raise not_found(id)
    return json_answer({"id": id, "object": "response", "deleted": True})


async def cancel(request: web.Request) -> web.StreamResponse:
    """End a run in the background; one that is over is returned as it is."""
    background, identity, id = (
        request.app[BACKGROUND],
        request[exchanges.KEY].identity,
        request.match_info["id"],
    )
    await background.cancel(identity, id)
    stored = await background.get(identity, id)
    if stored is None:
        raise not_found(id)
    if not stored.background:
        raise BadRequest(
            "Cannot cancel a synchronous response: only those that were created with background=true can be "
            "cancelled. To stop another one, close its connection.",
            code="invalid_value",
            param="response_id",
        )
    return _stored(stored)


async def input_items(request: web.Request) -> web.StreamResponse:
    """List the items that a response was given."""
    context, identity, id = (
        request.app[contexts.KEY],
        request[exchanges.KEY].identity,
        request.match_info["id"],
    )
    page = listing.page(request.query)
    items = await context.responses.inputs(identity, id)
    if items is None:
        raise not_found(id)
    return json_answer(listing.listed(items, page))


def _note(exchange: Exchange, run: Run) -> None:
    exchange.first_event, exchange.chunks = run.first_event, run.events
    exchange.usage = run.usage


def not_found(id: str) -> NotFound:
    """Return the error for a response that is not there, or is somebody else's."""
    return NotFound(
        f"Response with id '{id[:100]}' not found.", code="response_not_found", param="response_id"
    )


def _starting_after(query: Mapping[str, str]) -> int | None:
    text = query.get("starting_after")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadRequest(
            f"invalid value for 'starting_after': {text[:40]!r} is not the number of an event",
            code="invalid_value",
            param="starting_after",
        )
    return int(text)


def _stored(stored: Stored | None) -> web.Response:
    assert stored is not None
    fields: dict[str, Any] = msgspec.json.decode(stored.body)
    fields["output"] = stored.output
    return json_answer(fields)


def add_routes(app: web.Application) -> None:
    """Register this room's routes."""
    routing.add_post(app, "/v1/responses", create, expect)
    routing.add_get(app, "/v1/responses/{id}", fetch)
    routing.add_delete(app, "/v1/responses/{id}", delete)
    routing.add_get(app, "/v1/responses/{id}/input_items", input_items)
    # The SDKs send a body of no bytes with this one.
    routing.add_post(app, "/v1/responses/{id}/cancel", cancel, expect)

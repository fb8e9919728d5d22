"""The way to a socket: who may open one, and all that are open."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, web

from modeld.errors import BadRequest, Forbidden, TooLarge
from modeld.gateway import envelope, routing
from modeld.gateway import exchange as exchanges
from modeld.gateway.access import Places
from modeld.responses import context as contexts
from modeld.responses.websocket import frames
from modeld.responses.websocket.connection import CLOSE_S, LAST_WRITES_S, Connection, Socket

log = logging.getLogger("modeld.responses")

OPEN = web.AppKey("responses_sockets", set[Connection])
"""Where the application carries the connections that are open."""

_PORTS = {"http": 80, "https": 443}


async def connect(request: web.Request) -> web.StreamResponse:
    """Turn a GET into a socket and serve it to its end."""
    context, exchange = request.app[contexts.KEY], request[exchanges.KEY]
    settings = context.settings
    if request.headers.get("upgrade", "").strip().lower() != "websocket":
        return _not_an_upgrade()
    places = Places(
        loopback=settings.loopback, allowed_hosts=settings.allowed_hosts, cors_origins=settings.cors_origins
    )
    check_origin(places, request.headers.get("origin"), request.headers.get("host"))
    gateway, priority = routing.gateway_name(request, context.pool), routing.priority(request)
    limit = settings.max_request_body
    too_large = TooLarge(
        f"the frame is more than {limit} bytes, the limit; max_request_body in the configuration sets it"
    )
    socket = Socket(limit, frames.refusal(too_large, exchange.id))
    try:
        writer = await socket.prepare(request)
    except web.HTTPBadRequest as refusal:
        raise BadRequest(
            f"this is no WebSocket handshake: {refusal.text}", code="invalid_handshake"
        ) from None
    connection = Connection(context, request, socket, writer, exchange, gateway=gateway, priority=priority)
    opened = request.app[OPEN]
    opened.add(connection)
    try:
        await connection.serve()
    except Exception as error:  # what the edge would answer is no frame
        context.metrics.errors.labels(exchange.endpoint).inc()
        log.error("bug on a socket", exc_info=error, extra={"request": exchange.id})
        exchange.outcome = 500
        await socket.close(code=WSCloseCode.INTERNAL_ERROR)
    finally:
        opened.discard(connection)
    return socket


def check_origin(places: Places, origin: str | None, host: str | None) -> None:
    """Refuse a socket to a web page that could not read the API's answers. Raises Forbidden.

    A handshake has no preflight, so that another port of the same host is as foreign as another host.
    """
    if origin is None or places.cors_allows(origin):
        return
    places.check_origin("POST", origin, host)
    theirs = urlsplit(origin)
    ours = urlsplit(f"{theirs.scheme}://{host}")
    try:
        same = _port(theirs.port, theirs.scheme) == _port(ours.port, theirs.scheme)
    except ValueError:
        same = False
    if not same:
        raise Forbidden(
            f"web pages from {origin[:100]!r} may not open a socket here; "
            "if they should, add the origin to cors_origins in the configuration",
            code="origin_not_allowed",
        )


def _port(given: int | None, scheme: str) -> int | None:
    return _PORTS.get(scheme) if given is None else given


def _not_an_upgrade() -> web.Response:
    return web.Response(
        status=426,
        body=envelope.body(
            "GET /v1/responses opens a WebSocket and this request is not an upgrade to one; POST makes a "
            "response, GET /v1/responses/{id} reads a stored one",
            "invalid_request_error",
            None,
            "upgrade_required",
        ),
        headers={"upgrade": "websocket", "connection": "upgrade", "allow": "GET, POST"},
        content_type="application/json",
    )


async def _leave(app: web.Application) -> None:
    """Close what is open: the daemon stops."""
    opened = app[OPEN]
    connections = list(opened)
    for connection in connections:
        connection.leave(WSCloseCode.GOING_AWAY, "the server stops")
    if connections:
        waits = [asyncio.ensure_future(connection.gone.wait()) for connection in connections]
        _, late = await asyncio.wait(waits, timeout=LAST_WRITES_S + CLOSE_S)
        for wait in late:
            wait.cancel()


def add_routes(app: web.Application) -> None:
    """Register this room's route."""
    app[OPEN] = set()
    app.on_shutdown.append(_leave)
    routing.add_get(app, "/v1/responses", connect)

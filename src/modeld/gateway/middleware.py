"""The edge every request passes: request id, access, one envelope for all errors, metrics, one log line.

It is one middleware and not seven because each layer costs every request a coroutine, and because the order
of these steps is the point.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from modeld.errors import Forbidden, MethodNotAllowed, ModeldError, NotFound, TooLarge, Unauthorized
from modeld.gateway import access, routing
from modeld.gateway.envelope import BUG, CLIENT_CLOSED, plain_response, row_of, to_response
from modeld.gateway.exchange import KEY, UNKNOWN, Exchange
from modeld.gateway.routing import Gateway
from modeld.ids import RequestId, new_id

log = logging.getLogger("modeld.gateway")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_ROUTES = frozenset({"/health"})
"""Routes that need no key."""

SERVER = "modeld"


class Edge:
    """The middleware's own state."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._keys = access.Keys(settings.api_keys)
        self._places = access.Places(
            loopback=settings.loopback,
            allowed_hosts=settings.allowed_hosts,
            cors_origins=settings.cors_origins,
        )

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer one request, whatever happens in its handler."""
        gateway = self._gateway
        exchange = Exchange(RequestId(new_id("req_")), gateway.clock.monotonic(), _endpoint(request))
        request[KEY] = exchange
        gateway.metrics.request_started(exchange.endpoint)
        try:
            response = await self._answer(request, exchange, handler)
            if exchange.outcome is None:
                exchange.outcome = response.status
            return response
        except BaseException:
            # Cancelled: by the client's leaving, or by the daemon's end, when the client is still there.
            exchange.outcome = CLIENT_CLOSED if _gone(request) else 503
            raise
        finally:
            self._record(request, exchange)

    async def stamp(self, request: web.Request, response: web.StreamResponse) -> None:
        """Put on a response what every response carries; runs just before its headers go out."""
        headers = response.headers
        exchange = request.get(KEY)
        if exchange is None:  # refused before the middleware, e.g. an unknown Expect
            exchange = Exchange(RequestId(new_id("req_")), self._gateway.clock.monotonic())
        headers["x-request-id"] = exchange.id
        spent = self._gateway.clock.monotonic() - exchange.started
        headers["openai-processing-ms"] = str(round(spent * 1000))
        headers["server"] = SERVER
        origin = request.headers.get("origin")
        if origin is not None and self._places.cors_allows(origin):
            headers.update(access.cors_headers(origin))

    async def _answer(self, request: web.Request, exchange: Exchange, handler: Handler) -> web.StreamResponse:
        try:
            preflight = self._admit(request, exchange)
            return preflight if preflight is not None else await handler(request)
        except web.HTTPException as refusal:
            return _http_refusal(request, refusal, exchange.id)
        except ModeldError as error:
            self._note(request, exchange, error)
            return to_response(error, exchange.id)
        except ConnectionError:
            if not _gone(request):
                raise
            exchange.outcome = CLIENT_CLOSED
            return web.Response(status=CLIENT_CLOSED)
        except Exception as error:
            self._note(request, exchange, error)
            return to_response(error, exchange.id)

    def _admit(self, request: web.Request, exchange: Exchange) -> web.Response | None:
        """Check key, host and origin; return the answer when the request is an allowed preflight."""
        headers = request.headers
        hosts = headers.getall("host", [])
        host = ", ".join(hosts) if hosts else None
        self._places.check_host(host)
        origin = headers.get("origin")
        if origin is not None:
            if request.method == "OPTIONS" and "access-control-request-method" in headers:
                # Browsers send preflights without keys, so they are answered by origin alone.
                self._places.check_origin(headers["access-control-request-method"], origin, host)
                if self._places.cors_allows(origin):
                    return web.Response(status=204, headers=access.preflight_headers(headers))
            self._places.check_origin(request.method, origin, host)
        if exchange.endpoint not in OPEN_ROUTES:
            exchange.identity = self._keys.identify(headers)
        return None

    def _note(self, request: web.Request, exchange: Exchange, error: Exception) -> None:
        """Log and count what the owner should know about a failed request."""
        metrics = self._gateway.metrics
        if row_of(error) is BUG:
            metrics.errors.labels(exchange.endpoint).inc()
            log.error("bug while answering a request", exc_info=error, extra={"request": exchange.id})
        elif isinstance(error, (Unauthorized, Forbidden)):
            metrics.auth_failures.labels(error.code).inc()
            log.warning(
                "refused: %s", error.message, extra={"request": exchange.id, "remote": request.remote or "-"}
            )

    def _record(self, request: web.Request, exchange: Exchange) -> None:
        metrics, now = self._gateway.metrics, self._gateway.clock.monotonic()
        model, endpoint, outcome = exchange.model, exchange.endpoint, exchange.outcome or 0
        metrics.request_ended(model=model, endpoint=endpoint, status=outcome, seconds=now - exchange.started)
        if (first := exchange.first_event) is not None:
            usage = exchange.usage
            metrics.call_ended(
                model=model,
                first_token_s=first - exchange.started,
                chunks=exchange.chunks,
                prompt_tokens=usage.prompt_tokens if usage else 0,
                cached_tokens=usage.cached_tokens if usage else 0,
                completion_tokens=usage.completion_tokens if usage else 0,
            )
        if outcome == CLIENT_CLOSED:
            metrics.client_disconnects.labels(model, endpoint).inc()
        # Scrapes and probes come every few seconds; only who looks for them wants a line.
        level = logging.INFO if endpoint.startswith("/v1/") else logging.DEBUG
        if log.isEnabledFor(level):
            log.log(level, "request", extra=_fields(request, exchange, now))


def _fields(request: web.Request, exchange: Exchange, now: float) -> dict[str, object]:
    fields: dict[str, object] = {
        "request": exchange.id,
        "method": request.method,
        "route": exchange.endpoint,
        "status": exchange.outcome,
        "ms": round((now - exchange.started) * 1000, 1),
    }
    if exchange.model != UNKNOWN:
        fields["model"] = exchange.model
    if exchange.usage is not None:
        fields["tokens_in"] = exchange.usage.prompt_tokens
        fields["tokens_out"] = exchange.usage.completion_tokens
    theirs = request.headers.get("x-request-id")
    if theirs and len(theirs) <= 128 and theirs.isascii() and theirs.isprintable():
        fields["client_request"] = theirs
    return fields


def _endpoint(request: web.Request) -> str:
    """Return the route's path, the same at all gateways: the model's label tells them apart."""
    resource = request.match_info.route.resource
    return UNKNOWN if resource is None else resource.canonical.removeprefix(routing.SEGMENT)


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _http_refusal(request: web.Request, refusal: web.HTTPException, request_id: RequestId) -> web.Response:
    """Turn a refusal of the router into our envelope."""
    path = request.path[:200]
    if isinstance(refusal, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(refusal.allowed_methods))
        response = to_response(
            MethodNotAllowed(f"{request.method} is not allowed on {path}, only {allowed}"), request_id
        )
        response.headers["allow"] = allowed
        return response
    if isinstance(refusal, web.HTTPNotFound):
        return to_response(NotFound(f"there is nothing at {path}", code="unknown_url"), request_id)
    if isinstance(refusal, web.HTTPRequestEntityTooLarge):
        return to_response(TooLarge("the body is over the limit"), request_id)
    return plain_response(refusal.status, refusal.reason or "the request was refused")


def install(app: web.Application, gateway: Gateway) -> None:
    """Put the edge around every route of an application."""
    edge = Edge(gateway)

    @web.middleware
    async def pass_edge(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await edge.handle(request, handler)

    app.middlewares.append(pass_edge)
    app.on_response_prepare.append(edge.stamp)
    app[routing.KEY] = gateway

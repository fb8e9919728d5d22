"""The gateway put together: routes, edge, and the server that speaks HTTP for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from modeld.clock import Clock
from modeld.gateway import middleware
from modeld.gateway.envelope import plain_response
from modeld.gateway.families import embeddings, health, models, models_pull, rerank, tokenize
from modeld.gateway.families.chat import routes as chat
from modeld.gateway.families.completions import routes as completions
from modeld.gateway.families.images import routes as images
from modeld.gateway.families.speech import routes as speech
from modeld.gateway.families.transcriptions import routes as transcriptions
from modeld.gateway.ports import Pool
from modeld.gateway.routing import Gateway
from modeld.gateway.settings import GatewaySettings
from modeld.ids import new_id
from modeld.telemetry.metrics import Metrics

log = logging.getLogger("modeld.gateway")

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

LINGERING = 5.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client sees the refusal."""


def build_app(pool: Pool, settings: GatewaySettings, metrics: Metrics, clock: Clock) -> web.Application:
    """Build the application; one call, one application. It owns nothing that needs closing."""
    app = web.Application(client_max_size=settings.max_request_body)
    gateway = Gateway(
        pool=pool,
        settings=settings,
        metrics=metrics,
        clock=clock,
        started=clock.monotonic(),
        created=int(clock.time()),
    )
    metrics.watch_models(pool.statuses)
    middleware.install(app, gateway)
    for family in (
        chat,
        completions,
        transcriptions,
        speech,
        models_pull,
        models,
        health,
        images,
        embeddings,
        rerank,
        tokenize,
    ):
        family.add_routes(app)
    return app


class GatewayRunner(web.AppRunner):
    """Runs the application so that a client's leaving cancels its handler, and so that refusals of the HTTP
    parser come in the envelope too. Use it like `web.AppRunner`.
    """

    __slots__ = ()

    def __init__(self, app: web.Application, *, shutdown_timeout: float = 60.0) -> None:
        super().__init__(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=shutdown_timeout,
            lingering_time=LINGERING,
        )

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return _Server(
            _guarded(plain.request_handler),
            request_factory=plain.request_factory,
            handler_cancellation=True,
            access_log=None,
            lingering_time=LINGERING,
        )


def _guarded(handle: Handler) -> Handler:
    async def guard(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handle(request)
        except web.HTTPException as refusal:  # of an Expect header, before any middleware runs
            return plain_response(refusal.status, refusal.text or refusal.reason)

    return guard


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    """One client connection; answers in the envelope what never becomes a request."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer malformed HTTP (400), or a failure outside the middleware (500)."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is already under way")
        request_id = new_id("req_")
        if status >= 500:
            log.error("bug outside a handler", exc_info=exc, extra={"request": request_id})
            text = f"modeld failed to answer this request; its log has the reason under {request_id}"
        else:
            log.debug("malformed HTTP: %s", message, extra={"request": request_id})
            text = f"this is not HTTP as the server understands it: {_one_line(message)}"
        response = plain_response(status, text, {"x-request-id": request_id, "server": middleware.SERVER})
        response.headers["openai-processing-ms"] = "0"
        response.force_close()
        return response


def _one_line(message: str | None) -> str:
    return " ".join((message or "malformed request").split())[:300]

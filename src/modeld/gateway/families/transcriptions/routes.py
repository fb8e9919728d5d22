"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`, at every gateway."""

from __future__ import annotations

from aiohttp import web

from modeld.errors import BadRequest
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect
from modeld.gateway.exchange import Exchange
from modeld.gateway.families.transcriptions.request import read
from modeld.gateway.families.transcriptions.response import (
    CONTENT_TYPES,
    TranscriptChunks,
    TranscriptCollector,
)
from modeld.gateway.multipart import read_form
from modeld.gateway.relay import Relay
from modeld.supervisor.states import Status

USECASES = ("transcription", "translation")
"""Both kinds of model are asked in both ways: which a model can do is known when it is loaded."""


async def transcribe(request: web.Request) -> web.StreamResponse:
    """Write down a recording in the language that is spoken."""
    return await _answer(request, translate=False)


async def translate(request: web.Request) -> web.StreamResponse:
    """Write down a recording in English."""
    return await _answer(request, translate=True)


async def _answer(request: web.Request, *, translate: bool) -> web.StreamResponse:
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    asked = read(await read_form(request, gateway.settings), translate=translate)
    status = _model(request, asked.model, exchange, translate=translate)
    opening = gateway.pool.open(
        status.name,
        asked.task,
        exchange.identity,
        priority=routing.priority(request),
        keep_alive=asked.keep_alive,
    )
    relay = Relay(request, exchange, gateway.settings, gateway.clock)
    if asked.stream:
        return await relay.streamed(opening, lambda: TranscriptChunks(translate=translate))
    collector = TranscriptCollector(
        format=asked.format, translate=translate, words=asked.words, segments=asked.segments
    )
    response = await relay.collected(opening, collector)
    response.content_type = CONTENT_TYPES[asked.format]
    if response.content_type != "application/json":
        response.charset = "utf-8"
    return response


def _model(request: web.Request, name: str, exchange: Exchange, *, translate: bool) -> Status:
    """Return the snapshot of a model that writes down recordings. Raises NotFound, BadRequest."""
    pool = request.app[routing.KEY].pool
    status = routing.find(pool, routing.gateway_name(request, pool), name)
    exchange.model = status.name
    if status.usecase not in USECASES:
        raise routing.wrong_use(name, status)
    if translate and status.facts is not None and "translation" not in status.facts.capabilities:
        raise BadRequest(
            f"the model {name!r} writes down what it hears and cannot translate it; "
            f"it can do: {', '.join(status.facts.capabilities)}",
            code="unsupported_task",
            param="model",
        )
    return status


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/audio/transcriptions", transcribe, expect)
    routing.add_post(app, "/v1/audio/translations", translate, expect)

"""`POST /v1/audio/speech` and `GET /v1/audio/voices`, at every gateway."""

from __future__ import annotations

from aiohttp import web

from modeld.errors import BadRequest, ModelUnavailable
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.encoding import dumps
from modeld.gateway.families.speech.request import read, to_task
from modeld.gateway.families.speech.response import AudioRelay, SpeechEvents
from modeld.gateway.relay import WAIT
from modeld.protocol.tasks import TokenizeTask
from modeld.supervisor.states import Status

USECASE = "tts"


async def create(request: web.Request) -> web.StreamResponse:
    """Speak a text."""
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    body = read(await read_json(request, gateway.settings), gateway.settings.media.speech_characters)
    status = routing.resolve(request, body.model, USECASE, exchange)
    task = to_task(body)
    opening = routing.opening(request, status, task, body.keep_alive)
    relay = AudioRelay(request, exchange, gateway.settings, gateway.clock)
    if body.events:
        return await relay.streamed(opening, SpeechEvents)
    return await relay.file(opening, task.format)


async def voices(request: web.Request) -> web.StreamResponse:
    """List the voices of the model in the query, or without one those that are known of every speech model
    here.

    They are known from a model's first load on. One that has not been loaded yet is loaded, as a request for
    speech would.
    """
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    name = request.query.get("model")
    if name:
        status = routing.resolve(request, name, USECASE, exchange)
        listed = _voices(status if status.facts is not None else await _loaded(request, status))
    else:
        here = routing.gateway_name(request, gateway.pool)
        listed = [
            voice
            for status in gateway.pool.statuses()
            if status.gateway == here and status.usecase == USECASE
            for voice in _voices(status)
        ]
    return web.Response(body=dumps({"voices": listed}), content_type="application/json")


async def _loaded(request: web.Request, status: Status) -> Status:
    """Load a model and return its new snapshot. Raises ModeldError as a call of it does."""
    pool = request.app[routing.KEY].pool
    try:
        # No task asks for voices; one that a speech model refuses at once waits and loads it all the same.
        async with routing.opening(request, status, TokenizeTask(text=""), None) as stream:
            while await stream.take(WAIT) is not None:
                pass
    except BadRequest as refusal:
        if refusal.code != "unsupported_task":
            raise
    again = pool.find(status.gateway, status.served_name)
    if again is None or again.facts is None:
        raise ModelUnavailable(
            f"the model {status.served_name!r} was unloaded before it could tell its voices; ask again",
            code="model_not_loaded",
        )
    return again


def _voices(status: Status) -> list[dict[str, str]]:
    names = () if status.facts is None else status.facts.voices
    return [{"id": name, "name": name, "model": status.served_name} for name in names]


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/audio/speech", create, expect)
    routing.add_get(app, "/v1/audio/voices", voices)

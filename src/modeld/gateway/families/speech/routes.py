"""`POST /v1/audio/speech` and `GET /v1/audio/voices`, at every gateway."""

from __future__ import annotations

from aiohttp import web

from modeld.errors import ModelUnavailable
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.encoding import dumps
from modeld.gateway.families.speech.request import read, to_task
from modeld.gateway.families.speech.response import AudioRelay, SpeechEvents
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
    """List the voices of the model in the query, or without one those of every loaded speech model here.

    Voices are known while a model is loaded.
    """
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    name = request.query.get("model")
    if name:
        status = routing.resolve(request, name, USECASE, exchange)
        if status.facts is None:
            raise ModelUnavailable(
                f"the voices of {name!r} are known while it is loaded, and it is {status.state.value}: "
                f"{status.message or 'a request for speech loads it'}",
                code="model_not_loaded",
            )
        listed = _voices(status)
    else:
        here = routing.gateway_name(request, gateway.pool)
        listed = [
            voice
            for status in gateway.pool.statuses()
            if status.gateway == here and status.usecase == USECASE
            for voice in _voices(status)
        ]
    return web.Response(body=dumps({"voices": listed}), content_type="application/json")


def _voices(status: Status) -> list[dict[str, str]]:
    names = () if status.facts is None else status.facts.voices
    return [{"id": name, "name": name, "model": status.served_name} for name in names]


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/audio/speech", create, expect)
    routing.add_get(app, "/v1/audio/voices", voices)

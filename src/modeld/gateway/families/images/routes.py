"""`POST /v1/images/generations`, `…/edits`, `…/variations`, and the pictures' links; at every gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from modeld.errors import BadRequest, NotFound
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.families.images import request as requests
from modeld.gateway.families.images.request import ImageRequest, Kind, to_task
from modeld.gateway.families.images.response import ImageChunks, ImageCollector
from modeld.gateway.links import Links
from modeld.gateway.multipart import read_form
from modeld.gateway.relay import Relay
from modeld.protocol.pictures import look
from modeld.supervisor.states import Status

USECASE = "image"
FILES = "/v1/images/files"

LINKS = web.AppKey("image_links", Links)
"""Where the application keeps the pictures that were asked for as links."""

_FILE_HEADERS = {"cache-control": "private, max-age=3600", "x-content-type-options": "nosniff"}


async def generate(request: web.Request) -> web.StreamResponse:
    """Draw from words."""
    settings = request.app[routing.KEY].settings
    body = requests.read(await read_json(request, settings))
    return await _answer(request, body, "generation")


async def edit(request: web.Request) -> web.StreamResponse:
    """Draw on a picture: where the mask, or the picture itself, is transparent, or all over."""
    return await _upon(request, "edit")


async def vary(request: web.Request) -> web.StreamResponse:
    """Draw a picture's like."""
    return await _upon(request, "variation")


async def fetch(request: web.Request) -> web.StreamResponse:
    """Give a picture to whoever asked for it, as long as its link holds. Raises NotFound."""
    routing.gateway_name(request, request.app[routing.KEY].pool)
    identity = request[exchanges.KEY].identity
    data = request.app[LINKS].get(identity, request.match_info["name"])
    if data is None:
        raise NotFound(
            "there is no such picture, or its link has expired, or another key asked for it",
            code="picture_not_found",
        )
    return web.Response(body=data, content_type=f"image/{look(data).format}", headers=_FILE_HEADERS)


async def _upon(request: web.Request, kind: Kind) -> web.StreamResponse:
    settings = request.app[routing.KEY].settings
    form = await read_form(request, settings)
    body, limits = requests.read_fields(form), settings.media.limits
    image = requests.picture(form, "image", limits, needed=True)
    mask = requests.picture(form, "mask", limits)
    return await _answer(request, body, kind, image, mask)


async def _answer(
    request: web.Request,
    body: ImageRequest,
    kind: Kind,
    image: bytes | None = None,
    mask: bytes | None = None,
) -> web.StreamResponse:
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    status = routing.resolve(request, body.model, USECASE, exchange)
    if image is not None:
        _check_edits(status, body.model)
    task = to_task(body, kind, gateway.settings.media.limits, image, mask)
    opening = routing.opening(request, status, task, body.keep_alive)
    relay = Relay(request, exchange, gateway.settings, gateway.clock)
    created = int(gateway.clock.time())
    size = None if task.width is None or task.height is None else (task.width, task.height)
    if body.stream:
        return await relay.streamed(
            opening,
            lambda: ImageChunks(
                family="image_generation" if kind == "generation" else "image_edit",
                created=created,
                n=task.n,
                size=size,
                progress=bool(body.progress),
                form=task.format,
            ),
        )
    link = (lambda data: _keep(request, data)) if body.response_format == "url" else None
    collector = ImageCollector(created=created, n=task.n, size=size, link=link, form=task.format)
    return await relay.collected(opening, collector)


def _check_edits(status: Status, name: str) -> None:
    """Refuse early what the loaded model is known not to do. Raises BadRequest."""
    facts = status.facts
    if facts is not None and "image_edit" not in facts.capabilities:
        raise BadRequest(
            f"the model {name!r} draws from words only (its capabilities: {', '.join(facts.capabilities)})",
            code="unsupported_task",
            param="model",
        )


def _keep(request: web.Request, pictures: Sequence[bytes]) -> list[str]:
    """Keep pictures for their links; return the URLs, at the address and gateway that the caller used."""
    links = request.app[LINKS]
    names = links.add(request[exchanges.KEY].identity, pictures)
    _purge_later(links)
    gateway = request.match_info.get("gateway", "")
    base = f"{request.scheme}://{request.host}{routing.base(gateway)}{FILES.removeprefix('/v1')}"
    return [f"{base}/{name}" for name in names]


def _purge_later(links: Links) -> None:
    """See that expired pictures leave memory also when nobody asks any more."""
    left = links.purge()
    if left is not None:
        asyncio.get_running_loop().call_later(left + 1.0, links.purge)


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    app[LINKS] = Links(app[routing.KEY].clock.monotonic)
    routing.add_post(app, "/v1/images/generations", generate, expect)
    routing.add_post(app, "/v1/images/edits", edit, expect)
    routing.add_post(app, "/v1/images/variations", vary, expect)
    routing.add_get(app, FILES + "/{name}", fetch)

"""`GET /v1/models` and `/v1/models/{id}`, at every gateway: OpenAI's cards, and under `modeld` what it knows
beyond.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from modeld.gateway import routing
from modeld.gateway.encoding import dumps
from modeld.library.entry import Entry
from modeld.supervisor.states import State, Status

Files: TypeAlias = Callable[[Sequence[Status]], Awaitable[Mapping[str, Entry]]]
FILES: web.AppKey[Files] = web.AppKey("model_files")
"""Where whoever knows the models' files says what is in them, by `Status.name`; those that are not here, or
that no file belongs to, are left out.
"""

Sums: TypeAlias = Callable[[Entry], Awaitable[Mapping[str, str]]]
SUMS: web.AppKey[Sums] = web.AppKey("model_sums")
"""Where whoever knows them says the sha256 of a model's files, by their names."""


def card(
    status: Status,
    name: str,
    created: int,
    file: Entry | None = None,
    *,
    detail: bool = False,
    sums: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a model as OpenAI's object, with `modeld` beside it; unknown facts are null or empty.

    `name` is its served name or one of its aliases; on the card of an alias `alias_of` is the served name.
    `footprint` is in bytes: what one replica takes, or is expected to. `replicas` counts those there are.
    `capabilities` and `context_length` (tokens) are those of the loaded model; before it is loaded, what its
    file says: the context is then what it was trained for. `parameters` counts weights, `size` is in bytes
    on disk. With `detail` there is `metadata`, null when the file is not here; `sums` are for that.
    """
    facts = status.facts
    known = file.metadata if file else None
    ours = {
        "state": status.state,
        "message": status.message,
        "loader": status.loader,
        "usecase": status.usecase,
        "capabilities": list(facts.capabilities if facts else _able(status, file)),
        "context_length": facts.context_length if facts else known.context_length if known else None,
        "parameters": known.parameters if known else None,
        "quantization": (known.quantization or None) if known else None,
        "size": (file.size or None) if file else None,
        "footprint": status.footprint or None,
        "pinned": status.pinned,
        "on_demand": status.on_demand,
        "replicas": {
            "ready": sum(replica.state is State.READY for replica in status.replicas),
            "total": len(status.replicas),
        },
        "aliases": list(status.aliases),
        "alias_of": None if name == status.served_name else status.served_name,
    }
    if detail:
        ours["metadata"] = metadata(file, sums or {}) if file else None
    return {"id": name, "object": "model", "created": created, "owned_by": "modeld", "modeld": ours}


def _able(status: Status, file: Entry | None) -> tuple[str, ...]:
    """Return what the file can do by itself, if that is what it is configured for."""
    return file.capabilities if file is not None and file.usecase == status.usecase else ()


def metadata(file: Entry, sums: Mapping[str, str]) -> dict[str, Any]:
    """Return what a model's file says of itself; what is unknown is missing. Where it lies is not told.

    `about` has the file's own keys under `keys`; a broken file has an `error`; `sha256` those of the files of
    which it is known, by name.
    """
    found: dict[str, Any] = {"format": file.format, "kind": file.kind, "files": len(file.files)}
    if file.error:
        found["error"] = file.error.replace(f"{os.path.dirname(file.path)}{os.sep}", "")
    known = file.metadata
    if known is not None:
        told = {
            "name": known.name,
            "architecture": known.architecture,
            "layers": len(known.layers),
            "embedding_length": known.embedding_length,
            "feed_forward_length": known.feed_forward_length,
            "heads": known.n_head,
            "vocabulary": known.vocabulary,
            "experts": known.n_experts,
            "experts_used": known.n_experts_used,
            "context_length": known.context_length,
        }
        found |= {name: value for name, value in told.items() if value}
    if file.mmproj:
        found["mmproj"] = True
    if sums:
        found["sha256"] = dict(sums)
    if file.about is not None:
        found["about"] = msgspec.to_builtins(file.about)
    return found


async def list_models(request: web.Request) -> web.Response:
    """List every model of the gateway, loaded or not, under each of its names; `?detail=1` adds metadata."""
    gateway = request.app[routing.KEY]
    detail = routing.flag(request, "detail")
    at = routing.gateway_name(request, gateway.pool)
    statuses = [status for status in gateway.pool.statuses() if status.gateway == at]
    files = await files_of(request, statuses)
    sums = await _sums_of(request, files) if detail else {}
    cards = [
        card(
            status,
            name,
            gateway.created,
            files.get(status.name),
            detail=detail,
            sums=sums.get(status.name),
        )
        for status in statuses
        for name in (status.served_name, *status.aliases)
    ]
    return web.Response(body=dumps({"object": "list", "data": cards}), content_type="application/json")


async def retrieve(request: web.Request) -> web.StreamResponse:
    """Return one model, by any of its names; `?detail=1` adds metadata."""
    return await one(request, request.match_info["id"])


async def one(request: web.Request, name: str) -> web.Response:
    """Return the model of this name."""
    gateway, detail = request.app[routing.KEY], routing.flag(request, "detail")
    status = routing.find(gateway.pool, routing.gateway_name(request, gateway.pool), name)
    files = await files_of(request, (status,))
    sums = (await _sums_of(request, files)).get(status.name) if detail else None
    body = card(status, name, gateway.created, files.get(status.name), detail=detail, sums=sums)
    return web.Response(body=dumps(body), content_type="application/json")


async def files_of(request: web.Request, statuses: Sequence[Status]) -> Mapping[str, Entry]:
    """Return what is known of models' files, by `Status.name`."""
    look = request.app.get(FILES)
    return {} if look is None else await look(statuses)


async def _sums_of(request: web.Request, files: Mapping[str, Entry]) -> dict[str, Mapping[str, str]]:
    tell = request.app.get(SUMS)
    return {} if tell is None else {name: await tell(file) for name, file in files.items()}


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_get(app, "/v1/models", list_models)
    routing.add_get(app, "/v1/models/{id:.+}", retrieve)  # names may hold slashes

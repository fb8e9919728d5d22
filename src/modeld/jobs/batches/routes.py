"""`/v1/batches` at every gateway: create, list, look, cancel. A batch's model is one of its gateway's."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from modeld.errors import BadRequest, NotFound
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.answer import json_answer
from modeld.gateway.body import expect, read_json
from modeld.gateway.decoding import decode, invalid
from modeld.ids import new_id
from modeld.jobs import idempotency
from modeld.jobs.batches.keeper import WINDOW_S, Keeper
from modeld.jobs.batches.lines import USES
from modeld.jobs.batches.records import Batch, Mistake, Record
from modeld.jobs.files import routes as files
from modeld.jobs.files.shelf import failed, unbroken
from modeld.responses.request import Metadata
from modeld.store.tokens import Token

WINDOW = "24h"
MOST_LISTED = 100
USUAL_LISTED = 20

KEEPER = web.AppKey("batches", Keeper)
"""Where the application carries it."""


class _ExpiresAfter(msgspec.Struct):
    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct, kw_only=True):
    """A body as OpenAI's SDKs send it. Unknown fields are ignored, null is absent."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=200)]
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: _ExpiresAfter | None = None


_DECODER = msgspec.json.Decoder(BatchRequest)


async def create(request: web.Request) -> web.StreamResponse:
    """Begin a batch. What is wrong with its input is told by the batch itself, as at OpenAI.

    One that is sent again by its client's own name for it is the batch of then, as it is by now.
    """
    gateway, room, keeper = request.app[routing.KEY], request.app[files.KEY], request.app[KEEPER]
    identity, where = request[exchanges.KEY].identity, routing.gateway_name(request, gateway.pool)
    name, raw = idempotency.name_of(request), await read_json(request, gateway.settings)
    token = None if name is None else Token(name, blake2b(where.encode() + b"\n" + raw).digest())
    body = decode(_DECODER, raw)
    if body.endpoint not in USES:
        raise _none_of("endpoint", body.endpoint, *USES)
    if body.completion_window != WINDOW:
        raise _none_of("completion_window", body.completion_window, WINDOW)
    keep_s = room.limits.keep_s
    if (after := body.output_expires_after) is not None:
        if after.anchor != "created_at":
            raise invalid("output_expires_after.anchor", "it is created_at")
        keep_s = files.check_seconds(after.seconds, "output_expires_after.seconds")
    now = int(room.clock.time())
    record = Record(
        batch=Batch(
            id=new_id("batch_"),
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=WINDOW,
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=body.metadata,
        ),
        gateway=where,
        keep_s=keep_s,
    )
    batch = None
    try:
        await _with_input(room, identity, record)
        batch = await keeper.begin(identity, record, token)
    finally:
        if batch is None or batch.id != record.batch.id:
            room.shelf.remove(record.batch.id)
    return json_answer(batch)


async def _with_input(room: files.Room, identity: str, record: Record) -> None:
    """Give a batch its input, or the reason why it has none. Raises StoreFailed."""
    id = record.batch.input_file_id
    file = await room.files.get(identity, id)
    if file is None:
        text = f"Cannot find file {id}, or you do not have access to it."
        record.refusal = Mistake("invalid_request", text, param="input_file_id")
        return
    if file.purpose != "batch":
        text = f"The file {id} was uploaded with the purpose '{file.purpose}'; a batch needs 'batch'."
        record.refusal = Mistake("invalid_request", text, param="input_file_id")
        return
    record.sha256 = file.sha256
    try:
        await unbroken(room.shelf.lend, file.id, record.batch.id)
    except FileNotFoundError:
        record.refusal = Mistake(
            "invalid_request", f"The content of the file {id} is gone.", param="input_file_id"
        )
    except OSError as error:
        raise failed(error) from error


def _none_of(param: str, value: str, *known: str) -> BadRequest:
    supported = ", ".join(f"'{one}'" for one in known)
    return BadRequest(
        f"Invalid value: '{value[:100]}'. Supported values are: {supported}.",
        code="invalid_value",
        param=param,
    )


async def list_batches(request: web.Request) -> web.StreamResponse:
    """List the caller's batches, the newest first: `limit`, `after`."""
    query = request.query
    limit = files.number(query, "limit", USUAL_LISTED, MOST_LISTED)
    found = await request.app[KEEPER].page(request[exchanges.KEY].identity, query.get("after"), limit + 1)
    if found is None:
        raise files.unknown_after(query)
    return json_answer(files.listed(found, limit))


async def retrieve(request: web.Request) -> web.StreamResponse:
    """Say how a batch stands."""
    id = request.match_info["id"]
    return _found(id, await request.app[KEEPER].get(request[exchanges.KEY].identity, id))


async def cancel(request: web.Request) -> web.StreamResponse:
    """Begin to cancel a batch; what is done of it stays."""
    id = request.match_info["id"]
    return _found(id, await request.app[KEEPER].cancel(request[exchanges.KEY].identity, id))


def _found(id: str, batch: Batch | None) -> web.Response:
    if batch is None:
        raise NotFound(f"No batch found with id '{id[:100]}'.", code="batch_not_found", param="id")
    return json_answer(batch)


def add_routes(app: web.Application, keeper: Keeper) -> None:
    """Register the routes."""
    app[KEEPER] = keeper
    routing.add_post(app, "/v1/batches", create, expect)
    routing.add_get(app, "/v1/batches", list_batches)
    routing.add_get(app, "/v1/batches/{id}", retrieve)
    # The SDKs send a body of no bytes with this one.
    routing.add_post(app, "/v1/batches/{id}/cancel", cancel, expect)

"""`/mass.llama-cpp.v1/*`: submit and poll as at MASS. `/mass.llama-cpp/v1/*`: OpenAI's routes at its prefix.

Models are those of the default gateway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

import msgspec
from aiohttp import web

from modeld.errors import BadRequest, NotFound
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.answer import json_answer
from modeld.gateway.body import expect, read_json
from modeld.gateway.encoding import dumps
from modeld.gateway.families import embeddings, models
from modeld.gateway.families.chat import routes as chat
from modeld.ids import new_id
from modeld.jobs import idempotency
from modeld.jobs.kinds import request_of
from modeld.jobs.mass.requests import KIND_OF, USECASES_OF, Method, Submission
from modeld.jobs.mass.results import Detail, answer
from modeld.jobs.queue import Queue
from modeld.library.entry import Entry
from modeld.store.job_records import Job, JobDraft
from modeld.supervisor.states import Status

PREFIX = "/mass.llama-cpp.v1"
SHIM = "/mass.llama-cpp/v1"
"""Where MASS's proxy has its typed API, and its routes for OpenAI's clients."""

HEADER = "X-Mass-Job-Id"

QUEUE = web.AppKey("jobs", Queue)

Describe: TypeAlias = Callable[[Status], Awaitable[dict[str, Any]]]
DESCRIBE: web.AppKey[Describe] = web.AppKey("describe_model")
"""Where whoever knows a model's file may say more of it: its metadata as `GET …/Models/Detail` shows it."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Message(msgspec.Struct):
    message: str


class _Envelope(msgspec.Struct):
    error: _Message


_ENVELOPE = msgspec.json.Decoder(_Envelope)


@web.middleware
async def plainly(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors as MASS does, `{"error": text}`, with the status and headers they have everywhere.

    It goes around everything else: who is refused before any handler is told in the same way.
    """
    response = await handler(request)
    if (
        response.status >= 400
        and request.path.startswith(f"{PREFIX}/")
        and isinstance(response, web.Response)
    ):
        body = response.body
        if isinstance(body, bytes):
            response.body = dumps({"error": _ENVELOPE.decode(body).error.message})
    return response


# --- submit -------------------------------------------------------------------------------------------------


async def submit(request: web.Request) -> web.StreamResponse:
    """Store a job and say what it is called."""
    gateway, exchange, queue = request.app[routing.KEY], request[exchanges.KEY], request.app[QUEUE]
    method = cast(Method, request.path.rpartition("/")[2])
    raw = await read_json(request, gateway.settings)
    token = idempotency.name_of(request)
    submission = Submission(method, raw)
    status = _model(request, method, submission.model)
    tasks = submission.tasks(vision=routing.sees(status), media=gateway.settings.media)
    added = await queue.submit(
        JobDraft(
            id=new_id("job_"),
            identity=exchange.identity,
            kind=KIND_OF[method],
            model=status.name,
            requests=tuple(map(request_of, tasks)),
            created=gateway.clock.time(),
            detail=dumps(Detail(submission.model)),
            token=token,
            digest=None if token is None else hashlib.blake2b(raw, key=method.encode()).digest(),
        )
    )
    return web.Response(
        body=b'{"job_id":"%b"}' % added.id.encode(),
        headers={HEADER: added.id},
        content_type="application/json",
    )


def _model(request: web.Request, method: Method, name: str) -> Status:
    """Return the model's status. Raises BadRequest: MASS's clients know a 404 of jobs only."""
    try:
        status = routing.find(request.app[routing.KEY].pool, "", name)
    except NotFound as unknown:
        raise BadRequest(unknown.message, code=unknown.code, param=unknown.param) from None
    request[exchanges.KEY].model = status.name
    if status.usecase not in USECASES_OF[method]:
        raise routing.wrong_use(name, status)
    return status


# --- look and cancel ----------------------------------------------------------------------------------------


async def show(request: web.Request) -> web.StreamResponse:
    """Say how a job stands; with `?wait=1` when it is over, or 202 when that takes too long.

    A reader who leaves cancels nothing.
    """
    queue, identity = request.app[QUEUE], request[exchanges.KEY].identity
    id, wait = request.match_info["id"], routing.flag(request, "wait")
    job = await (queue.wait(identity, id, queue.limits.wait_s) if wait else queue.get(identity, id))
    if job is None or job.kind not in KIND_OF.values():
        raise NotFound(f"job {id[:100]!r} not found or expired", code="job_not_found")
    return web.Response(
        status=202 if wait and not job.over else 200,
        body=answer(job, await _items(queue, job)),
        content_type="application/json",
    )


async def _items(queue: Queue, job: Job) -> Any:
    return await queue.store.results(job.key) if job.status == "done" else ()


async def cancel(request: web.Request) -> web.StreamResponse:
    """End a job, queued or running."""
    id = request.match_info["id"]
    if not await request.app[QUEUE].cancel(request[exchanges.KEY].identity, id):
        raise NotFound(
            f"job {id[:100]!r} cannot be cancelled: it is finished, unknown or expired", code="job_not_found"
        )
    return web.Response(status=204)


# --- models -------------------------------------------------------------------------------------------------


async def list_models(request: web.Request) -> web.StreamResponse:
    """List the models by name; sizes are those of their files in bytes, null where there is no file here."""
    found = _models(request)
    files = await models.files_of(request, found)
    return json_answer([{"id": status.served_name, "size_bytes": _size(status, files)} for status in found])


async def detail(request: web.Request) -> web.StreamResponse:
    """Say what is known of the models, or of the one that `?id=` names."""
    wanted = request.query.get("id")
    found = _models(request)
    if wanted is not None:
        pool = request.app[routing.KEY].pool
        found = [routing.find(pool, "", wanted, param="id")]
    files = await models.files_of(request, found)
    cards = [await _card(request, status, _size(status, files)) for status in found]
    return json_answer(cards[0] if wanted is not None else cards)


def _models(request: web.Request) -> list[Status]:
    return [status for status in request.app[routing.KEY].pool.statuses() if not status.gateway]


def _size(status: Status, files: Mapping[str, Entry]) -> int | None:
    file = files.get(status.name)
    return (file.size or None) if file is not None else None


async def _card(request: web.Request, status: Status, size: int | None) -> dict[str, Any]:
    facts = status.facts
    describe = request.app.get(DESCRIBE)
    return {
        "id": status.served_name,
        "size_bytes": size,
        "footprint_bytes": status.footprint or None,
        "state": status.state,
        "message": status.message,
        "loader": status.loader,
        "usecase": status.usecase,
        "context_length": facts.context_length if facts else None,
        "slots": facts.slots if facts else None,
        "capabilities": list(facts.capabilities) if facts else [],
        "metadata": {} if describe is None else await describe(status),
    }


def add_routes(app: web.Application, queue: Queue) -> None:
    """Register the routes."""
    app[QUEUE] = queue
    app.middlewares.insert(0, plainly)
    add = app.router
    for method in KIND_OF:
        add.add_post(f"{PREFIX}/{method}", submit, expect_handler=expect)
    add.add_get(f"{PREFIX}/Jobs/{{id}}", show)
    add.add_delete(f"{PREFIX}/Jobs/{{id}}", cancel)
    add.add_get(f"{PREFIX}/Models", list_models)
    add.add_get(f"{PREFIX}/Models/Detail", detail)
    add.add_post(f"{SHIM}/chat/completions", chat.create, expect_handler=expect)
    add.add_post(f"{SHIM}/embeddings", embeddings.create, expect_handler=expect)
    add.add_get(f"{SHIM}/models", models.list_models)
    add.add_get(f"{SHIM}/models/{{id:.+}}", models.retrieve)

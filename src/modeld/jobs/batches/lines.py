"""What the items of a batch are: requests to an endpoint, answered as the endpoint itself would.

What an endpoint refuses is refused here with the same words, for that line alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AbstractAsyncContextManager

import msgspec
from aiohttp import web

from modeld.errors import BadRequest, EngineError
from modeld.gateway import ports, routing
from modeld.gateway.decoding import unsupported
from modeld.gateway.encoding import Collector, dumps
from modeld.gateway.families import embeddings
from modeld.gateway.families.chat import pictures
from modeld.gateway.families.chat import request as chat
from modeld.gateway.families.chat import routes as chat_routes
from modeld.gateway.families.chat.response import ChatCollector
from modeld.ids import Identity, new_id
from modeld.jobs.batches.records import Detail, Place
from modeld.jobs.batches.scan import LINE
from modeld.jobs.files.shelf import Shelf
from modeld.jobs.kinds import WAIT_S
from modeld.jobs.ports import Open, Work
from modeld.protocol.tasks import Task
from modeld.responses import context as contexts
from modeld.responses.engine import Run
from modeld.responses.outlets import Whole
from modeld.responses.prepare import prepare
from modeld.responses.request import read as read_response
from modeld.store.job_records import TakenItem
from modeld.supervisor.admission import Priority
from modeld.supervisor.states import Status

USES = {"/v1/chat/completions": "generate", "/v1/embeddings": "embed", "/v1/responses": "generate"}
"""The endpoints that a batch may be for, and what each asks of a model."""

_DETAIL = msgspec.json.Decoder(Detail)
_PLACE = msgspec.json.Decoder(Place)


class Lines:
    """The kind of job that a batch is."""

    def __init__(self, app: web.Application, shelf: Shelf) -> None:
        """`app`: the gateway's application with all that its handlers are given."""
        self._app = app
        self._gateway = app[routing.KEY]
        self._shelf = shelf

    async def run(self, item: TakenItem, work: Work) -> bytes:
        """Do one line and return the body of its answer. Raises ModeldError."""
        detail, place = _DETAIL.decode(item.detail), _PLACE.decode(item.request)
        try:
            raw = await asyncio.to_thread(self._shelf.read, item.job_id, place.offset, place.length)
            body = bytes(LINE.decode(raw).body)
        except (OSError, msgspec.DecodeError) as error:
            raise EngineError(f"the input cannot be read any more: {error}", code="input_lost") from error
        match detail.endpoint:
            case "/v1/chat/completions":
                return await self._chat(item, detail, body, work.open)
            case "/v1/embeddings":
                return await self._embed(item, detail, body, work.open)
            case _:
                return await self._respond(item, detail, body, work)

    async def _chat(self, item: TakenItem, detail: Detail, raw: bytes, open: Open) -> bytes:
        body, settings = chat.read(raw), self._gateway.settings
        _refuse_stream(body.stream)
        status = self._model(item, detail, body.model)
        task = chat.to_task(body, vision=routing.sees(status), media=settings.media)
        room = settings.max_request_body - len(raw)
        task = await pictures.fetched(task, self._app[chat_routes.EGRESS], settings.media, room)
        collector = ChatCollector(
            id=new_id("chatcmpl-"),
            created=int(self._gateway.clock.time()),
            model=body.model,
            n=task.n,
            logprobs=task.top_logprobs is not None,
        )
        return await _collected(open, task, collector)

    async def _embed(self, item: TakenItem, detail: Detail, raw: bytes, open: Open) -> bytes:
        body = embeddings.read(raw)
        self._model(item, detail, body.model)
        task = embeddings.to_task(body)
        collector = embeddings.EmbeddingCollector(
            model=body.model, count=len(task.inputs), base64=body.encoding_format == "base64"
        )
        return await _collected(open, task, collector)

    async def _respond(self, item: TakenItem, detail: Detail, raw: bytes, work: Work) -> bytes:
        """Make a response. Once it has called a server's tool it is not made anew: that might act twice."""
        context = self._app[contexts.KEY]
        context = dataclasses.replace(
            context,
            pool=_Lent(context.pool, work.open),
            settings=dataclasses.replace(context.settings, request_timeout=None),
        )
        body = read_response(raw)
        _refuse_stream(body.stream)
        if body.background:
            raise unsupported("background", "a batch is in the background as it is")
        self._model(item, detail, body.model)
        prepared = await prepare(
            context,
            body,
            identity=Identity(item.identity),
            gateway=detail.gateway,
            room=context.settings.max_request_body - len(raw),
        )
        outlet = Whole(context, prepared)
        run = Run(context, prepared, outlet, Priority.BACKGROUND, before_tools=work.commit)
        return dumps(await run.go())

    def _model(self, item: TakenItem, detail: Detail, name: str) -> Status:
        """Return the model as it is now: since the batch was checked it may be gone, or another one."""
        status = routing.find(self._gateway.pool, detail.gateway, name)
        if status.usecase != USES[detail.endpoint]:
            raise routing.wrong_use(name, status)
        if status.name != item.model:
            raise BadRequest(
                f"the model {name[:200]!r} is another one by now than when the batch was checked",
                code="model_changed",
                param="model",
            )
        return status


def _refuse_stream(stream: bool | None) -> None:
    if stream:
        raise unsupported("stream", "the answers of a batch come in a file")


async def _collected(open: Open, task: Task, collector: Collector) -> bytes:
    async with open(task) as stream:
        while (events := await stream.take(WAIT_S)) is not None:
            if events:
                collector.add(events)
    return collector.body()


class _Lent:
    """The pool as a response sees it that runs as an item: each call is one of the item's."""

    def __init__(self, pool: ports.Pool, open: Open) -> None:
        self._pool = pool
        self._open = open
        self.statuses, self.gateways, self.find = pool.statuses, pool.gateways, pool.find

    def open(
        self,
        model: str,
        task: Task,
        identity: Identity,
        *,
        priority: Priority = Priority.INTERACTIVE,
        keep_alive: float | None = None,
    ) -> AbstractAsyncContextManager[ports.Stream]:
        """Call the item's model; how, is the runner's business."""
        return self._open(task)

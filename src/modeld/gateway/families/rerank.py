"""`POST /v1/rerank`, at every gateway, in the shape that Jina's and Cohere's clients know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from modeld.errors import EngineError
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.decoding import decode, invalid
from modeld.gateway.encoding import dumps
from modeld.gateway.relay import Relay
from modeld.ids import new_id
from modeld.protocol.tasks import Event, RerankTask, Score, Usage

USECASE = "embed"
"""A reranker is an embedding model to the configuration; the model itself knows which of the two it is."""

MAX_DOCUMENTS = 2048
"""Documents in one request."""


class Document(msgspec.Struct):
    """A document as an object; its other fields are not read."""

    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    """A body. Unknown fields are ignored, null is absent; an empty document is one like others."""

    model: Annotated[str, Meta(min_length=1)]
    query: Annotated[str, Meta(min_length=1)]
    documents: list[str | Document]
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    keep_alive: float | str | None = None


_DECODER = msgspec.json.Decoder(RerankRequest)


def read(raw: bytes | bytearray) -> RerankRequest:
    """Decode a body. Raises BadRequest."""
    return decode(_DECODER, raw)


def to_task(request: RerankRequest) -> RerankTask:
    """Return what the request asks for. Raises BadRequest with `param`."""
    documents = request.documents
    if not documents:
        raise invalid("documents", "it is an empty list")
    if len(documents) > MAX_DOCUMENTS:
        raise invalid(
            "documents", f"it has {len(documents)} documents, at most {MAX_DOCUMENTS} fit in one request"
        )
    texts = tuple(each if isinstance(each, str) else each.text for each in documents)
    return RerankTask(query=request.query, documents=texts)


class RerankCollector:
    """Gathers the scores of one call; `documents` are given back with them when there are any."""

    def __init__(
        self, *, id: str, model: str, count: int, top_n: int | None, documents: Sequence[str] | None
    ) -> None:
        self.usage: Usage | None = None
        self._id, self._model, self._count, self._top_n = id, model, count, top_n
        self._documents = documents
        self._scores: dict[int, float] = {}

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            match event:
                case Score(index, score):
                    self._scores[index] = score
                case Usage():
                    self.usage = event
                case _:
                    pass

    def body(self) -> bytes:
        """Return the results, best first; equals keep their order. Raises EngineError when one is missing."""
        if len(self._scores) < self._count:
            raise EngineError(
                f"the engine ended the call with {len(self._scores)} scores for {self._count} documents",
                code="incomplete_answer",
            )
        best = sorted(self._scores, key=lambda index: (-self._scores[index], index))[: self._top_n]
        tokens = self.usage.prompt_tokens if self.usage else 0
        return dumps(
            {
                "id": self._id,
                "object": "list",
                "model": self._model,
                "results": [self._result(index) for index in best],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    def _result(self, index: int) -> dict[str, Any]:
        result: dict[str, Any] = {"index": index, "relevance_score": self._scores[index]}
        if self._documents is not None:
            result["document"] = {"text": self._documents[index]}
        return result


async def create(request: web.Request) -> web.StreamResponse:
    """Order documents by how well they answer a query."""
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    body = read(await read_json(request, gateway.settings))
    status = routing.resolve(request, body.model, USECASE, exchange)
    task = to_task(body)
    opening = routing.opening(request, status, task, body.keep_alive)
    collector = RerankCollector(
        id=new_id("rerank-"),
        model=body.model,
        count=len(task.documents),
        top_n=body.top_n,
        documents=task.documents if body.return_documents else None,
    )
    return await Relay(request, exchange, gateway.settings, gateway.clock).collected(opening, collector)


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/rerank", create, expect)

"""`POST /v1/embeddings`, at every gateway."""

from __future__ import annotations

import binascii
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

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
from modeld.protocol.tasks import EmbedTask, Event, Usage, Vector

USECASE = "embed"

MAX_INPUTS = 2048
"""Inputs in one request, as at OpenAI."""

MAX_TOKEN_ID = 2**31 - 1


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """A body as OpenAI's SDKs send it, with `keep_alive`. Unknown fields are ignored, null is absent."""

    model: Annotated[str, Meta(min_length=1)]
    input: str | list[Any]  # text, texts, token ids, or lists of token ids
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    keep_alive: float | str | None = None


_DECODER = msgspec.json.Decoder(EmbeddingRequest)


def read(raw: bytes | bytearray) -> EmbeddingRequest:
    """Decode a body. Raises BadRequest."""
    return decode(_DECODER, raw)


def to_task(request: EmbeddingRequest) -> EmbedTask:
    """Return what the request asks for. Raises BadRequest with `param`."""
    return EmbedTask(inputs=tuple(_inputs(request.input)), dimensions=request.dimensions)


def _inputs(given: str | list[Any]) -> list[str | tuple[int, ...]]:
    if isinstance(given, str):
        return [_text(given, "input")]
    if not given:
        raise invalid("input", "it is an empty list")
    if isinstance(given[0], int):
        return [_token_ids(given, "input")]
    if len(given) > MAX_INPUTS:
        raise invalid("input", f"it has {len(given)} inputs, at most {MAX_INPUTS} fit in one request")
    inputs: list[str | tuple[int, ...]] = []
    for at, item in enumerate(given):
        if isinstance(item, str):
            inputs.append(_text(item, f"input[{at}]"))
        elif isinstance(item, list) and item:
            inputs.append(_token_ids(item, f"input[{at}]"))
        else:
            what = "it is an empty list" if item == [] else "expected text or a list of token ids"
            raise invalid(f"input[{at}]", what)
    return inputs


def _text(text: str, where: str) -> str:
    if not text:
        raise invalid(where, "it is an empty string, and nothing has no vector")
    return text


def _token_ids(items: list[Any], where: str) -> tuple[int, ...]:
    for at, item in enumerate(items):
        if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
            raise invalid(f"{where}[{at}]", "expected a token id")
    return tuple(items)


class EmbeddingCollector:
    """Gathers the vectors of one call, each made JSON as it comes: all at once would stall other requests."""

    def __init__(self, *, model: str, count: int, base64: bool) -> None:
        self.usage: Usage | None = None
        self._model, self._base64 = model, base64
        self._pieces: list[bytes | None] = [None] * count

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            match event:
                case Vector(index, data):
                    value = _base64(data) if self._base64 else _numbers(data)
                    piece = b'{"object":"embedding","index":%d,"embedding":%b}' % (index, value)
                    self._pieces[index] = piece
                case Usage():
                    self.usage = event
                case _:
                    pass

    def body(self) -> bytes:
        """Return the list in the order of the inputs. Raises EngineError when one has no vector."""
        pieces = [piece for piece in self._pieces if piece is not None]
        if len(pieces) < len(self._pieces):
            raise EngineError(
                f"the engine ended the call without a vector for input {self._pieces.index(None)}",
                code="incomplete_answer",
            )
        tokens = self.usage.prompt_tokens if self.usage else 0
        return b'{"object":"list","data":[%b],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
            b",".join(pieces),
            dumps(self._model),
            tokens,
            tokens,
        )


def _base64(data: bytes) -> bytes:
    return b'"' + binascii.b2a_base64(data, newline=False) + b'"'


def _numbers(data: bytes) -> bytes:
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return dumps(numbers.tolist())


async def create(request: web.Request) -> web.StreamResponse:
    """Turn texts into vectors."""
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    body = read(await read_json(request, gateway.settings))
    status = routing.resolve(request, body.model, USECASE, exchange)
    task = to_task(body)
    opening = routing.opening(request, status, task, body.keep_alive)
    collector = EmbeddingCollector(
        model=body.model, count=len(task.inputs), base64=body.encoding_format == "base64"
    )
    return await Relay(request, exchange, gateway.settings, gateway.clock).collected(opening, collector)


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/embeddings", create, expect)

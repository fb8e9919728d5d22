"""`POST /v1/tokenize` and `/v1/detokenize`, at every gateway: text to a model's token ids, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Meta

from modeld.errors import EngineError
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.body import expect, read_json
from modeld.gateway.decoding import decode, invalid, missing
from modeld.gateway.encoding import dumps
from modeld.gateway.relay import Relay
from modeld.protocol.tasks import DetokenizeTask, Event, Text, TokenizeTask, Tokens, Usage

USECASES = ("generate", "embed")
"""What models that read text are configured for."""

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A body. The text has three names because servers that people come from differ; null is absent.

    `add_special`: with the tokens that a prompt begins and ends with, as unless told otherwise.
    """

    model: Annotated[str, Meta(min_length=1)]
    text: str | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = None
    keep_alive: float | str | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """A body."""

    model: Annotated[str, Meta(min_length=1)]
    tokens: list[TokenId]
    keep_alive: float | str | None = None


_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def read_tokenize(raw: bytes | bytearray) -> TokenizeRequest:
    """Decode a body. Raises BadRequest."""
    return decode(_TOKENIZE, raw)


def read_detokenize(raw: bytes | bytearray) -> DetokenizeRequest:
    """Decode a body. Raises BadRequest."""
    return decode(_DETOKENIZE, raw)


def to_task(request: TokenizeRequest) -> TokenizeTask:
    """Return what the request asks for. Raises BadRequest unless there is exactly one text."""
    named = {"text": request.text, "content": request.content, "prompt": request.prompt}
    texts = {name: text for name, text in named.items() if text is not None}
    if not texts:
        raise missing("text", "the text to split; content and prompt are other names for it")
    if len(texts) > 1:
        *_, last = texts
        raise invalid(last, f"there is one text in a request, this one has {' and '.join(texts)}")
    [text] = texts.values()
    return TokenizeTask(text=text, special=request.add_special is not False)


class TokenCollector:
    """Gathers what either of the two calls gives."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._tokens: tuple[int, ...] | None = None
        self._text: str | None = None

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            match event:
                case Tokens(ids):
                    self._tokens = (self._tokens or ()) + ids
                case Text(text):
                    self._text = (self._text or "") + text
                case _:
                    pass

    def body(self) -> bytes:
        """Return the tokens with their number, or the text. Raises EngineError when there was neither."""
        if self._tokens is not None:
            return dumps({"tokens": self._tokens, "count": len(self._tokens)})
        if self._text is not None:
            return dumps({"text": self._text, "content": self._text})
        raise EngineError("the engine ended the call without an answer", code="incomplete_answer")


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Split a text into tokens."""
    body = read_tokenize(await read_json(request, request.app[routing.KEY].settings))
    return await _answer(request, body, to_task(body))


async def detokenize(request: web.Request) -> web.StreamResponse:
    """Join tokens to a text."""
    body = read_detokenize(await read_json(request, request.app[routing.KEY].settings))
    return await _answer(request, body, DetokenizeTask(tokens=tuple(body.tokens)))


async def _answer(
    request: web.Request, body: TokenizeRequest | DetokenizeRequest, task: TokenizeTask | DetokenizeTask
) -> web.StreamResponse:
    gateway, exchange = request.app[routing.KEY], request[exchanges.KEY]
    status = routing.find(gateway.pool, routing.gateway_name(request, gateway.pool), body.model)
    exchange.model = status.name
    if status.usecase not in USECASES:
        raise routing.wrong_use(body.model, status)
    opening = routing.opening(request, status, task, body.keep_alive)
    relay = Relay(request, exchange, gateway.settings, gateway.clock)
    return await relay.collected(opening, TokenCollector())


def add_routes(app: web.Application) -> None:
    """Register this family's routes."""
    routing.add_post(app, "/v1/tokenize", tokenize, expect)
    routing.add_post(app, "/v1/detokenize", detokenize, expect)

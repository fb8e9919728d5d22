"""One response on a socket: from the frame that asks for it to its last event, or to a refusal."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from modeld.errors import ModeldError
from modeld.gateway.decoding import unsupported
from modeld.gateway.envelope import BUG, row_of
from modeld.gateway.exchange import Exchange
from modeld.protocol.tasks import Usage
from modeld.responses import outlets
from modeld.responses.context import Context
from modeld.responses.engine import Run, as_items
from modeld.responses.events import StreamEvent, payload
from modeld.responses.items import Response
from modeld.responses.prepare import Prepared, prepare
from modeld.responses.request import ResponseRequest, read
from modeld.responses.websocket import frames, warming
from modeld.responses.websocket.memory import ConnectionMemory
from modeld.supervisor.admission import Priority

log = logging.getLogger("modeld.responses")

Send = Callable[[Sequence[bytes]], Awaitable[None]]
"""Sends frames. Raises Gone."""


class Gone(ConnectionResetError):
    """The socket's client is not there any more; other lost connections are none of the socket's."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is to be answered when its turn comes: a whole frame, and what was read of it."""

    raw: bytes
    frame: frames.Frame


class Frames:
    """The outlet of a run on a socket: each event is one text frame, with its lane's name in it."""

    def __init__(
        self, context: Context, prepared: Prepared, memory: ConnectionMemory, lane: str | None, send: Send
    ) -> None:
        self.started = False
        self._context = context
        self._prepared = prepared
        self._memory = memory
        self._lane = lane
        self._send = send
        self._end = frames.end(lane)

    async def send(self, events: Sequence[StreamEvent]) -> None:
        """Send events. Raises Gone."""
        self.started = True
        # A lane's name is put where an event ends: none is encoded anew for it.
        await self._send(
            [payload(event) if self._lane is None else payload(event)[:-1] + self._end for event in events]
        )

    async def idle(self) -> None:
        """The connection sends pings of its own."""

    async def keep(self, response: Response, terminal: StreamEvent) -> None:
        """Store the response where it is to be stored, and remember it. Raises StoreFailed."""
        prepared = self._prepared
        await outlets.keep(self._context, prepared, response)
        if response.status != "failed":
            self._memory.remember(
                self._lane,
                response.id,
                prepared.before,
                (*prepared.given, *as_items(response)),
                stored=prepared.stored,
            )


class Answering:
    """Answers the requests of one connection, several at a time."""

    def __init__(
        self,
        context: Context,
        exchange: Exchange,
        gateway: str,
        priority: Priority,
        memory: ConnectionMemory,
        send: Send,
    ) -> None:
        self._context = context
        self._exchange = exchange
        self._gateway = gateway
        self._priority = priority
        self._memory = memory
        self._send = send

    async def answer(self, lane: str | None, asked: Asked) -> None:
        """Answer one request. Whatever goes wrong is told on the socket; Gone passes through."""
        began = self._context.clock.monotonic()
        run: Run | None = None
        status = 0
        try:
            request = _read(asked)
            prepared = await self._prepare(request, len(asked.raw))
            outlet = Frames(self._context, prepared, self._memory, lane, self._send)
            run = Run(self._context, prepared, outlet, self._priority)
            response = await (self._warm_up(run, outlet) if request.generate is False else run.go())
            status = 200 if response.error is None else 502
            if response.status == "failed":
                self._memory.failed(lane, asked.frame.previous)
        except Gone:
            raise
        except Exception as error:
            status = row_of(error).status
            self._memory.failed(lane, asked.frame.previous)
            self._report(error)
            await self._send([frames.refusal(error, self._exchange.id, frames.end(lane))])
        finally:
            self._count(run, lane, status, self._context.clock.monotonic() - began)

    async def _prepare(self, request: ResponseRequest, size: int) -> Prepared:
        context = self._context
        return await prepare(
            context,
            request,
            identity=self._exchange.identity,
            gateway=self._gateway,
            room=context.settings.max_request_body - size,
            memory=self._memory,
            dry=request.generate is False,
            empty=request.generate is False,
        )

    async def _warm_up(self, run: Run, outlet: Frames) -> Response:
        """Have the model read the prompt, and answer with a response without output that can be continued."""
        context, translator = self._context, run.translator
        used = await warming.read_prompt(context, run.prepared, self._priority)
        if used is not warming.NOTHING:
            run.first_event = context.clock.monotonic()
        first = translator.begin()
        translator.feed([Usage(used.prompt_tokens, 0, used.cached_tokens)])
        terminal = translator.finish(int(context.clock.time()))
        await outlet.keep(translator.response, terminal)
        await outlet.send([*first, terminal])
        return translator.response

    def _report(self, error: Exception) -> None:
        """Tell the owner about a bug; what callers do wrong is theirs to know."""
        if row_of(error) is BUG or not isinstance(error, ModeldError):
            self._context.metrics.errors.labels(self._exchange.endpoint).inc()
            log.error("bug in a response", exc_info=error, extra={"request": self._exchange.id})

    def _count(self, run: Run | None, lane: str | None, status: int, seconds: float) -> None:
        """Count the tokens of a response, and write its line; the connection has one too, at its end."""
        fields: dict[str, object] = {
            "request": self._exchange.id,
            "status": status or 499,
            "ms": round(seconds * 1000, 1),
        }
        if lane is not None:
            fields["lane"] = lane
        if run is not None:
            model, used = run.prepared.model.name, run.usage
            fields |= {"response": run.response.id, "model": model}
            if used is not None:
                fields |= {"tokens_in": used.prompt_tokens, "tokens_out": used.completion_tokens}
                self._add(used)
            if run.first_event is not None:
                self._context.metrics.call_ended(
                    model=model,
                    first_token_s=run.first_event - run.started,
                    chunks=run.events,
                    prompt_tokens=used.prompt_tokens if used else 0,
                    cached_tokens=used.cached_tokens if used else 0,
                    completion_tokens=used.completion_tokens if used else 0,
                )
        log.info("response on a socket", extra=fields)

    def _add(self, used: Usage) -> None:
        sum = self._exchange.usage or Usage(prompt_tokens=0, completion_tokens=0)
        self._exchange.usage = Usage(
            sum.prompt_tokens + used.prompt_tokens, sum.completion_tokens + used.completion_tokens
        )


def _read(asked: Asked) -> ResponseRequest:
    """Read the rest of a frame. Raises BadRequest.

    It is a stream in any case, so that what it says about streaming means nothing.
    """
    request = read(asked.raw)
    if request.background:
        raise unsupported(
            "background", "a response ends with the socket it runs on; POST /v1/responses runs one without"
        )
    request.stream = request.stream_options = request.background = None
    if asked.frame.prewarm:
        request.generate = False
    return request

"""Where the events of a run go when somebody waits for it: nowhere but into one body, or onto a stream."""

from __future__ import annotations

from collections.abc import Sequence

from modeld.gateway import sse
from modeld.gateway.encoding import dumps
from modeld.responses.context import Context
from modeld.responses.engine import as_items
from modeld.responses.events import StreamEvent, frame
from modeld.responses.items import Response
from modeld.responses.prepare import Prepared
from modeld.store.responses import Done

KEEPALIVE = (sse.KEEPALIVE,)


def body(response: Response) -> bytes:
    """Return a response's JSON text without its output, which is stored as items."""
    output, response.output = response.output, []
    try:
        return dumps(response)
    finally:
        response.output = output


def done(context: Context, prepared: Prepared, response: Response) -> Done:
    """Return what the store needs to keep a response that is over."""
    return Done(
        id=response.id,
        identity=prepared.identity,
        status=response.status,
        body=body(response),
        created=prepared.created,
        # From its end, since a long run would expire in the moment it is over; no clock set back shortens it.
        expires=context.expires(max(prepared.created, context.clock.time()), store=response.store),
        inputs=prepared.given,
        outputs=as_items(response),
        before=prepared.before,
        origin=prepared.origin,
        keep=prepared.stored,
    )


class Whole:
    """For an answer in one body: nothing is sent before the end, and a failure is a plain error."""

    started = False

    def __init__(self, context: Context, prepared: Prepared) -> None:
        self._context = context
        self._prepared = prepared

    async def send(self, events: Sequence[StreamEvent]) -> None:
        """Nobody sees the events."""

    async def idle(self) -> None:
        """There is nothing to keep alive."""

    async def keep(self, response: Response, terminal: StreamEvent) -> None:
        """Store the response, where it is to be stored or belongs to a conversation."""
        await keep(self._context, self._prepared, response)


class EventStream:
    """Server-sent events to one client."""

    def __init__(self, context: Context, prepared: Prepared, writer: sse.EventWriter) -> None:
        self._context = context
        self._prepared = prepared
        self._writer = writer

    @property
    def started(self) -> bool:
        """Whether the status is out."""
        return self._writer.started

    async def send(self, events: Sequence[StreamEvent]) -> None:
        """Send events, each as one chunk. Raises ConnectionError."""
        await self._writer.send([frame(event) for event in events])

    async def idle(self) -> None:
        """Send a comment."""
        await self._writer.send(KEEPALIVE)

    async def keep(self, response: Response, terminal: StreamEvent) -> None:
        """Store the response, where it is to be stored or belongs to a conversation."""
        await keep(self._context, self._prepared, response)


async def keep(context: Context, prepared: Prepared, response: Response) -> None:
    """Store a response that somebody waits for. Raises StoreFailed."""
    if prepared.stored or prepared.origin.conversation is not None:
        await context.responses.finish(done(context, prepared, response))

"""The asyncio side of the worker link: a transport of frames, and the daemon's end with its open calls.

`Link` moves messages of one direction out and of the other in. `Caller` is a `Link` that multiplexes calls:
each has a bounded `Mailbox`. Two things keep memory flat under a slow reader: neighbouring pieces of text
merge once `MERGE_AFTER` events wait, and the worker may have at most `WINDOW` bytes of a call under way that
the reader has not taken (Credit). End-of-file fails every open call with WorkerDied; no call outlives its
link.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from modeld.errors import LinkError, ModeldError
from modeld.protocol import messages as m
from modeld.protocol.framing import FrameDecoder, FrameEncoder
from modeld.protocol.tasks import Event, Task, Text

WINDOW = 256 * 1024
"""Bytes of one call's events that may wait unread between the worker and the call's reader."""

CREDIT_STEP = WINDOW // 4
"""Credit goes back in steps of this many bytes, so that it costs nothing per token."""

MERGE_AFTER = 32
"""Events waiting in a mailbox before neighbouring text merges."""

In = TypeVar("In")


class Link(asyncio.Protocol, Generic[In]):
    """Frames over a connected socket. Made with `await Link.open(...)`; closed with `close()`."""

    def __init__(self, union: Any, on_message: Callable[[In, int], None]) -> None:
        self._decoder: FrameDecoder[In] = FrameDecoder(union)
        self._encoder = FrameEncoder()
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytearray] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed: asyncio.Future[ModeldError | None] = self._loop.create_future()
        """Done when the link is gone; the result says why when it was not a plain end-of-file."""

    async def attach(self, sock: socket.socket) -> None:
        """Take over a connected Unix socket."""
        sock.setblocking(False)
        await self._loop.create_unix_connection(lambda: self, sock=sock)

    def send(self, message: Any) -> int:
        """Queue a message and return its frame's size in bytes; on a closed link it is dropped.

        Frames queued in one turn of the event loop leave in one write. Raises FrameTooLarge.
        """
        frame = self._encoder.encode(message)
        if self._transport is not None:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(frame)
        return len(frame)

    async def drain(self) -> None:
        """Wait while the peer does not read and the socket's buffer is full."""
        await self._writable.wait()

    def close(self) -> None:
        """Send what is queued, then close; `closed` follows."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        """Hold back `drain`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let `drain` go on."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Decode and dispatch; bytes that are not the protocol end the link."""
        try:
            for message, size in self._decoder.feed(data):
                self._on_message(message, size)
        except LinkError as error:
            self._end(error)
            if self._transport is not None:
                self._transport.abort()

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end once."""
        self._transport = None
        self._out.clear()
        self._writable.set()
        self._end(None)

    def _end(self, error: ModeldError | None) -> None:
        if not self.closed.done():
            self.closed.set_result(error)


class Mailbox:
    """Events of one call, waiting for their reader. One reader at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: list[Event] = []
        self._tail: list[str] = []  # pieces to be joined to the last event, a Text
        self._bytes = 0
        self._over = False
        self._error: ModeldError | None = None
        self._waiter: asyncio.Future[bool] | None = None

    def put(self, event: Event, size: int) -> None:
        """Add an event of `size` bytes on the wire."""
        events = self._events
        self._bytes += size
        if len(events) >= MERGE_AFTER and type(event) is Text and not event.logprobs:
            last = events[-1]
            if type(last) is Text and not last.logprobs and last.index == event.index:
                self._tail.append(event.text)
                return
        if self._tail:
            self._join()
        events.append(event)
        self._wake()

    def end(self, error: ModeldError | None = None) -> None:
        """No more events; the reader gets what is there, then the error or the end."""
        if not self._over:
            self._over, self._error = True, error
            self._wake()

    async def take(self, timeout: float | None) -> tuple[list[Event] | None, int]:
        """Return all waiting events and their size in bytes.

        Without any: ([], 0) after `timeout` seconds, (None, 0) at the end.

        Raises the call's error once all events before it have been taken.
        """
        if not self._events and not self._over:
            self._waiter = waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout, self._wake) if timeout is not None else None
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        if self._tail:
            self._join()
        if self._events:
            events, self._events = self._events, []
            size, self._bytes = self._bytes, 0
            return events, size
        if self._error is not None:
            raise self._error
        return (None, 0) if self._over else ([], 0)

    @property
    def waiting(self) -> int:
        """Events waiting now."""
        return len(self._events)

    def _join(self) -> None:
        last = cast(Text, self._events[-1])
        self._events[-1] = Text("".join((last.text, *self._tail)), last.index)
        self._tail.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)


class OpenCall:
    """A call under way, as its reader sees it."""

    def __init__(self, caller: Caller, call: int) -> None:
        self._caller = caller
        self.id = call
        self.mailbox = Mailbox(asyncio.get_running_loop())
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the worker has finished with the call, also after a cancel."""
        self._taken = 0
        self._cancelled = False

    async def take(self, timeout: float | None = None) -> list[Event] | None:
        """Return the events that are there; [] after `timeout` seconds without any; None at the call's end.

        Raises the error the call ended with (a ModeldError).
        """
        events, size = await self.mailbox.take(timeout)
        self._taken += size
        if self._taken >= CREDIT_STEP and not self.over.done():
            self._caller.send(m.Credit(self.id, self._taken))
            self._taken = 0
        return events

    def cancel(self) -> None:
        """Ask the worker to stop; safe to call twice or after the end. `over` follows."""
        if not self._cancelled and not self.over.done():
            self._cancelled = True
            self._caller.send(m.Cancel(self.id))

    def abort(self, error: ModeldError) -> None:
        """Cancel, and end the reader's events with `error`: an answer cut short must not look complete."""
        self.mailbox.end(error)
        self.cancel()


class Caller(Link[m.ToDaemon]):
    """The daemon's end of a worker link.

    Messages that belong to no call (Hello, Progress, Ready, …) go to `on_control`. When the link ends, open
    calls stay open until `fail_all`, which the owner must call once it knows why the worker died.
    """

    def __init__(self, on_control: Callable[[m.ToDaemon], None]) -> None:
        super().__init__(m.ToDaemon, self._dispatch)
        self._on_control = on_control
        self._calls: dict[int, OpenCall] = {}
        self._numbers = itertools.count(1)
        self._gone: ModeldError | None = None

    @property
    def open_calls(self) -> int:
        """Calls the worker has not finished with."""
        return len(self._calls)

    def calls(self) -> tuple[OpenCall, ...]:
        """Return the calls the worker has not finished with."""
        return tuple(self._calls.values())

    def call(self, task: Task, identity: str) -> OpenCall:
        """Start a call. Raises WorkerDied on a link that has ended, FrameTooLarge for an oversized task."""
        if self._gone is not None:
            raise self._gone
        call = OpenCall(self, next(self._numbers))
        self.send(m.Call(call.id, task, identity, WINDOW))
        self._flush()  # nothing else will join it in this turn of the loop, and the first token waits for it
        self._calls[call.id] = call
        return call

    def fail_all(self, error: ModeldError) -> None:
        """End every open call with `error`, and refuse new ones with it."""
        self._gone = error
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._finish(call, error)

    def _dispatch(self, message: m.ToDaemon, size: int) -> None:
        match message:
            case m.Emit():
                call = self._calls.get(message.call)
                if call is not None:
                    call.mailbox.put(message.event, size)
            case m.Ended():
                self._finish(self._calls.pop(message.call, None), None)
            case m.Failed():
                self._finish(self._calls.pop(message.call, None), m.from_failure(message.failure))
            case _:
                self._on_control(message)

    @staticmethod
    def _finish(call: OpenCall | None, error: ModeldError | None) -> None:
        if call is not None:
            call.mailbox.end(error)
            if not call.over.done():
                call.over.set_result(None)

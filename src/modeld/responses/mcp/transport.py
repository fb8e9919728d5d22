"""How MCP's messages leave: every request past the egress guard, every answer counted.

Loads httpx2 and httpcore2: import it only where a server is asked. Nothing here raises for a server's fault.
The SDK ends a whole session for an exception, so a request that failed is answered with a status made here,
and the true reason stands in the note of whoever asked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio
import httpcore2
import httpx2
import msgspec

from modeld.gateway.egress import Egress, Refused

CONNECT_S = 5.0
"""Seconds for one connection, with TLS."""

WRITE_S = 30.0
"""Seconds in which a server must take the next bytes of a request."""

COURTESY_S = 1.0
"""Seconds for a message that nobody waits for the answer of: a notice, the end of a session."""

ERROR_BYTES = 64 * 1024
"""Bytes of an error's body that are looked at."""

CONNECTIONS = 32
"""Connections to one server at the same time."""

KEPT_S = 4.0
"""Seconds for which an idle connection is kept: less than servers keep theirs, so that none closes in use."""

MADE_HERE = 599
"""The status of an answer that no server gave."""


@dataclass(slots=True)
class Note:
    """What became of one thing that was asked of a server: opening a session, a list, a call.

    `left`: bytes that its answers may still have. `status`: of the last answer to a request; `answered`: that
    answer, an error, said in MCP's way what is wrong. `failure`: why there was no whole answer, in words;
    `over`: because it was too large. `scope` is cancelled when waiting has become pointless.
    """

    left: int
    status: int | None = None
    answered: bool = False
    failure: str | None = None
    over: bool = False
    scope: anyio.CancelScope | None = None

    @property
    def refusal(self) -> int | None:
        """The status by which the server refused, None when it did not, or did in MCP's way."""
        bad = self.status is not None and self.status != MADE_HERE and not 200 <= self.status < 300
        return self.status if bad and not self.answered else None

    def take(self, size: int) -> None:
        """Count bytes of an answer. Raises StreamError when they are too many."""
        self.left -= size
        if self.left < 0:
            self.over = True
            if self.scope is not None:
                self.scope.cancel()
            raise httpx2.StreamError("the answer is too large")


NOTE: ContextVar[Note] = ContextVar("mcp_note")
"""The note of who asks. The SDK sends a message in the context of the task that it comes from."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends what httpx2 sends, when and where the egress guard allows it."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._pools: dict[str, httpcore2.AsyncConnectionPool] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the server's answer, or one made here. Raises nothing but cancellation."""
        note = NOTE.get()
        if request.method == "GET" and "last-event-id" not in request.headers:
            # A stream for what the server has to say unasked; servers may refuse it, and so may we.
            return httpx2.Response(405, request=request)
        asks = request.method == "GET" or (request.method == "POST" and _is_request(await request.aread()))
        try:
            async with asyncio.timeout(None if asks else COURTESY_S):
                return await self._send(request, note, asks)
        except Refused as refused:
            reason = str(refused)
        except TimeoutError:
            reason = "the server took no notice"
        except Exception as error:
            reason = _reason(error)
        if asks:
            note.failure = reason
            note.status = MADE_HERE
        return httpx2.Response(MADE_HERE, request=request)

    async def _send(self, request: httpx2.Request, note: Note, asks: bool) -> httpx2.Response:
        url = request.url
        self._egress.check(str(url))
        pool = await self._pool(url.scheme)
        answer = await pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(
                    scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        assert isinstance(answer.stream, AsyncIterable)
        headers = httpx2.Headers(answer.headers)
        stream = _Counted(answer.stream, note, asks)
        if headers.get("content-encoding", "identity").lower() != "identity":
            # A small compressed answer may unpack to anything; none was asked for.
            await stream.aclose()
            raise _Unreadable("the server answers with a compression that was not asked for")
        if asks and request.method == "POST":
            note.status, note.answered, note.failure = answer.status, False, None
            if answer.status >= 400:
                body = await _beginning(stream)
                note.answered = _is_error(body)
                kind = headers.get("content-type", "")
                return httpx2.Response(
                    answer.status, headers={"content-type": kind}, content=body, request=request
                )
        return httpx2.Response(
            answer.status, headers=headers, stream=stream, extensions=answer.extensions, request=request
        )

    async def _pool(self, scheme: str) -> httpcore2.AsyncConnectionPool:
        if scheme not in self._pools:
            tls = await self._egress.tls() if scheme == "https" else None
            self._pools.setdefault(
                scheme,
                httpcore2.AsyncConnectionPool(
                    ssl_context=tls,
                    max_connections=CONNECTIONS,
                    keepalive_expiry=KEPT_S,
                    network_backend=_Pinned(self._egress),
                ),
            )
        return self._pools[scheme]

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()


class _Unreadable(Exception):
    """An answer came that is of no use; the words say why."""


class _Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to hosts: each is looked up once, all that is found is checked, only that is connected to.

    Certificates and Host headers are those of the name, since only this last step knows the address.
    """

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return a connection to one of the host's addresses. Raises Refused, and httpcore2's errors."""
        found = await self._egress.pinned(host, port)
        for address in found[:-1]:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout=timeout)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(str(found[-1]), port, timeout=timeout)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class _Counted(httpx2.AsyncByteStream):
    """The body of an answer: counted as it comes, its failures noted."""

    def __init__(self, inner: AsyncIterable[bytes], note: Note, asks: bool) -> None:
        self._inner = inner
        self._note = note
        self._asks = asks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Give the parts. Raises StreamError, which the SDK knows for an answer that cannot be read."""
        try:
            async for part in self._inner:
                self._note.take(len(part))
                yield part
        except httpx2.StreamError:
            raise
        except Exception as error:
            if self._asks:
                self._note.failure = _reason(error, begun=True)
            raise httpx2.StreamError("the answer broke off") from None

    async def aclose(self) -> None:
        """Let go of the connection."""
        close = getattr(self._inner, "aclose", None)
        if close is not None:
            await close()


async def _beginning(stream: _Counted) -> bytes:
    """Return the first bytes of a body, and let go of it."""
    body = b""
    try:
        async for part in stream:
            body += part
            if len(body) > ERROR_BYTES:
                break
    except httpx2.StreamError:
        pass  # a status is an answer, also without a body
    finally:
        await stream.aclose()
    return body[:ERROR_BYTES]


class _Head(msgspec.Struct):
    """As much of a message as is needed to know what it is."""

    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    jsonrpc: Any = None


_HEAD = msgspec.json.Decoder(_Head)


def _is_request(body: bytes) -> bool:
    """Say whether a message wants an answer: it is no notice, and no answer to what the server asks."""
    try:
        head = _HEAD.decode(body)
    except msgspec.MsgspecError:
        return True
    return head.method is not msgspec.UNSET and head.id is not msgspec.UNSET


def _is_error(body: bytes) -> bool:
    """Say whether a body tells an error in MCP's way."""
    try:
        head = _HEAD.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return head.jsonrpc == "2.0" and head.error is not msgspec.UNSET


def _reason(error: Exception, *, begun: bool = False) -> str:
    """Say what happened, without the network's own words: those may tell of other machines."""
    if isinstance(error, _Unreadable):
        return str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "the server has no certificate that is trusted here"
        cause = cause.__cause__ or cause.__context__  # the pool raises "from None"
    if begun:
        return "the server's answer broke off"
    if isinstance(error, httpcore2.ConnectError | httpcore2.ConnectTimeout):
        return "the server cannot be reached"
    return "the server gives no answer that can be read"

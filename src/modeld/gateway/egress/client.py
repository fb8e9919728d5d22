"""Asking an address: a name is looked up once, what is found is checked, and only that is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from modeld.gateway.egress.addresses import (
    Address,
    Policy,
    Refused,
    allowed,
    check,
    check_host,
    literal,
    plain,
    shown,
)

log = logging.getLogger("modeld.gateway")

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[Address]]]
"""Look a host up. Raises OSError when there is no such name."""

REDIRECTS = 5
"""How often an answer may point somewhere else."""

CONNECT_S = 5.0
"""Seconds for one connection, with TLS."""

TOTAL_S = 20.0
"""Seconds for one file, all redirects and waiting included."""

AT_ONCE = 32
"""Requests under way at the same time, for all callers together."""

PIECE = 1 << 16

HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "modeld"}
"""Compressed answers are not asked for: a small one may unpack to anything."""


class Failed(Exception):
    """The other side was asked, and what came is of no use; the words say what came."""


class Budget:
    """Bytes that several downloads may take together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = size

    def take(self, size: int) -> bool:
        """Take from what is left; False when it is used up."""
        self.left -= size
        return self.left >= 0


class Egress:
    """Fetches files for callers, within a policy. Holds nothing that needs closing."""

    def __init__(
        self,
        policy: Policy,
        *,
        resolve: Resolve | None = None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        total_s: float = TOTAL_S,
    ) -> None:
        """`tls` makes the context for https, once and when first needed: it reads all authorities."""
        self.policy = policy
        self._resolve = resolve or _look_up
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._making_tls = asyncio.Lock()
        self._total_s = total_s
        self._gate = asyncio.Semaphore(AT_ONCE)

    def check(self, url: str) -> None:
        """Refuse what can be refused without asking anybody. Raises Refused."""
        check(url, self.policy)

    async def addresses(self, url: str) -> Sequence[Address]:
        """Return the addresses that a URL's host has, all of which may be asked. Raises Refused."""
        target, listed = check(url, self.policy)
        return await self._checked(plain(target.raw_host or ""), target.port or 0, listed)

    async def pinned(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses that one connection may go to: looked up now, all of them checked.

        For clients of other libraries, which have the URL checked first and connect nowhere else. Raises
        Refused.
        """
        name = plain(host)
        return await self._checked(name, port, check_host(name, port, self.policy))

    async def tls(self) -> ssl.SSLContext:
        """Return the context for https; the authorities are read when it is first asked for."""
        async with self._making_tls:
            if self._tls is None:
                self._tls = await asyncio.to_thread(self._make_tls)
            return self._tls

    async def fetch(self, url: str, limit: int, budget: Budget | None = None) -> bytes:
        """Return the file at a URL: `limit` bytes at most, counted as they come, and within the budget.

        Raises Refused for a URL that is not asked, also when only a redirect leads there; Failed for an
        answer that is none, too large, or too late.
        """
        try:
            async with self._gate, asyncio.timeout(self._total_s):
                for _ in range(1 + REDIRECTS):
                    target, listed = check(url, self.policy)
                    answer = await self._ask(target, listed, limit, budget)
                    if isinstance(answer, bytes):
                        return answer
                    url = answer
        except TimeoutError:
            raise Failed(f"{_host(url)} took longer than {self._total_s:g} s") from None
        raise Failed(f"it was redirected more than {REDIRECTS} times")

    async def _ask(self, url: URL, listed: bool, limit: int, budget: Budget | None) -> bytes | str:
        """Return the file, or where the answer points."""
        checked = await self._checked(plain(url.raw_host or ""), url.port or 0, listed)
        connector = aiohttp.TCPConnector(
            resolver=_Pinned(checked),
            use_dns_cache=False,
            force_close=True,
            ssl=await self.tls() if url.scheme == "https" else False,
            socket_factory=_only(checked),
        )
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_S)
        jar = aiohttp.DummyCookieJar()
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=timeout, cookie_jar=jar, auto_decompress=False
                ) as session,
                session.get(url, allow_redirects=False, headers=HEADERS) as response,
            ):
                return await _read(response, url, limit, budget)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                raise Failed(f"{_host(url)} has no certificate that is trusted here") from None
            log.info("nothing could be fetched", extra={"host": url.host, "reason": str(error)[:200]})
            raise Failed(f"{_host(url)} gives no answer that can be read") from None

    async def _checked(self, host: str, port: int, listed: bool) -> Sequence[Address]:
        """Return the addresses of a host, if all of them may be asked. Raises Refused."""
        own = literal(host)
        try:
            found = (own,) if own is not None else await self._resolve(host, port)
        except (OSError, ValueError):  # no such name, or none that could be one
            found = ()
        bad = [address for address in found if not allowed(address, listed=listed)]
        if not found or bad:
            # One sentence for both: which names this network knows is nobody's business.
            log.info("not fetched from there", extra={"host": host, "addresses": [str(each) for each in bad]})
            raise Refused(
                f"{shown(host)} has no public address; send the picture itself, as a data: URL"
                if not listed
                else f"{shown(host)} has no address that may be asked"
            )
        return found


class _Pinned(AbstractResolver):
    """Knows the addresses of one host, which have been checked."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return them."""
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """There is nothing to close."""


def _only(checked: Sequence[Address]) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    """Return a maker of sockets for the checked addresses: a last look, past the client's own cleverness."""

    def make(info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, proto, _, where = info
        if ipaddress.ip_address(str(where[0])) not in checked:
            raise OSError("this address was not checked")
        made = socket.socket(family, kind, proto)
        made.setblocking(False)
        return made

    return make


async def _read(response: aiohttp.ClientResponse, url: URL, limit: int, budget: Budget | None) -> bytes | str:
    if response.status in (301, 302, 303, 307, 308):
        try:
            return str(url.join(URL(response.headers["Location"])))
        except (KeyError, ValueError):
            raise Failed(f"{_host(url)} answered with a redirect to nowhere") from None
    if response.status != 200:
        raise Failed(f"{_host(url)} answered HTTP {response.status}")
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_chunked(PIECE):
        size += len(piece)
        if size > limit:
            raise Failed(f"the file is over the limit of {limit} bytes (media.image_bytes)")
        if budget is not None and not budget.take(len(piece)):
            raise Failed(f"the files are over what is left of max_request_body, {budget.size} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _host(url: URL | str) -> str:
    return shown(URL(url).raw_host or "")


async def _look_up(host: str, port: int) -> Sequence[Address]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = (ipaddress.ip_address(str(where[0]).partition("%")[0]) for *_, where in found)
    return tuple(dict.fromkeys(addresses))

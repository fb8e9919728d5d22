"""Where the daemon lets itself be sent, and what it takes from there."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from modeld.gateway.egress import Budget, Egress, Failed, Policy, Refused
from modeld.gateway.egress.addresses import Address, allowed, check

CERTIFICATE = Path(__file__).parents[2] / "harness" / "tls" / "box_lan.pem"
"""Of the host box.lan, signed by itself, with its key; known to nobody outside of these tests."""

NEVER = [
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd00:c1::a9fe:a9fe",
    "fe80::1",
    "224.0.0.1",
    "255.255.255.255",
    "0.0.0.0",
    "::",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::808:808",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "::127.0.0.1",
    "240.0.0.1",
    "fd20:ce::254",
    "169.254.170.23",
    "169.254.169.123",
    "169.254.0.23",
    "::169.254.169.254",
    "::8.8.8.8",
    "::ffff:0:169.254.169.254",
    "::ffff:0:8.8.8.8",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "2002:a9fe:a9fe::",
    "2002:808:808::",
    "fec0::1",
    "192.0.0.8",
    "192.0.0.170",
    "0.1.2.3",
    "198.18.0.1",
    "192.88.99.1",
    "239.255.255.250",
    "ff05::1",
    "fe80::a9fe:a9fe",
]
IF_LISTED = ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "100.64.0.1", "::1", "fd12:3456::1"]
ALWAYS = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1"]


def test_the_table_of_addresses() -> None:
    """Public ones always, private ones when listed, and those of clouds' metadata and tricks never."""
    for listed in (False, True):
        assert [text for text in NEVER if allowed(ipaddress.ip_address(text), listed=listed)] == []
        assert all(allowed(ipaddress.ip_address(text), listed=listed) for text in ALWAYS)
    assert [text for text in IF_LISTED if allowed(ipaddress.ip_address(text), listed=False)] == []
    assert all(allowed(ipaddress.ip_address(text), listed=True) for text in IF_LISTED)


@given(st.ip_addresses())
def test_what_is_allowed_is_global_unicast(address: Address) -> None:
    """Python's own registry agrees with every address that is let through."""
    if allowed(address, listed=False):
        assert address.is_global
        assert not address.is_multicast
        assert allowed(address, listed=True)


@given(st.text(max_size=60) | st.text(max_size=40).map("http://{}".format))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    """No other exception; what passes has a host, a known scheme and no credentials."""
    try:
        url, _ = check(text, Policy())
    except Refused:
        return
    assert url.scheme in ("http", "https")
    assert url.host
    assert url.user is None
    assert url.password is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://a.example/x", "only http"),
        ("file:///etc/passwd", "only http"),
        ("//a.example/x", "only http"),
        ("http://me:secret@a.example/", "password"),
        ("http://me@a.example/", "password"),
        ("http:///x", "no host"),
        ("http://127.1/", "whole address"),
        ("http://2130706433/", "whole address"),
        ("http://0x7f000001/", "whole address"),
        ("http://a.example:99999/", "not a URL"),
        ("http://[fe80::1%25eth0]/", "host|URL"),
        ("http://a.example/" + "x" * 9000, "8192"),
    ],
)
def test_a_url_that_is_not_asked(url: str, words: str) -> None:
    """Each rule says so, before any name is looked up."""
    with pytest.raises(Refused, match=words) as caught:
        check(url, Policy())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["metadata.google.internal", "METADATA.goog.", "kubernetes.default.svc"])
def test_names_of_metadata_are_never_asked(host: str) -> None:
    """Not even when the owner lists them."""
    with pytest.raises(Refused, match="secrets"):
        check(f"http://{host}/computeMetadata/v1/", Policy("public", (host,)))


def test_who_is_listed() -> None:
    """Names in any case, with a port that counts when it is there, and addresses."""
    policy = Policy("listed", ("Box.lan", "cam.lan:8080", "[::1]:81", "10.0.0.7"))
    for url in ("http://box.lan/x", "http://BOX.lan.:99/", "http://cam.lan:8080/", "http://[::1]:81/"):
        assert check(url, policy)[1]
    assert check("https://10.0.0.7/", policy)[1]
    for url in ("http://cam.lan/", "http://xbox.lan/", "http://box.lan.evil.example/", "http://[::1]/"):
        with pytest.raises(Refused, match=r"media\.fetch_hosts"):
            check(url, policy)
    assert check("http://a.example/", Policy("public", ("box.lan",)))[1] is False
    with pytest.raises(Refused, match=r"media\.fetch is none"):
        check("http://box.lan/", Policy("none", ("box.lan",)))


# --- asking -------------------------------------------------------------------------------------------------

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server on loopback; give its port."""
    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def names(**known: str) -> Callable[[str, int], Awaitable[Sequence[Address]]]:
    """Return a resolver that knows these names (with _ for a dot), each with one or more addresses."""

    async def resolve(host: str, port: int) -> Sequence[Address]:
        if host.replace(".", "_") not in known:
            raise OSError("no such name")
        return [ipaddress.ip_address(text) for text in known[host.replace(".", "_")].split()]

    return resolve


async def _file(request: web.Request) -> web.Response:
    return web.Response(body=f"{request.host} {request.path}".encode())


async def test_a_listed_host_is_asked_under_its_name() -> None:
    """The connection goes to the address that was looked up; the server sees the name."""
    async with serving(_file) as port:
        egress = Egress(Policy("listed", ("box.lan",)), resolve=names(box_lan="127.0.0.1"))
        assert await egress.fetch(f"http://box.lan:{port}/a#b", 1000) == f"box.lan:{port} /a".encode()


@pytest.mark.parametrize("addresses", ["127.0.0.1", "8.8.8.8 10.0.0.1", "::ffff:8.8.8.8", "169.254.169.254"])
async def test_a_name_with_a_private_address_is_not_asked(addresses: str) -> None:
    """One bad address among good ones is enough; an unknown name gets the very same words."""
    egress = Egress(Policy(), resolve=names(inside_example=addresses))
    said = []
    for host in ("inside.example", "nowhere.example"):
        with pytest.raises(Refused) as caught:
            await egress.fetch(f"http://{host}/", 1000)
        said.append(str(caught.value).replace(host, "HOST"))
    assert said[0] == said[1]
    assert not any(address in said[0] for address in addresses.split())


async def test_metadata_is_not_asked_even_when_listed() -> None:
    """Not by name, not by address, not through a redirect."""
    hops = {"/start": "http://169.254.169.254/latest"}

    async def answer(request: web.Request) -> web.Response:
        raise web.HTTPFound(hops[request.path])

    async with serving(answer) as port:
        policy = Policy("public", ("meta.lan", "169.254.169.254", "127.0.0.1"))
        egress = Egress(policy, resolve=names(meta_lan="169.254.169.254"))
        for url in ("http://meta.lan/", "http://169.254.169.254/", f"http://127.0.0.1:{port}/start"):
            with pytest.raises(Refused, match="no address that may be asked"):
                await egress.fetch(url, 1000)


async def test_a_name_is_looked_up_once() -> None:
    """A name that changes its address between check and connection changes nothing."""
    asked = []

    async def resolve(host: str, port: int) -> Sequence[Address]:
        asked.append(host)
        return [ipaddress.ip_address("127.0.0.1" if len(asked) == 1 else "10.9.9.9")]

    async with serving(_file) as port:
        egress = Egress(Policy("listed", ("box.lan",)), resolve=resolve)
        assert await egress.fetch(f"http://box.lan:{port}/", 1000)
    assert asked == ["box.lan"]


async def test_every_redirect_is_checked_again() -> None:
    """From a listed host to one that is not, to another scheme, with credentials, and round and round."""
    there = ""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/end":
            return web.Response(body=b"end")
        raise web.HTTPFound(there)

    async with serving(answer) as port:
        egress = Egress(Policy("public", (f"127.0.0.1:{port}",)), resolve=names(in_lan="10.0.0.1"))
        start = f"http://127.0.0.1:{port}/start"
        there = "/end"
        assert await egress.fetch(start, 1000) == b"end"
        for target, words in (
            ("http://in.lan/", "no public address"),
            (f"http://127.0.0.1:{port + 1}/", "no public address"),
            ("ftp://127.0.0.1/", "only http"),
            (f"http://a:b@127.0.0.1:{port}/", "password"),
        ):
            there = target
            with pytest.raises(Refused, match=words):
                await egress.fetch(start, 1000)
        there = "/start"
        with pytest.raises(Failed, match="redirected more than 5 times"):
            await egress.fetch(start, 1000)


HOSTS = st.one_of(
    st.text(min_size=1, max_size=20),
    st.ip_addresses().map(lambda address: f"[{address}]" if address.version == 6 else str(address)),
    st.integers(0, 2**32).map(str),
    st.integers(0, 2**32).map(hex),
    st.sampled_from(["localhost", "LOCALHOST.", "127.0.0.1.", "0", "0x7f.1", "[::]", "[::ffff:127.0.0.1]"]),
)


RESTS = st.sampled_from(["", ":80", ":0", ":65536", ":x", "/a/../b", "?q#f", "@h", "\\\\@h", "\0", "%00"])


@given(HOSTS, RESTS)
def test_nobody_private_is_ever_asked(host: str, rest: str) -> None:
    """Whatever is written for a host, on a network where every name is this machine's."""

    async def resolve(name: str, port: int) -> Sequence[Address]:
        return [ipaddress.ip_address("127.0.0.1")]

    try:
        found = asyncio.run(Egress(Policy(), resolve=resolve).addresses(f"http://{host}{rest}"))
    except Refused:
        return
    assert found
    assert all(address.is_global for address in found)


async def test_what_comes_is_counted_as_it_comes() -> None:
    """A file without an end, and several that are too much together, stop at the limit."""
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1000):
            await response.write(bytes(10_000))
            sent += 10_000
        return response

    async with serving(answer) as port:
        egress = Egress(Policy("listed", ("127.0.0.1",)))
        url = f"http://127.0.0.1:{port}/"
        with pytest.raises(Failed, match="over the limit of 20000 bytes"):
            await egress.fetch(url, 20_000)
        assert sent < 10_000_000
        with pytest.raises(Failed, match="max_request_body"):
            await egress.fetch(url, 100_000_000, Budget(30_000))


async def test_what_is_no_answer_says_so() -> None:
    """An error's status is told; a closed port, junk and silence are told without the network's words."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.sleep(600)
        return web.Response(status=418)

    async def junk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with serving(answer) as port:
        egress = Egress(Policy("listed", ("127.0.0.1",)))
        with pytest.raises(Failed, match="HTTP 418"):
            await egress.fetch(f"http://127.0.0.1:{port}/", 1000)
        hasty = Egress(Policy("listed", ("127.0.0.1",)), total_s=0.3)
        with pytest.raises(Failed, match=r"longer than 0\.3 s"):
            await hasty.fetch(f"http://127.0.0.1:{port}/slow", 1000)
    server = await asyncio.start_server(junk, "127.0.0.1", 0)
    async with server:
        talking = server.sockets[0].getsockname()[1]
        for closed_or_talking in (port, talking):
            with pytest.raises(Failed, match="gives no answer that can be read") as caught:
                await egress.fetch(f"http://127.0.0.1:{closed_or_talking}/", 1000)
            assert "refused" not in str(caught.value)


async def test_leaving_closes_the_connection() -> None:
    """A caller that goes away takes the request with it."""
    begun, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        egress = Egress(Policy("listed", ("127.0.0.1",)))
        port = server.sockets[0].getsockname()[1]
        asking = asyncio.ensure_future(egress.fetch(f"http://127.0.0.1:{port}/", 1000))
        await asyncio.wait_for(begun.wait(), 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(gone.wait(), 60)


async def test_certificates_count_and_authorities_are_read_once() -> None:
    """The name must be the certificate's, its signer must be trusted, and the context is made once."""
    serving_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving_tls.load_cert_chain(CERTIFICATE)
    made = []

    def trusting() -> ssl.SSLContext:
        made.append(ssl.create_default_context(cafile=str(CERTIFICATE)))
        return made[-1]

    async with serving(_file, serving_tls) as port:
        policy = Policy("listed", ("box.lan", "other.lan"))
        resolve = names(box_lan="127.0.0.1", other_lan="127.0.0.1")
        egress = Egress(policy, resolve=resolve, tls=trusting)
        for _ in range(2):
            assert await egress.fetch(f"https://box.lan:{port}/x", 1000) == f"box.lan:{port} /x".encode()
        assert len(made) == 1
        for url, stranger in (
            (f"https://other.lan:{port}/", egress),
            (f"https://box.lan:{port}/", Egress(policy, resolve=resolve)),
        ):
            with pytest.raises(Failed, match="certificate"):
                await stranger.fetch(url, 1000)

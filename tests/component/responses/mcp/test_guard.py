"""Where MCP's messages go: to the address that was looked up and checked, under the server's name."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from modeld.errors import UpstreamFailed
from modeld.gateway.egress import Egress
from modeld.gateway.egress.addresses import Address
from modeld.responses.mcp.servers import policy
from tests.component.responses.mcp.conftest import Opened
from tests.harness.mcp_server import Server

CERTIFICATE = Path(__file__).parents[3] / "harness" / "tls" / "box_lan.pem"
"""Of the host box.lan, signed by itself, with its key; known to nobody outside of these tests."""


def names(*found: str, asked: list[str] | None = None) -> Callable[[str, int], Awaitable[Sequence[Address]]]:
    """Return a resolver for which every name has these addresses; `asked` gets the names."""

    async def resolve(host: str, port: int) -> Sequence[Address]:
        if asked is not None:
            asked.append(host)
        return [ipaddress.ip_address(text) for text in found]

    return resolve


async def test_a_name_leads_to_its_address(server: Server, opened: Opened) -> None:
    """It is looked up for the connection; the server sees the name; a second address helps a dead one."""
    egress = Egress(policy(), resolve=names("127.0.0.2", "127.0.0.1"))
    async with opened(f"http://box.lan:{server.port}/mcp", egress=egress) as box:
        assert (await box.call("x", "echo", '{"text": "a"}')).output == "a"
    hosts = {line["headers"]["host"] for line in server.requests()}
    assert f"box.lan:{server.port}" in hosts


@pytest.mark.parametrize(
    "addresses",
    [
        "169.254.169.254",
        "127.0.0.1 169.254.170.2",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "64:ff9b::1",
    ],
)
async def test_a_bad_address_is_not_asked(server: Server, opened: Opened, addresses: str) -> None:
    """One among good ones is enough. Nothing is sent, and no address is told."""
    before = len(server.requests())
    egress = Egress(policy(), resolve=names(*addresses.split()))
    async with opened(f"http://box.lan:{server.port}/mcp", egress=egress) as box:
        with pytest.raises(UpstreamFailed, match=r"'box\.lan' has no address that may be asked"):
            await box.list("x")
        result = await box.call("x", "echo", "{}")
    assert result.error == {
        "type": "mcp_protocol_error",
        "code": -32000,
        "message": "'box.lan' has no address that may be asked",
    }
    assert len(server.requests()) == before


async def test_a_name_that_changes_its_address(server: Server, opened: Opened) -> None:
    """Each connection asks and checks anew: what was good for the first is no pass for the next."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[Address]:
        asked.append(host)
        return [ipaddress.ip_address("127.0.0.1" if len(asked) == 1 else "169.254.169.254")]

    async with opened(f"http://box.lan:{server.port}/mcp", egress=Egress(policy(), resolve=resolve)) as box:
        await box.list("x")
        assert asked == ["box.lan"]
        mark = "rebound"
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(box.call("x", "hang", f'{{"mark": "{mark}"}}'))
            await server.seen("hang", "begin", mark=mark)  # it has the one good connection
            result = await box.call("x", "echo", '{"text": "a"}')
            hanging.cancel()
    assert result.error is not None
    assert "no address that may be asked" in result.error["message"]


async def test_only_listed_hosts(server: Server, opened: Opened) -> None:
    """With hosts listed no other is asked, not even one that the transport is handed by mistake."""
    there = Egress(policy([f"box.lan:{server.port}"]), resolve=names("127.0.0.1"))
    async with opened(f"http://box.lan:{server.port}/mcp", egress=there) as box:
        assert len(await box.list("x")) > 5
    for egress in (
        Egress(policy(["other.lan"]), resolve=names("127.0.0.1")),
        Egress(policy(["box.lan:1"]), resolve=names("127.0.0.1")),
    ):
        async with opened(f"http://box.lan:{server.port}/mcp", egress=egress) as box:
            with pytest.raises(UpstreamFailed, match=r"mcp\.allowed_hosts"):
                await box.list("x")
    secure = Egress(policy(require_https=True), resolve=names("127.0.0.1"))
    async with opened(f"http://box.lan:{server.port}/mcp", egress=secure) as box:
        with pytest.raises(UpstreamFailed, match=r"mcp\.require_https"):
            await box.list("x")


async def test_redirects_to_metadata_go_nowhere(server: Server, opened: Opened) -> None:
    """They are an error with the redirect's status; nobody even looks the place up."""
    asked: list[str] = []
    egress = Egress(policy(), resolve=names("127.0.0.1", asked=asked))
    for path in ("/metadata", "/elsewhere"):
        async with opened(f"http://box.lan:{server.port}{path}", egress=egress) as box:
            with pytest.raises(UpstreamFailed, match=r"307 \(Temporary Redirect\)"):
                await box.list("x")
    assert set(asked) == {"box.lan"}


async def test_proxies_of_the_environment_are_not_used(
    server: Server, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would look names up itself, and see the token."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with opened(server.url) as box:
        assert (await box.call("x", "echo", '{"text": "a"}')).output == "a"


@asynccontextmanager
async def in_front(server: Server) -> AsyncIterator[int]:
    """Run a TLS front of a server, as box.lan; give its port."""

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        headers = {**request.headers, "Host": f"127.0.0.1:{server.port}"}
        async with http.request(
            request.method,
            server.at("/json"),
            data=body,
            headers=headers,
            skip_auto_headers=["Accept-Encoding"],
        ) as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", forward)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    async with ClientSession() as http:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


async def test_certificates_count(server: Server, opened: Opened) -> None:
    """The name must be the certificate's and its signer trusted, although an address is connected to."""

    def trusting() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(CERTIFICATE))

    resolve = names("127.0.0.1")
    async with in_front(server) as port:
        egress = Egress(policy(require_https=True), resolve=resolve, tls=trusting)
        async with opened(f"https://box.lan:{port}/", egress=egress, authorization="tok-123456") as box:
            assert (await box.call("x", "echo", '{"text": "a"}')).output == "a"
        for host, stranger in (("other.lan", egress), ("box.lan", Egress(policy(), resolve=resolve))):
            async with opened(f"https://{host}:{port}/", egress=stranger) as box:
                with pytest.raises(UpstreamFailed, match="no certificate that is trusted here"):
                    await box.list("x")


def test_the_sdk_is_loaded_late_and_by_a_thread() -> None:
    """Importing sessions loads none of it; the first use loads it where the loop is not held up."""
    script = """
        import asyncio, sys, threading
        import modeld.responses.mcp.session, modeld.responses.mcp.tools
        heavy = {"mcp", "mcp_types", "httpx2", "httpcore2", "anyio", "pydantic", "jsonschema"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        seen = {}
        class Watch:
            def find_spec(self, name, path=None, target=None):
                seen.setdefault(name, threading.current_thread())
        sys.meta_path.insert(0, Watch())
        from modeld.errors import UpstreamFailed
        from modeld.gateway.egress import Egress
        from modeld.responses.mcp.servers import policy, read_servers
        from modeld.responses.mcp.session import Toolbox
        servers = read_servers([{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:9/mcp"}])
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 3600.0  # a slow machine is no fault
            async with Toolbox(servers, Egress(policy())) as box:
                try:
                    await box.list("x")
                except UpstreamFailed:
                    return
        asyncio.run(main(), debug=True)
        assert heavy - {"jsonschema"} <= set(seen), seen
        wrong = [name for name in heavy & set(seen) if seen[name] is threading.main_thread()]
        assert not wrong, wrong
    """
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, "")

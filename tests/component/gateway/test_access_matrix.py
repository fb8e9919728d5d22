"""Every route of the application, asked by everybody who must not be let in."""

from __future__ import annotations

import pytest
from aiohttp import web

from modeld.clock import SystemClock
from modeld.gateway.access import identity_of
from modeld.gateway.app import build_app
from modeld.gateway.settings import GatewaySettings
from modeld.telemetry.metrics import Metrics
from tests.component.gateway.served import CHAT, Serve, chat_body, split
from tests.fakes.pool import FakePool, model


def _routes() -> list[tuple[str, str]]:
    app: web.Application = build_app(FakePool(), GatewaySettings(), Metrics(), SystemClock())
    return [
        (route.method, route.resource.canonical.replace("{id}", "tiny").replace("{gateway}", "side"))
        for route in app.router.routes()
        if route.resource is not None
    ]


ROUTES = _routes()
OWN = {(method, path) for method in ("GET", "HEAD") for path in ("/health", "/metrics", "/readyz")}
BEYOND = [
    ("GET", "/"),
    ("GET", "/nope"),
    ("GET", "//v1/models"),
    ("GET", "/V1/models"),
    ("GET", "/v1/models/"),
    ("GET", "/v1/../v1/models"),
    ("GET", "//health"),
    ("GET", "/health/"),
    ("POST", "/v1/models"),
    ("DELETE", "/v1/models/tiny"),
    ("OPTIONS", CHAT),
    ("HEAD", "/v1/models"),
    ("PATCH", CHAT),
    ("TRACE", "/v1/models"),
    ("GET", "/nowhere/v1/models"),
    ("POST", "/nowhere/v1/chat/completions"),
    ("GET", "/side/health"),
    ("GET", "/a/side/v1/models"),
    ("GET", "/%2e%2e/v1/models"),
]
KEYS = ("right-key", "second-key")


def _pool() -> FakePool:
    return FakePool.of(model("tiny"), model("tiny", gateway="side"))


def _request(method: str, path: str, *lines: str, host: str = "localhost:8000") -> bytes:
    body = chat_body(prompt="x") if method == "POST" else ""
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *lines,
    ]
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


def test_the_routes_are_those_we_mean() -> None:
    """A new route is a new door: it is added here by hand, so that somebody thinks of it."""
    assert sorted({(method, path) for method, path in ROUTES if not path.startswith("/side/")} - OWN) == [
        ("GET", "/v1/audio/voices"),
        ("GET", "/v1/images/files/{name}"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("GET", "/v1/models/tiny/pull"),
        ("HEAD", "/v1/audio/voices"),
        ("HEAD", "/v1/images/files/{name}"),
        ("HEAD", "/v1/models"),
        ("HEAD", "/v1/models/tiny"),
        ("POST", "/v1/audio/speech"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/audio/translations"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/detokenize"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/images/edits"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/images/variations"),
        ("POST", "/v1/rerank"),
        ("POST", "/v1/tokenize"),
    ]


def test_every_route_of_the_api_is_at_every_gateway() -> None:
    """What answers under /v1 answers under /NAME/v1 too, and nothing else does."""
    at_default = {(method, path) for method, path in ROUTES if path.startswith("/v1/")}
    assert {(method, f"/side{path}") for method, path in at_default} == set(ROUTES) - at_default - OWN


@pytest.mark.parametrize(("method", "path"), ROUTES + BEYOND)
async def test_a_key_is_needed_everywhere_but_for_health(serve: Serve, method: str, path: str) -> None:
    """Without a key and with a wrong one it is 401, also for what does not exist; with one it is not."""
    gateway = await serve(_pool(), api_keys=KEYS)
    for line in ((), ("Authorization: Bearer wrong",), ("x-api-key: right-keys",), ("Upgrade: websocket",)):
        status, headers, _ = split(await gateway.raw(_request(method, path, *line)))
        assert (status == 401) == (path != "/health")
        assert "x-request-id" in headers
    for line in (("Authorization: Bearer right-key",), ("x-api-key: second-key",)):
        status, _, _ = split(await gateway.raw(_request(method, path, *line)))
        assert status not in (401, 403)
        assert status < 500


@pytest.mark.parametrize(("method", "path"), ROUTES + BEYOND)
async def test_a_foreign_host_is_refused_everywhere(serve: Serve, method: str, path: str) -> None:
    """Rebinding needs a Host that is not ours: 403 on every route, health included."""
    gateway = await serve(_pool(), allowed_hosts=("box.lan",))
    for host in ("evil.example", "localhost.evil.example:8000", ""):
        assert split(await gateway.raw(_request(method, path, host=host)))[0] == 403
    two = _request(method, path, "Host: evil.example")
    assert split(await gateway.raw(two))[0] in (400, 403)
    for host in ("LOCALHOST", "127.0.0.1:8000", "[::1]:8000", "Box.lan:1"):
        status, _, _ = split(await gateway.raw(_request(method, path, host=host)))
        assert status != 403
        assert status < 500


@pytest.mark.parametrize(("method", "path"), ROUTES + BEYOND)
async def test_a_foreign_page_changes_nothing_and_reads_nothing(serve: Serve, method: str, path: str) -> None:
    """A page that is not allowed gets no CORS header from any route, and 403 where something would happen."""
    gateway = await serve(_pool(), cors_origins=("https://app.example",))
    for origin in ("https://evil.example", "null"):
        status, headers, _ = split(await gateway.raw(_request(method, path, f"Origin: {origin}")))
        assert not [name for name in headers if name.startswith("access-control")]
        if method in ("POST", "DELETE", "PATCH"):
            assert status == 403
        preflight = _request("OPTIONS", path, f"Origin: {origin}", "Access-Control-Request-Method: POST")
        status, headers, _ = split(await gateway.raw(preflight))
        assert status == 403
        assert not [name for name in headers if name.startswith("access-control")]
    assert gateway.pool.calls == []


async def test_an_allowed_page_gets_its_preflight_and_its_answer(serve: Serve) -> None:
    """An opened origin is served like any client: preflight without a key, the call with one."""
    gateway = await serve(cors_origins=("https://app.example",), api_keys=KEYS)
    origin = "Origin: https://app.example"
    asks = (
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type",
    )
    status, headers, body = split(await gateway.raw(_request("OPTIONS", CHAT, origin, *asks)))
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-credentials" not in headers
    for key, expected in (("right-key", 200), ("wrong", 401)):
        request = _request("POST", CHAT, origin, f"Authorization: Bearer {key}")
        status, headers, _ = split(await gateway.raw(request))
        assert status == expected
        assert headers["access-control-allow-origin"] == "https://app.example"
        assert headers["vary"] == "Origin"
        assert "x-request-id" in headers["access-control-expose-headers"]


async def test_a_stream_to_an_allowed_page_is_readable(serve: Serve) -> None:
    """The CORS headers are on event streams too."""
    gateway = await serve(cors_origins=("*",))
    async with gateway.http.post(
        gateway.url + CHAT,
        json={"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x"}]},
        headers={"origin": "https://any.example"},
    ) as response:
        assert response.headers["access-control-allow-origin"] == "https://any.example"
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_refusals_are_counted_by_reason(serve: Serve) -> None:
    """The owner can see that somebody is trying."""
    gateway = await serve(api_keys=KEYS)
    await gateway.ask("GET", "/v1/models")
    await gateway.ask("GET", "/v1/models", headers={"x-api-key": "no"})
    await gateway.ask("GET", "/v1/models", headers={"host": "evil.example"})
    for reason in ("missing_api_key", "invalid_api_key", "host_not_allowed"):
        assert gateway.value("modeld_auth_failures_total", reason=reason) == 1


async def test_the_identity_of_the_key_goes_down_with_the_call(serve: Serve) -> None:
    """Each key is a caller of its own; the key itself goes nowhere."""
    gateway = await serve(api_keys=KEYS)
    for key in KEYS:
        response, _ = await gateway.ask(
            "POST", CHAT, data=chat_body(), headers={"x-api-key": key, "content-type": "application/json"}
        )
        assert response.status == 200
    assert [call.identity for call in gateway.pool.calls] == [identity_of(key) for key in KEYS]


async def test_a_bind_to_the_network_answers_to_any_name(serve: Serve) -> None:
    """The Host check is for loopback, where there may be no keys."""
    gateway = await serve(loopback=False, api_keys=KEYS)
    headers = {"host": "box.example", "x-api-key": KEYS[0]}
    assert (await gateway.ask("GET", "/v1/models", headers=headers))[0].status == 200


async def test_the_wrong_method_names_the_right_ones(serve: Serve) -> None:
    """405 comes with Allow and the envelope."""
    gateway = await serve()
    response, body = await gateway.ask("DELETE", "/v1/models/tiny")
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
    assert body["error"]["code"] == "method_not_allowed"
    response, body = await gateway.ask("GET", "/nope")
    assert (response.status, body["error"]["code"]) == (404, "unknown_url")

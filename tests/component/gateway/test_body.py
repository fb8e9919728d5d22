from __future__ import annotations

import gzip
import json

import pytest

from tests.component.gateway.served import CHAT, Serve, chat_body, post, split

LIMIT = 2_000


def _error(answer: bytes) -> tuple[int, dict[str, str]]:
    status, headers, rest = split(answer)
    assert headers["content-type"] == "application/json"
    error = json.loads(rest)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert headers["x-request-id"].startswith("req_")
    assert "openai-processing-ms" in headers
    return status, error


def _chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    ).encode() + body


async def test_a_body_at_the_limit_is_read(serve: Serve) -> None:
    """Exactly the limit is allowed, announced or chunked."""
    gateway = await serve(max_request_body=LIMIT)
    body = chat_body().encode().ljust(LIMIT)
    for request in (post(body), _chunked(body[:700], body[700:], b"")):
        assert split(await gateway.raw(request))[0] == 200


async def test_an_announced_body_over_the_limit_is_refused_unread(serve: Serve) -> None:
    """The refusal comes although not a byte of the body was sent, with the numbers and the setting."""
    gateway = await serve(max_request_body=LIMIT)
    reader, writer = await gateway.connect()
    writer.write(post(b"x" * (LIMIT + 1)).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 413 ")


async def test_the_refusal_of_a_large_body_names_the_setting(serve: Serve) -> None:
    """Whoever reads it knows the size, the limit and what to change."""
    gateway = await serve(max_request_body=LIMIT)
    status, error = _error(await gateway.raw(post(b" " * (LIMIT + 1))))
    assert (status, error["code"]) == (413, "request_too_large")
    assert "2001" in error["message"]
    assert "max_request_body" in error["message"]


async def test_a_chunked_body_is_counted(serve: Serve) -> None:
    """An upload that announces nothing is stopped when it is over the limit."""
    gateway = await serve(max_request_body=LIMIT)
    status, error = _error(await gateway.raw(_chunked(*[b" " * 500] * 5, b"")))
    assert (status, error["code"]) == (413, "request_too_large")
    assert gateway.pool.calls == []


async def test_a_compressed_body_is_counted_unpacked(serve: Serve) -> None:
    """A small body that unpacks to a huge one is stopped too; an honest one is read."""
    gateway = await serve(max_request_body=LIMIT)
    encoded = "Content-Encoding: gzip\r\n"
    bomb = gzip.compress(b" " * 1_000_000)
    assert len(bomb) < LIMIT
    assert _error(await gateway.raw(post(bomb, headers=encoded)))[0] == 413
    assert split(await gateway.raw(post(gzip.compress(chat_body().encode()), headers=encoded)))[0] == 200
    assert _error(await gateway.raw(post(b"not gzip", headers=encoded)))[0] == 400


async def test_expect_is_answered_only_for_bodies_that_would_be_read(serve: Serve) -> None:
    """100-continue comes for a body within the limit; otherwise the refusal comes at once."""
    gateway = await serve(max_request_body=LIMIT)
    reader, writer = await gateway.connect()
    head, body = post(chat_body(), headers="Expect: 100-continue\r\n").split(b"\r\n\r\n", 1)
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()
    reader, writer = await gateway.connect()
    writer.write(
        post(b" " * 9_999, headers="Expect: 100-continue\r\n").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_other_content_types_are_refused_with_the_fix(serve: Serve, kind: str) -> None:
    """What a web page can send unasked is not read, and curl users learn which header to send."""
    gateway = await serve()
    line = f"Content-Type: {kind}\r\n" if kind else ""
    request = post(chat_body()).replace(b"Content-Type: application/json\r\n", line.encode())
    status, error = _error(await gateway.raw(request))
    assert (status, error["code"]) == (415, "unsupported_media_type")
    assert "content-type: application/json" in error["message"]
    assert gateway.pool.calls == []


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
async def test_json_content_types_are_read(serve: Serve, kind: str) -> None:
    """Any case, parameters, and structured suffixes."""
    gateway = await serve()
    request = post(chat_body()).replace(b"application/json", kind.encode())
    assert split(await gateway.raw(request))[0] == 200


MALFORMED = [
    b"GARBAGE\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
    post(b"{}").replace(b"Content-Length: 2", b"Content-Length: two"),
    post(b"{}").replace(b"Content-Length: 2", b"Content-Length: -2"),
    post(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2\r\nTransfer-Encoding: chunked"),
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("request_bytes", MALFORMED, ids=range(len(MALFORMED)))
async def test_malformed_http_gets_the_envelope(serve: Serve, request_bytes: bytes) -> None:
    """What never becomes a request is answered with 400 in our shape, and the server goes on."""
    gateway = await serve()
    assert _error(await gateway.raw(request_bytes))[0] == 400
    assert (await gateway.ask("GET", "/health"))[0].status == 200


async def test_a_broken_chunked_body_is_the_client_s_fault(serve: Serve) -> None:
    """A chunk size that is no number is 400, not 500."""
    gateway = await serve()
    status, error = _error(await gateway.raw(_chunked(b"{") + b"zz\r\n"))
    assert (status, error["type"]) == (400, "invalid_request_error")


async def test_a_stalled_upload_is_ended(serve: Serve) -> None:
    """A client that stops sending does not hold the request for ever."""
    gateway = await serve(body_stall_timeout=0.05)
    reader, writer = await gateway.connect()
    writer.write(post(chat_body())[:-3])
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 400 ")


async def test_an_unknown_expectation_gets_the_envelope(serve: Serve) -> None:
    """On routes it is ignored; elsewhere it is refused in our shape."""
    gateway = await serve()
    assert split(await gateway.raw(post(chat_body(), headers="Expect: miracles\r\n")))[0] == 200
    assert _error(await gateway.raw(post("{}", "/nope", headers="Expect: miracles\r\n")))[0] == 417


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model":[null,null]}', b"[" * 50_000])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_bodies_that_are_no_request_are_400(serve: Serve, body: bytes, path: str) -> None:
    """Whatever the body, the caller's mistake is never a 5xx."""
    gateway = await serve()
    status, error = _error(await gateway.raw(post(body, path)))
    assert (status, error["type"]) == (400, "invalid_request_error")

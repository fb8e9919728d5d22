from __future__ import annotations

import asyncio
import json

import pytest

from modeld.errors import ModelFailed, WorkerDied
from modeld.protocol.tasks import Event, Finish, Text, Usage
from tests.component.gateway.served import CHAT, Serve, chat_body, http_chunks, post, split
from tests.fakes.pool import Answer, FakePool, said


async def test_one_http_chunk_for_each_event_and_the_end_at_once(serve: Serve) -> None:
    """Every chunk of the body is exactly one event, [DONE] is the last, and then the body ends."""
    gateway = await serve(FakePool(answer=lambda _name, _task: said("one two three")))
    status, headers, rest = split(await gateway.raw(post(chat_body(stream=True))))
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert "content-encoding" not in headers
    chunks = http_chunks(rest)
    assert len(chunks) == 6
    for chunk in chunks:
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"\n\n")
        assert chunk.count(b"\n") == 2
    assert chunks[-1] == b"data: [DONE]\n\n"


async def test_events_that_come_together_still_have_their_own_chunks(serve: Serve) -> None:
    """A burst from the engine is still one HTTP chunk per event, in order."""
    burst: list[Event] = [Text(f" {at}") for at in range(500)]
    script: list[Answer] = [burst, [Finish("stop")], [Usage(prompt_tokens=1, completion_tokens=500)], None]
    gateway = await serve(FakePool(answer=lambda _name, _task: list(script)))
    chunks = http_chunks(split(await gateway.raw(post(chat_body(stream=True))))[2])
    texts = [json.loads(chunk[6:])["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
    assert "".join(texts) == "".join(f" {at}" for at in range(500))
    assert len(texts) == 502


async def test_gzip_is_never_used_for_a_stream(serve: Serve) -> None:
    """SDKs offer gzip; a compressed stream would be held back."""
    gateway = await serve()
    answer = await gateway.raw(post(chat_body(stream=True), headers="Accept-Encoding: gzip, deflate\r\n"))
    assert "content-encoding" not in split(answer)[1]


async def test_http_1_0_gets_a_stream_without_chunks(serve: Serve) -> None:
    """A proxy that speaks HTTP/1.0 gets plain events until the connection closes."""
    gateway = await serve()
    body = chat_body(stream=True)
    head = f"POST {CHAT} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    status, headers, rest = split(await gateway.raw((head + body).encode()))
    assert status == 200
    assert "transfer-encoding" not in headers
    assert rest.startswith(b'data: {"id"')
    assert rest.endswith(b"\n\ndata: [DONE]\n\n")


async def test_the_connection_serves_the_next_request(serve: Serve) -> None:
    """After a stream's end the same connection takes another request."""
    gateway = await serve()
    reader, writer = await gateway.connect()
    body = chat_body(stream=True)
    request = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    for _ in range(2):
        writer.write(request)
        answer = await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()


async def test_silence_is_filled_with_comments(serve: Serve) -> None:
    """While the model loads or thinks, comments keep the connection alive; parsers see only the answer."""
    pool = FakePool(answer=lambda _name, _task: [])
    gateway = await serve(pool, keepalive_interval=0.02)
    reader, writer = await gateway.connect()
    writer.write(post(chat_body(stream=True)))
    got = await reader.readuntil(b": keep-alive\n\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b"data:" not in got
    await reader.readuntil(b": keep-alive\n\n\r\n")
    pool.streams[0].feed(*said())
    rest = await reader.read()
    writer.close()
    await writer.wait_closed()
    chunks = [chunk for chunk in http_chunks(rest) if chunk != b": keep-alive\n\n"]
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert len(chunks) == 4


async def test_no_comment_while_the_interval_has_not_passed(serve: Serve) -> None:
    """A pool that gives [] early, as when it tries again on a new worker, does not make headers go out."""
    pool = FakePool(answer=lambda _name, _task: [[], [], ModelFailed("the file is gone")])
    response, body = await (await serve(pool)).chat(stream=True)
    assert (response.status, body["error"]["code"]) == (503, "model_failed")


async def test_a_refusal_after_the_headers_is_an_event(serve: Serve) -> None:
    """A load that fails after a keep-alive went out can only be told in the stream."""
    pool = FakePool(answer=lambda _name, _task: [])
    gateway = await serve(pool, keepalive_interval=0.02)
    reader, writer = await gateway.connect()
    writer.write(post(chat_body(stream=True)))
    head = await reader.readuntil(b": keep-alive\n\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    pool.streams[0].feed(ModelFailed("the file is gone"))
    chunks = http_chunks(await reader.read())
    writer.close()
    await writer.wait_closed()
    assert json.loads(chunks[-1][6:])["error"]["code"] == "model_failed"
    assert gateway.value("modeld_requests_total", model="tiny", endpoint=CHAT, status="503") == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_death_in_the_middle_ends_without_done(serve: Serve, path: str) -> None:
    """The last event is the envelope, nothing pretends success, and the body ends properly."""
    pool = FakePool(answer=lambda _name, _task: [[Text("Hel")], WorkerDied("killed by signal 9")])
    gateway = await serve(pool)
    answer = await gateway.raw(post(chat_body(stream=True, prompt="x"), path))
    chunks = http_chunks(split(answer)[2])
    assert json.loads(chunks[-1][6:]) == {
        "error": {
            "message": "killed by signal 9",
            "type": "server_error",
            "param": None,
            "code": "worker_died",
        }
    }
    assert b"[DONE]" not in answer
    assert gateway.value("modeld_requests_total", model="tiny", endpoint=path, status="502") == 1


async def test_an_unfinished_choice_ends_without_done(serve: Serve) -> None:
    """An engine that just stops is reported, not passed off as a complete answer."""
    gateway = await serve(FakePool(answer=lambda _name, _task: [[Text("Hel")], None]))
    answer = await gateway.raw(post(chat_body(stream=True)))
    assert json.loads(http_chunks(split(answer)[2])[-1][6:])["error"]["code"] == "incomplete_answer"


async def test_a_bug_in_the_middle_is_told_by_its_id_only(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception after the headers ends the stream with the request id."""
    pool = FakePool(answer=lambda _name, _task: [[Text("Hel")], [object()], None])  # type: ignore[list-item]
    gateway = await serve(pool)
    status, headers, rest = split(await gateway.raw(post(chat_body(stream=True))))
    assert status == 200
    assert headers["x-request-id"] in json.loads(http_chunks(rest)[-1][6:])["error"]["message"]
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"]


async def test_streams_do_not_wait_for_each_other(serve: Serve) -> None:
    """Twenty streams at once each get their own whole answer."""
    gateway = await serve(FakePool(answer=lambda _name, _task: said("a b c d")))
    answers = await asyncio.gather(*(gateway.raw(post(chat_body(stream=True))) for _ in range(20)))
    assert all(len(http_chunks(split(answer)[2])) == 7 for answer in answers)

"""Transcriptions over HTTP, on a pool that plays scripts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import FormData, MultipartWriter

from modeld.errors import BadRequest
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import Event, Segment, Task, TranscribeTask, Transcript, Usage
from modeld.supervisor.states import Status
from tests.component.gateway.served import Serve
from tests.fakes.pool import Answer, FakePool, model

PATH = "/v1/audio/transcriptions"
TRANSLATE = "/v1/audio/translations"
SAID: list[Event] = [Segment(0, 0, 0.0, 1.5, " Guten Tag."), Transcript("german", 1.5), Usage(1500, 4)]


def ears(name: str = "ears", *capabilities: str, **more: Any) -> Status:
    """Return the snapshot of a loaded model that transcribes."""
    facts = Facts(loader="whispercpp", device="cpu", capabilities=capabilities or ("transcription",))
    return model(name, usecase="transcription", facts=facts, **more)


def listening(*models: Status) -> FakePool:
    """Return a pool that always hears the same."""

    def answer(_name: str, _task: Task) -> list[Answer]:
        return [[event] for event in SAID] + [None]

    pool = FakePool.of(*(models or (ears(),)))
    pool.answer = answer
    return pool


def form(
    *, data: bytes | None = b"sound", filename: str = "a.wav", file_first: bool = False, **fields: str
) -> FormData:
    """Return a form; the file comes last as SDKs send it, or first."""
    made = FormData(default_to_multipart=True)
    if data is not None and file_first:
        made.add_field("file", data, filename=filename)
    for name, value in {"model": "ears", **fields}.items():
        made.add_field(name.replace("BRACKETS", "[]"), value)
    if data is not None and not file_first:
        made.add_field("file", data, filename=filename)
    return made


def task_of(pool: FakePool) -> TranscribeTask:
    """Return the task of the last call."""
    task = pool.calls[-1].task
    assert isinstance(task, TranscribeTask)
    return task


@pytest.mark.parametrize("file_first", [True, False])
async def test_parts_come_in_any_order_and_the_name_says_nothing(serve: Serve, file_first: bool) -> None:
    """A file before or after the fields, with any name, is the recording, byte by byte."""
    pool = listening()
    served = await serve(pool)
    recording = bytes(range(256)) * 1000
    sent = form(data=recording, filename="録音.txt", file_first=file_first, language="de")
    response, body = await served.ask("POST", PATH, data=sent)
    assert response.status == 200
    assert body == {"text": "Guten Tag.", "usage": {"type": "duration", "seconds": 1.5}}
    assert task_of(pool).media == recording
    assert task_of(pool).language == "de"


@pytest.mark.parametrize("name", ["timestamp_granularitiesBRACKETS", "timestamp_granularities"])
async def test_granularities_with_and_without_brackets(serve: Serve, name: str) -> None:
    """Both spellings of the list are read: SDKs send brackets, people do not."""
    pool = listening()
    served = await serve(pool)
    fields: dict[str, Any] = {"response_format": "verbose_json", name: "word"}
    response, body = await served.ask("POST", PATH, data=form(**fields))
    assert response.status == 200
    assert task_of(pool).words
    assert "words" in body


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        ("json", "application/json"),
        ("verbose_json", "application/json"),
        ("text", "text/plain"),
        ("srt", "application/x-subrip"),
        ("vtt", "text/vtt"),
    ],
)
async def test_each_format_has_its_content_type(serve: Serve, wanted: str, kind: str) -> None:
    """What the header says is what the body is, never JSON in a text's place."""
    served = await serve(listening())
    async with served.http.post(served.url + PATH, data=form(response_format=wanted)) as response:
        text = await response.text()
        assert response.status == 200
        assert response.content_type == kind
        assert "Guten Tag." in text
        assert text.startswith("{") == (kind == "application/json")
        assert response.charset in ("utf-8", None)


async def test_a_stream_is_sse_with_keep_alives_while_it_waits(serve: Serve) -> None:
    """stream=true sends comments while nothing is heard, then a delta for each segment, then done."""
    pool = listening()
    pool.answer = lambda _name, _task: []
    served = await serve(pool, keepalive_interval=0.01)
    async with served.http.post(served.url + PATH, data=form(stream="true")) as response:
        assert response.content_type == "text/event-stream"
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        pool.streams[0].feed(*([event] for event in SAID), None)
        lines = (await response.read()).decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert [event["type"] for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[-1]["text"] == "Guten Tag."


async def test_a_client_that_leaves_cancels_the_call(serve: Serve) -> None:
    """Closing the connection while the engine listens ends the call."""
    pool = listening()
    pool.answer = lambda _name, _task: []
    served = await serve(pool)
    asking = asyncio.ensure_future(served.ask("POST", PATH, data=form()))
    await pool.opened.wait()
    await pool.streams[0].waiting.wait()
    asking.cancel()
    async with asyncio.timeout(60):
        await pool.streams[0].closed.wait()
    assert pool.streams[0].cancelled


async def test_the_named_gateway_has_both_routes(serve: Serve) -> None:
    """Under /NAME/v1 the same routes reach that gateway's models."""
    pool = listening(ears("ears", "transcription", "translation", gateway="lab"))
    served = await serve(pool)
    for path in (PATH, TRANSLATE):
        response, body = await served.ask("POST", f"/lab{path}", data=form())
        assert response.status == 200
        assert body["text"] == "Guten Tag."
    assert task_of(pool).translate
    response, _ = await served.ask("POST", PATH, data=form())
    assert response.status == 404


@pytest.mark.parametrize(
    ("sent", "param", "code"),
    [
        ({"data": None}, "file", "missing_required_parameter"),
        ({"data": b""}, "file", "invalid_value"),
        ({"model": ""}, "model", "missing_required_parameter"),
        ({"response_format": "pdf"}, "response_format", "invalid_value"),
        ({"timestamp_granularitiesBRACKETS": "word"}, "timestamp_granularities", "invalid_value"),
    ],
)
async def test_a_wrong_form_is_a_400_that_names_the_field(
    serve: Serve, sent: dict[str, Any], param: str, code: str
) -> None:
    """No call is opened for a form that cannot work."""
    pool = listening()
    served = await serve(pool)
    response, body = await served.ask("POST", PATH, data=form(**sent))
    assert response.status == 400
    assert (body["error"]["param"], body["error"]["code"]) == (param, code)
    assert pool.calls == []


async def test_wrong_models_are_told_what_they_are(serve: Serve) -> None:
    """An unknown model is a 404; one that does something else is a 400 that says what it does."""
    pool = listening(model("tiny"), ears())
    served = await serve(pool)
    response, body = await served.ask("POST", PATH, data=form(model="nobody"))
    assert (response.status, body["error"]["code"]) == (404, "model_not_found")
    response, body = await served.ask("POST", PATH, data=form(model="tiny"))
    assert (response.status, body["error"]["code"]) == (400, "unsupported_task")
    assert "/v1/chat/completions" in body["error"]["message"]
    response, body = await served.ask("POST", TRANSLATE, data=form())
    assert (response.status, body["error"]["code"]) == (400, "unsupported_task")
    assert "it can do: transcription" in body["error"]["message"]
    assert pool.calls == []


async def test_a_bad_recording_is_the_callers_fault(serve: Serve) -> None:
    """What the worker says of the file reaches the caller as a 400 with its code."""
    pool = listening()
    pool.answer = lambda _name, _task: [BadRequest("it is a web page", code="invalid_audio", param="file")]
    served = await serve(pool)
    for stream in ("false", "true"):
        response, body = await served.ask("POST", PATH, data=form(stream=stream))
        assert response.status == 400
        assert body["error"]["code"] == "invalid_audio"


async def test_too_large_is_refused_before_all_is_read(serve: Serve) -> None:
    """A body over the limit is a 413: by its announcement, and chunked when it has grown too large."""
    pool = listening()
    served = await serve(pool, max_request_body=50_000)
    response, body = await served.ask("POST", PATH, data=form(data=b"x" * 60_000))
    assert (response.status, body["error"]["code"]) == (413, "request_too_large")
    reader, writer = await served.connect()
    try:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=B\r\n\r\n".encode())
        start = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for piece in (start, *([b"x" * 20_000] * 10)):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        # The body is not over, and the answer comes all the same.
        async with asyncio.timeout(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    finally:
        writer.close()
        await writer.wait_closed()
    assert pool.calls == []


@pytest.mark.parametrize(
    ("kind", "raw", "status"),
    [
        ("application/json", b"{}", 415),
        ("multipart/form-data", b"x", 400),
        ("multipart/form-data; boundary=B", b"nothing of a form", 400),
        ("multipart/form-data; boundary=B", b"--B\r\n\r\n", 400),
        (
            "multipart/form-data; boundary=B",
            b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nea',
            400,
        ),
        ("multipart/form-data; boundary=B", b"--B--\r\n", 400),
        (
            "multipart/form-data; boundary=B",
            b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\xfe\r\n--B--\r\n',
            400,
        ),
        ("multipart/form-data; boundary=B", b"", 400),
    ],
)
async def test_broken_forms_are_the_callers_fault(serve: Serve, kind: str, raw: bytes, status: int) -> None:
    """No form, however broken, is a 5xx."""
    served = await serve(listening())
    response, body = await served.ask("POST", PATH, data=raw, headers={"content-type": kind})
    assert response.status == status
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_form_inside_a_form_is_refused(serve: Serve) -> None:
    """Nested forms are not read."""
    served = await serve(listening())
    with MultipartWriter("form-data") as outer:
        with MultipartWriter("mixed") as inner:
            inner.append("x")
        outer.append(inner)
    response, body = await served.ask("POST", PATH, data=outer)
    assert response.status == 400
    assert body["error"]["code"] == "invalid_body"

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from modeld.errors import BadRequest, EngineError, ModeldError, ModelFailed, WorkerDied
from modeld.gateway.settings import MediaSettings
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import Audio, SpeechTask, Task, Usage
from modeld.supervisor.states import State
from tests.component.gateway.served import Serve, post
from tests.fakes.pool import Answer, FakePool, model

SPEECH = "/v1/audio/speech"
VOICES = "/v1/audio/voices"
FACTS = Facts(loader="sherpa_onnx", device="cpu", capabilities=("speech",), voices=("ann", "bob"))
USAGE = Usage(prompt_tokens=6, completion_tokens=900)
SPOKEN: list[Answer] = [[Audio(b"one")], [Audio(b"two"), USAGE], None]


def _pool(script: list[Answer] | ModeldError | None = None, **more: Any) -> FakePool:
    pool = FakePool.of(
        model("kokoro", usecase="tts", facts=FACTS),
        model("tiny"),
        model("kokoro", usecase="tts", facts=FACTS, gateway="lab"),
    )
    answer = SPOKEN if script is None else script
    pool.answer = lambda _name, _task: list(answer) if isinstance(answer, list) else answer
    return pool


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "kokoro", "input": "Hello.", "voice": "ann", **fields}


@pytest.mark.parametrize(
    ("form", "content_type"),
    [
        (None, "audio/mpeg"),
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("aac", "audio/aac"),
        ("flac", "audio/flac"),
        ("wav", "audio/wav"),
        ("pcm", "audio/pcm"),
    ],
)
async def test_the_bytes_come_under_their_true_type(
    serve: Serve, form: str | None, content_type: str
) -> None:
    """The answer is the joined pieces, typed by the format asked for, mp3 when none is."""
    gateway = await serve(_pool())
    async with gateway.http.post(gateway.url + SPEECH, json=_body(response_format=form)) as response:
        assert response.status == 200
        assert response.headers["content-type"] == content_type
        assert response.headers["x-request-id"].startswith("req_")
        assert await response.read() == b"onetwo"
    task: Task = gateway.pool.calls[-1].task
    assert task == SpeechTask(text="Hello.", voice="ann", format=form or "mp3")  # type: ignore[arg-type]
    assert gateway.value("modeld_requests_total", model="kokoro", endpoint=SPEECH, status="200") == 1


async def test_a_piece_is_sent_when_it_is_there(serve: Serve) -> None:
    """The first piece reaches the client while the engine is still speaking."""
    pool = _pool([[Audio(b"one")]])
    gateway = await serve(pool)
    async with gateway.http.post(gateway.url + SPEECH, json=_body()) as response:
        assert await asyncio.wait_for(response.content.readany(), 60) == b"one"
        pool.streams[0].feed([Audio(b"two")], [USAGE], None)
        assert await response.read() == b"two"


async def test_events_carry_the_audio_and_the_usage(serve: Serve) -> None:
    """stream_format sse: a delta for each piece in base64, then done with what it cost."""
    gateway = await serve(_pool())
    async with gateway.http.post(gateway.url + SPEECH, json=_body(stream_format="sse")) as response:
        assert response.content_type == "text/event-stream"
        lines = [line for line in (await response.text()).split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [delta["type"] for delta in deltas] == ["speech.audio.delta"] * 2
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == b"onetwo"
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 6, "output_tokens": 900, "total_tokens": 906},
    }


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("no such voice", code="unknown_voice", param="voice"), 400),
        (ModelFailed("it does not load"), 503),
        (WorkerDied("killed"), 502),
    ],
)
async def test_an_error_before_the_first_byte_has_its_true_status(
    serve: Serve, error: ModeldError, status: int, stream_format: str
) -> None:
    """Whether on opening or later, nothing is sent before the first audio, so the error is the answer."""
    later: list[Answer] = [[], error]
    for script in (error, later):
        gateway = await serve(_pool(script))
        response, answer = await gateway.ask("POST", SPEECH, json=_body(stream_format=stream_format))
        assert response.status == status
        assert answer["error"]["message"] == error.message
        assert answer["error"]["param"] == error.param


@pytest.mark.parametrize(
    "broken",
    [
        [[Audio(b"one")], WorkerDied("killed")],
        [[Audio(b"one")], None],  # no Usage: the engine went without finishing
    ],
    ids=["error", "unfinished"],
)
async def test_a_failure_in_the_middle_breaks_the_connection_off(serve: Serve, broken: list[Answer]) -> None:
    """Half a file is not passed for a whole one: the body has no end, and the request counts as failed."""
    gateway = await serve(_pool(broken))
    async with gateway.http.post(gateway.url + SPEECH, json=_body()) as response:
        assert response.status == 200
        assert await response.content.readany() == b"one"
        with pytest.raises(ClientPayloadError):
            await response.read()
    raw = await gateway.raw(post(json.dumps(_body()), SPEECH))
    assert b"one" in raw
    assert not raw.endswith(b"0\r\n\r\n")
    assert gateway.value("modeld_requests_total", model="kokoro", endpoint=SPEECH, status="502") == 2


async def test_before_http_1_1_a_failure_is_a_reset(serve: Serve) -> None:
    """There the end of the connection is the end of the body, so only a reset says that it is not whole."""
    gateway = await serve(_pool([[Audio(b"one")], WorkerDied("killed")]))
    request = post(json.dumps(_body()), SPEECH).replace(b"HTTP/1.1", b"HTTP/1.0")
    with pytest.raises(ConnectionResetError):
        await gateway.raw(request)


async def test_a_client_that_reads_nothing_is_cut_off(serve: Serve) -> None:
    """It would hold the engine for ever; past the stall limit its call is cancelled."""
    pool = _pool([[Audio(bytes(1 << 20))] for _ in range(64)])
    gateway = await serve(pool, client_stall_timeout=0.2)
    _, writer = await gateway.connect()
    writer.write(post(json.dumps(_body()), SPEECH))
    await pool.opened.wait()
    await asyncio.wait_for(pool.streams[0].closed.wait(), 60)
    writer.transport.abort()
    assert pool.streams[0].cancelled


async def test_no_audio_at_all_is_an_error(serve: Serve) -> None:
    """An empty file would be a lie."""
    gateway = await serve(_pool([[USAGE], None]))
    response, answer = await gateway.ask("POST", SPEECH, json=_body())
    assert (response.status, answer["error"]["code"]) == (502, "incomplete_answer")


async def test_a_failure_in_the_middle_of_events_is_an_event(serve: Serve) -> None:
    """With server-sent events the error is told, and no [DONE] follows."""
    gateway = await serve(_pool([[Audio(b"one")], EngineError("it broke")]))
    async with gateway.http.post(gateway.url + SPEECH, json=_body(stream_format="sse")) as response:
        text = await response.text()
    assert "it broke" in text
    assert "[DONE]" not in text


async def test_leaving_cancels(serve: Serve) -> None:
    """A client that goes away in the middle frees the engine, and is counted."""
    pool = _pool([[Audio(b"one")]])
    gateway = await serve(pool)
    reader, writer = await gateway.connect()
    writer.write(post(json.dumps(_body()), SPEECH))
    await reader.readuntil(b"one")
    writer.close()
    await asyncio.wait_for(pool.streams[0].closed.wait(), 60)
    assert pool.streams[0].cancelled
    await gateway.ask("GET", "/health")
    assert gateway.value("modeld_client_disconnects_total", model="kokoro", endpoint=SPEECH) == 1


async def test_a_chat_model_does_not_speak(serve: Serve) -> None:
    """The refusal says what the model is for, and nothing is opened."""
    gateway = await serve(_pool())
    response, answer = await gateway.ask("POST", SPEECH, json=_body(model="tiny"))
    assert response.status == 400
    assert "/v1/chat/completions" in answer["error"]["message"]
    assert answer["error"]["param"] == "model"
    response, answer = await gateway.ask("POST", SPEECH, json=_body(model="nobody"))
    assert (response.status, answer["error"]["code"]) == (404, "model_not_found")
    assert gateway.pool.calls == []


async def test_the_longest_text_is_the_configurations(serve: Serve) -> None:
    """What is longer is refused before a model is asked, with the limit's name."""
    gateway = await serve(_pool(), media=MediaSettings(speech_characters=6))
    response, answer = await gateway.ask("POST", SPEECH, json=_body(input="Hello!!"))
    assert response.status == 400
    error = answer["error"]
    assert (error["code"], error["param"]) == ("input_too_long", "input")
    assert "it has 7 characters, the limit is 6 (media.speech_characters" in error["message"]
    assert gateway.pool.calls == []
    response, _ = await gateway.ask("POST", SPEECH, json=_body(input="Hello!"))
    assert response.status == 200


async def test_it_is_at_every_gateway(serve: Serve) -> None:
    """A named gateway has both routes, and its own models behind them."""
    gateway = await serve(_pool())
    async with gateway.http.post(f"{gateway.url}/lab{SPEECH}", json=_body()) as response:
        assert await response.read() == b"onetwo"
    assert gateway.pool.calls[-1].model == "lab/kokoro"
    _, answer = await gateway.ask("GET", f"/lab{VOICES}?model=kokoro")
    assert [voice["id"] for voice in answer["voices"]] == ["ann", "bob"]


async def test_the_voices_of_a_model(serve: Serve) -> None:
    """They come in the model's order, with id and name; without a model, those of all that are loaded."""
    gateway = await serve(_pool())
    expected = {
        "voices": [
            {"id": "ann", "name": "ann", "model": "kokoro"},
            {"id": "bob", "name": "bob", "model": "kokoro"},
        ]
    }
    for query in ("?model=kokoro", "", "?model="):
        response, answer = await gateway.ask("GET", VOICES + query)
        assert (response.status, answer) == (200, expected)


async def test_the_voices_of_a_model_that_is_not_loaded(serve: Serve) -> None:
    """Those of an earlier load are told; without one, the model is loaded as by any request."""
    remembered = model("old", usecase="tts", state=State.STOPPED, facts=FACTS)
    pool = FakePool.of(remembered, model("new", usecase="tts", state=State.STOPPED))

    def load(name: str, task: Task) -> list[Answer] | ModeldError:
        pool.models[name] = model("new", usecase="tts", facts=FACTS)
        return BadRequest("a model of the loader sherpa_onnx does not do this", code="unsupported_task")

    pool.answer = load
    gateway = await serve(pool)
    _, answer = await gateway.ask("GET", VOICES + "?model=old")
    assert [voice["id"] for voice in answer["voices"]] == ["ann", "bob"]
    assert pool.calls == []
    response, answer = await gateway.ask("GET", VOICES + "?model=new")
    assert (response.status, [voice["id"] for voice in answer["voices"]]) == (200, ["ann", "bob"])
    assert [call.model for call in pool.calls] == ["new"]


async def test_voices_that_nobody_can_tell(serve: Serve) -> None:
    """A chat model has none; a model that cannot load is refused with its reason, as for speech; without a
    name, only what is known is listed, and nothing is loaded.
    """
    failed = model("kokoro", usecase="tts", state=State.FAILED)
    pool = FakePool.of(model("tiny"), failed)
    pool.answer = lambda _name, _task: ModelFailed("its folder is not there")
    gateway = await serve(pool)
    response, answer = await gateway.ask("GET", VOICES + "?model=tiny")
    assert (response.status, answer["error"]["param"]) == (400, "model")
    response, answer = await gateway.ask("GET", VOICES)
    assert (response.status, answer) == (200, {"voices": []})
    assert pool.calls == []
    response, answer = await gateway.ask("GET", VOICES + "?model=kokoro")
    assert (response.status, answer["error"]["code"]) == (503, "model_failed")
    assert answer["error"]["message"] == "its folder is not there"

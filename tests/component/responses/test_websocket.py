"""/v1/responses as a WebSocket: responses, lanes, warm-ups, frames that are wrong. Real sockets and store."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from openai.types.responses.response_steer_failed_event import ResponseSteerFailedEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent, ResponseWsError
from pydantic import TypeAdapter

from modeld.errors import BadRequest, EngineError, ModelUnavailable, StoreFailed
from modeld.protocol.tasks import ChatTask, Task, Text
from modeld.store.responses import Responses
from tests.component.responses.served import Served, served
from tests.component.responses.sockets import TERMINAL, Fed, answer, connected, scripted, told
from tests.fakes.pool import Answer, FakePool, last_chat, model, said

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve the room with a model that says hello."""
    async with served(tmp_path) as started:
        yield started


def texts(task: ChatTask) -> list[str]:
    """Return what the messages of a task say."""
    return [
        turn.content if isinstance(turn.content, str) else _joined(turn.content) for turn in task.messages
    ]


def _joined(parts: tuple[Any, ...] | None) -> str:
    return "".join(part.text for part in parts or ())


async def test_a_response(api: Served) -> None:
    """A create is answered by its events as bare text frames, of the SDK's types, in order, and no more."""
    async with connected(api) as client:
        events = await client.turn("hi")
        await client.send("{")
        assert (await client.event())["type"] == "error"  # nothing came in between, such as an end marker
    for event in events:
        EVENT.validate_python(event, strict=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    assert not any("stream_id" in event for event in events)


async def test_what_is_stored_is_there_when_it_is_told(api: Served) -> None:
    """When the terminal event comes, the response can be fetched over HTTP, and it is the same."""
    async with connected(api) as client:
        response = await client.whole("hi")
        assert await api.ask("GET", f"/v1/responses/{response['id']}") == (200, response)
        secret = await client.whole("hi", store=False)
        status, _ = await api.ask("GET", f"/v1/responses/{secret['id']}")
        assert status == 404


async def test_every_event_names_its_lane(api: Served) -> None:
    """A lane's name is in each of its events, and the event is the one that it would be without."""
    async with connected(api) as client:
        plain = await client.turn("hi")
        named = await client.turn("hi", stream_id="a.b-c_1")
        error = await client.refused(model="nope", stream_id="a.b-c_1")
    for event in named:
        EVENT.validate_python(event, strict=True)
    assert {event.pop("stream_id") for event in named} == {"a.b-c_1"}
    assert [event["type"] for event in named] == [event["type"] for event in plain]
    assert error["stream_id"] == "a.b-c_1"
    assert told(error) == (404, "model_not_found", "model")


async def test_a_lane_is_a_queue(tmp_path: Path) -> None:
    """Requests of a lane follow one another; another lane's do not wait for them."""
    pool = Fed()
    async with served(tmp_path, pool) as api, connected(api) as client:
        for text, lane in (("1", "a"), ("2", "a"), ("3", "b"), ("4", None)):
            await client.create(text, **({"stream_id": lane} if lane else {}))
        for at in range(3):
            await pool.stream(at)
        assert [texts(call.task)[-1] for call in pool.calls] == ["1", "3", "4"]  # type: ignore[arg-type]
        await pool.finish(0)
        events = await client.until_over()
        assert {event["stream_id"] for event in events} == {"a"}
        await pool.stream(3)
        assert texts(last_chat(pool))[-1] == "2"
        for at in (1, 2, 3):
            await pool.finish(at)
            await client.until_over()


async def test_sixteen_run_at_once(tmp_path: Path) -> None:
    """Of twenty requests in twenty lanes sixteen run, the others wait, and none is refused."""
    pool = Fed()
    async with served(tmp_path, pool) as api, connected(api) as client:
        for number in range(20):
            await client.create("hi", stream_id=f"lane{number}")
        await pool.stream(15)
        await client.send("{")  # whatever was sent before this has been read when it is answered
        assert told(await client.event())[1] == "invalid_json"
        assert len(pool.calls) == 16
        for at in range(20):
            await pool.finish(at)
            events = await client.until_over()
            assert events[-1]["type"] == "response.completed"
            assert len(pool.calls) - at - 1 <= 16


async def test_thirty_two_names(api: Served) -> None:
    """The thirty-third name is refused and echoed; the known ones, and no name, go on."""
    async with connected(api) as client:
        for number in range(32):
            await client.whole(stream_id=f"lane{number}", store=False)
        error = await client.refused(stream_id="one-more")
        assert told(error) == (400, "websocket_stream_limit_reached", "stream_id")
        assert error["stream_id"] == "one-more"
        assert "maximum number of distinct stream IDs (32)" in error["error"]["message"]
        await client.whole(stream_id="lane7", store=False)
        await client.whole(store=False)


async def test_fifty_at_once(api: Served) -> None:
    """Fifty requests that are sent without waiting are answered one after the other, in their order."""
    async with connected(api) as client:
        for number in range(50):
            await client.create("hi", metadata={"number": str(number)}, store=False)
        numbers = [(await client.until_over())[-1]["response"]["metadata"]["number"] for _ in range(50)]
    assert numbers == [str(number) for number in range(50)]


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    """Requests that together are over the size of one body are refused, with the reason; the others run."""
    pool = Fed()
    async with (
        served(tmp_path, pool, max_request_body=4096) as api,
        connected(api) as client,
    ):
        await client.create("first")
        await pool.stream(0)
        await client.create("x" * 3000)
        await client.create("y" * 3000)
        error = await client.event()
        assert told(error) == (429, "websocket_queue_full", None)
        assert "retry-after" in error["error"]["headers"]
        for at in range(2):
            await pool.finish(at)
            assert (await client.until_over())[-1]["type"] == "response.completed"


# --- warm-ups -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}, "generate": True}]
)
@pytest.mark.parametrize("store", [True, False])
async def test_a_warm_up(api: Served, how: dict[str, Any], store: bool) -> None:
    """The model reads the prompt and says nothing; what it read can be continued."""
    async with connected(api) as client:
        events = await client.turn("Remember the fox.", store=store, **how)
        assert last_chat(api.pool).sampling.max_tokens == 1
        kinds = [event["type"] for event in events]
        assert kinds == ["response.created", "response.in_progress", "response.completed"]
        warm = events[-1]["response"]
        assert (warm["output"], warm["usage"]["input_tokens"], warm["usage"]["output_tokens"]) == ([], 5, 0)
        assert warm["max_output_tokens"] is None
        status, _ = await api.ask("GET", f"/v1/responses/{warm['id']}")
        assert status == (200 if store else 404)
        after = await client.whole("What?", previous_response_id=warm["id"], store=store)
        assert after["output"]
        assert texts(last_chat(api.pool)) == ["Remember the fox.", "What?"]


async def test_a_warm_up_that_fails(tmp_path: Path) -> None:
    """A model that cannot be loaded is told at once, as an error with its status."""
    pool = scripted(ModelUnavailable("no memory"))
    async with served(tmp_path, pool) as api, connected(api) as client:
        assert told(await client.refused(generate=False))[:2] == (503, "model_unavailable")


@pytest.mark.parametrize("how", [{"input": []}, {"input": None}, {"input": [], "tools": [ADD]}], ids=str)
async def test_a_warm_up_of_nothing(api: Served, how: dict[str, Any]) -> None:
    """A chain may begin before there is anything to read; the model is left alone."""
    async with connected(api) as client:
        warm = await client.whole(**how, store=False, generate=False)
        assert not api.pool.calls
        await client.whole("Now.", store=False, previous_response_id=warm["id"])
        assert texts(last_chat(api.pool)) == ["Now."]
        assert told(await client.refused(**how, previous_response_id=None))[1] == "missing_required_parameter"


async def test_a_warm_up_that_an_engine_cannot_read(tmp_path: Path) -> None:
    """A prompt that is only a beginning is no failure; one that is too long is, unless it will be cut."""
    long = BadRequest("too long", code="context_length_exceeded", param="messages")
    pool = scripted(BadRequest("roles must alternate"), long, long, answer("ok"))
    async with served(tmp_path, pool) as api, connected(api) as client:
        for fields in ({"instructions": "Be brief.", "input": []}, {"truncation": "auto"}):
            warm = await client.whole(**fields, generate=False, store=False)
            assert warm["usage"]["total_tokens"] == 0
        assert told(await client.refused(generate=False)) == (400, "context_length_exceeded", "input")
        await client.whole()


async def test_a_warm_up_that_takes_too_long(tmp_path: Path) -> None:
    """The limit on a request's time holds for a warm-up."""
    pool = Fed()
    async with served(tmp_path, pool, request_timeout=0.5) as api, connected(api) as client:
        assert told(await client.refused(generate=False)) == (504, "request_timeout", None)
        assert all(stream.cancelled for stream in pool.streams)


# --- what a create may say ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False, None])
async def test_it_streams_whatever_is_said(api: Served, stream: bool | None) -> None:
    """`stream` and its options mean nothing here; `background` false or null is what is there anyway."""
    async with connected(api) as client:
        await client.whole(stream=stream, stream_options={"include_obfuscation": False}, background=False)


async def test_no_background(api: Served) -> None:
    """A response that is to outlive its socket is refused rather than cut off."""
    async with connected(api) as client:
        assert told(await client.refused(background=True)) == (400, "unsupported_parameter", "background")
        await client.whole()


async def test_refusals_are_those_of_http(api: Served) -> None:
    """What HTTP refuses is refused with the same status, code, param and words, and the socket goes on."""
    async with connected(api) as client:
        for fields in (
            {"model": "nope"},
            {"temperature": 9},
            {"input": None},
            {"input": [{"role": "user", "content": [{"type": "input_video"}]}]},
            {"tools": [{"type": "web_search"}]},
            {"previous_response_id": "resp_none"},
            {"conversation": "conv_none"},
            {"previous_response_id": "resp_none", "conversation": "conv_none"},
        ):
            error = await client.refused(**fields)
            body = {"model": "tiny", "input": "hi", **fields}
            status, answer = await api.ask("POST", "/v1/responses", json=body)
            assert (error["status"], error["error"]) == (status, answer["error"])
            ResponseWsError.model_validate(error, strict=True)
        await client.whole()


async def test_refusals_keep_their_place(tmp_path: Path) -> None:
    """A bad request behind a running one of its lane is refused when that is over, not in its midst."""
    pool = Fed()
    async with served(tmp_path, pool) as api, connected(api) as client:
        await client.create()
        await client.create(temperature=9)
        stream = await pool.stream(0)
        stream.feed([Text("a")])
        await pool.finish(0)
        assert (await client.until_over())[-1]["type"] == "response.completed"
        assert told(await client.event())[2] == "temperature"


async def test_a_failure_on_the_way(tmp_path: Path) -> None:
    """An engine that dies ends its response as failed, with the reason before it, and the socket goes on."""
    pool = scripted([[Text("So")], EngineError("the wheels came off")], said())
    async with served(tmp_path, pool) as api, connected(api) as client:
        events = await client.turn(stream_id="a")
        assert events[-1]["type"] == "response.failed"
        [error] = [event for event in events if event["type"] == "error"]
        assert error["error"]["message"] == "the wheels came off"
        assert {event["stream_id"] for event in events} == {"a"}
        await client.whole(stream_id="a")


@pytest.mark.parametrize("bug", [ZeroDivisionError("secret"), ConnectionResetError("secret")], ids=repr)
async def test_a_bug(tmp_path: Path, caplog: pytest.LogCaptureFixture, bug: Exception) -> None:
    """A bug is answered without giving it away, logged, counted, and the socket goes on.

    A connection that is lost elsewhere is not taken for the client's.
    """
    pool = scripted(bug, said())
    async with served(tmp_path, pool) as api, connected(api) as client:
        error = await client.refused()
        assert told(error) == (500, "internal_error", None)
        assert "secret" not in json.dumps(error)
        assert "bug in a response" in caplog.text
        assert api.value("modeld_internal_errors_total", endpoint="/v1/responses") == 1
        await client.whole()


async def test_a_store_that_fails(
    api: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be stored has failed: no completed event is sent, and nothing can go on from it."""

    async def full(*args: object) -> bool:
        raise StoreFailed("the disk is full")

    async with connected(api) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Responses, "finish", full)
            events = await client.turn()
        assert events[-1]["type"] == "response.failed"
        assert "response.completed" not in [event["type"] for event in events]
        id = events[-1]["response"]["id"]
        assert told(await client.refused(previous_response_id=id))[1] == "previous_response_not_found"
        await client.whole()
    assert "cannot be stored" in caplog.text


# --- frames that are no create ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", (400, "invalid_json", None)),
        ("", (400, "invalid_json", None)),
        ("[]", (400, "invalid_json", None)),
        ("[" * 100_000, (400, "invalid_json", None)),
        ('{"a":' * 50_000, (400, "invalid_json", None)),
        ("{}", (400, "unsupported_event_type", "type")),
        ('{"type":7}', (400, "unsupported_event_type", "type")),
        ('{"type":"response.sing"}', (400, "unsupported_event_type", "type")),
        ('{"type":"response.create","stream_id":""}', (400, "invalid_stream_id", "stream_id")),
        ('{"type":"response.create","stream_id":"a b"}', (400, "invalid_stream_id", "stream_id")),
        ('{"type":"response.create","stream_id":7}', (400, "invalid_stream_id", "stream_id")),
        ('{"type":"response.create"}', (400, "missing_required_parameter", "model")),
        ('{"type":"response.create","model":[null,null]}', (400, "invalid_type", "model")),
        (b"{}", (400, "unsupported_frame_type", None)),
        (b"\xff\x00", (400, "unsupported_frame_type", None)),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_nonsense(api: Served, frame: str | bytes, expected: tuple[int, str, str | None]) -> None:
    """What makes no sense is answered by an error that says why, and the socket goes on."""
    async with connected(api) as client:
        await (client.ws.send_bytes(frame) if isinstance(frame, bytes) else client.send(frame))
        error = await client.event()
        assert told(error) == expected
        assert "stream_id" not in error
        ResponseWsError.model_validate(error, strict=True)
        await client.whole()


async def test_text_that_is_none(api: Served) -> None:
    """A text frame that is not UTF-8 is refused as no JSON."""
    async with connected(api) as client:
        from aiohttp import WSMsgType

        await client.ws.send_frame(b'{"type":"\xff"}', WSMsgType.TEXT)
        assert told(await client.event())[1] == "invalid_json"
        await client.whole()


async def test_a_frame_over_the_limit(tmp_path: Path) -> None:
    """A frame as large as the limit is read; one byte more is told, and ends the socket with 1009."""
    async with served(tmp_path, max_request_body=2000) as api, connected(api) as client:
        head = '{"type":"response.create","model":"tiny","input":"'
        await client.send(head + "x" * (2000 - len(head) - 2) + '"}')
        assert (await client.until_over())[-1]["type"] == "response.completed"
        await client.send(head + "x" * (2001 - len(head) - 2) + '"}')
        error = await client.event()
        assert told(error) == (413, "request_too_large", None)
        assert "2000 bytes" in error["error"]["message"]
        assert await client.closed() == 1009


async def test_a_large_frame_in_pieces(tmp_path: Path) -> None:
    """The limit holds for what comes in fragments, too, and nothing is kept beyond it."""
    async with served(tmp_path, max_request_body=2000) as api:
        reader, writer = await _raw(api)
        piece = b"x" * 900
        for at in range(3):
            opcode = 0x01 if at == 0 else 0x00
            writer.write(bytes([opcode, 0x80 | 126]) + len(piece).to_bytes(2, "big") + bytes(4) + piece)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        assert b"request_too_large" in answer
        assert (1009).to_bytes(2, "big") in answer


async def _raw(api: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a socket by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


async def test_steering(tmp_path: Path) -> None:
    """A response cannot be steered: the input comes back at once, and the response goes on."""
    pool = Fed()
    async with served(tmp_path, pool) as api, connected(api) as client:
        await client.create()
        stream = await pool.stream(0)
        stream.feed([Text("a")])
        id = (await client.event())["response"]["id"]
        while (await client.event())["type"] != "response.output_text.delta":
            pass
        await client.send({"type": "response.steer", "previous_response_id": id, "input": "Faster."})
        failed = await client.event()
        ResponseSteerFailedEvent.model_validate(failed, strict=True)
        assert failed["error"]["code"] == "steering_not_supported"
        assert failed["steer"] == {"previous_response_id": id, "input": "Faster."}
        await pool.finish(0)
        assert (await client.until_over())[-1]["type"] == "response.completed"


async def test_named_gateways(tmp_path: Path) -> None:
    """Each gateway has its socket, with its own models; there is none at a gateway that is not there."""
    pool = FakePool.of(model("tiny"), model("other", gateway="lab"))
    async with served(tmp_path, pool) as api:
        async with connected(api, "/lab/v1/responses") as client:
            assert told(await client.refused(model="tiny"))[:2] == (404, "model_not_found")
            await client.whole(model="other")
        assert pool.calls[-1].model == "lab/other"


@pytest.mark.parametrize("seed", range(3))
async def test_each_lane_is_told_all_in_order(tmp_path: Path, seed: int) -> None:
    """Whatever mixture is sent without waiting, each lane hears of each of its requests, once, in order.

    Good ones, bad ones, engines that die, warm-ups and chains; no lane sees a part of another's answer.
    """
    random = Random(seed)
    lanes = [None, "a", "b", "c"]
    expected: dict[str | None, list[tuple[str, str]]] = defaultdict(list)
    found: dict[str | None, list[tuple[str, str]]] = defaultdict(list)

    def play(model: str, task: Task) -> list[Answer]:
        assert isinstance(task, ChatTask)
        dies = texts(task)[-1].endswith("die")
        return [[Text("So")], EngineError("dead")] if dies else answer("ok")

    async with served(tmp_path, FakePool(answer=play)) as api, connected(api) as client:
        for number in range(60):
            lane, kind = random.choice(lanes), random.choice(["good", "bad", "die", "warm", "lost"])
            odd: dict[str, dict[str, Any]] = {
                "bad": {"temperature": 9},
                "warm": {"generate": False},
                "lost": {"previous_response_id": "resp_none"},
            }
            more = dict(odd.get(kind, {}))
            if lane is not None:
                more["stream_id"] = lane
            await client.create(kind, metadata={"number": str(number)}, store=random.random() < 0.5, **more)
            end = {"bad": "error", "lost": "error", "die": "response.failed"}.get(kind, "response.completed")
            expected[lane].append((end, "" if end == "error" else str(number)))
        open: dict[str | None, int] = {}
        for _ in range(60):
            over = False
            while not over:
                event = await client.event()
                lane, kind = event.get("stream_id"), event["type"]
                if kind == "error" and lane not in open:
                    found[lane].append((kind, ""))
                    over = True
                    continue
                assert event["sequence_number"] == open.get(lane, 0)
                open[lane] = event["sequence_number"] + 1
                if kind in TERMINAL:
                    found[lane].append((kind, event["response"]["metadata"]["number"]))
                    del open[lane]
                    over = True
        assert not open
    assert found == expected

from __future__ import annotations

import json

import pytest

from modeld.errors import EngineError, ModeldError, ModelFailed, ModelUnavailable, Overloaded, WorkerDied
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import ChatTask, CompletionTask, Finish, Text, Usage
from modeld.supervisor.states import State
from tests.component.gateway.served import CHAT, Serve
from tests.fakes.pool import FakePool, choices_of, last_chat, model, said
from tests.harness.pictures import data_url, png


async def test_an_answer_in_one_body(serve: Serve) -> None:
    """The body is the engine's text under the requested model's name, and the task reached the pool."""
    gateway = await serve()
    response, body = await gateway.chat(temperature=0.5)
    assert response.status == 200
    assert response.content_type == "application/json"
    assert body["model"] == "tiny"
    assert body["choices"][0]["message"]["content"] == "Hello."
    assert body["usage"]["total_tokens"] == 6
    assert last_chat(gateway.pool).sampling.temperature == 0.5
    assert gateway.pool.calls[-1].identity == "local"


async def test_every_answer_carries_its_id_and_its_time(serve: Serve) -> None:
    """x-request-id is ours and new each time, and openai-processing-ms a number, on success and on errors."""
    gateway = await serve()
    ids = set()
    for path in ("/health", "/v1/models", "/nope"):
        response, _ = await gateway.ask("GET", path, headers={"x-request-id": "theirs"})
        ids.add(response.headers["x-request-id"])
        assert int(response.headers["openai-processing-ms"]) >= 0
        assert "aiohttp" not in response.headers["server"]
    for stream in (False, True):
        response, _ = await gateway.chat(stream=stream)
        ids.add(response.headers["x-request-id"])
        assert int(response.headers["openai-processing-ms"]) >= 0
    assert len(ids) == 5
    assert all(request_id.startswith("req_") for request_id in ids)


async def test_unknown_models_and_uses(serve: Serve) -> None:
    """A name nobody configured is 404 with OpenAI's code; a model for another use is 400."""
    pool = FakePool(models={"tiny": model("tiny"), "ears": model("ears", usecase="transcription")})
    gateway = await serve(pool)
    response, body = await gateway.chat(model="gpt-9")
    assert (response.status, body["error"]["code"], body["error"]["param"]) == (
        404,
        "model_not_found",
        "model",
    )
    assert "/v1/models" in body["error"]["message"]
    response, body = await gateway.chat(model="Tiny")
    assert response.status == 404
    response, body = await gateway.chat(model="ears")
    assert (response.status, body["error"]["code"]) == (400, "unsupported_task")
    assert "transcription" in body["error"]["message"]
    assert pool.calls == []


REFUSALS: list[tuple[ModeldError, int, dict[str, str]]] = [
    (ModelFailed("no such file"), 503, {"x-should-retry": "false"}),
    (ModelUnavailable("stopped"), 503, {"retry-after": "2", "retry-after-ms": "2000"}),
    (Overloaded("full", retry_after=3), 429, {"retry-after": "3", "retry-after-ms": "3000"}),
    (EngineError("broken"), 502, {}),
]


@pytest.mark.parametrize(("error", "status", "headers"), REFUSALS, ids=lambda v: str(v)[:12])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_refusals_before_the_first_event_have_their_status(
    serve: Serve, error: ModeldError, status: int, headers: dict[str, str], stream: bool, late: bool
) -> None:
    """Refused on entering or while waiting, streamed or not: a true status and the envelope."""
    gateway = await serve(FakePool(answer=lambda _name, _task: [error] if late else error))
    response, body = await gateway.chat(stream=stream)
    assert response.status == status
    assert body["error"]["message"] == error.message
    assert body["error"]["code"] == error.code
    for name, value in headers.items():
        assert response.headers[name] == value
    assert gateway.value("modeld_requests_total", model="tiny", endpoint=CHAT, status=str(status)) == 1


async def test_a_worker_s_death_in_one_body(serve: Serve) -> None:
    """Without a stream nothing was sent yet, so the whole request gets the error."""
    pool = FakePool(answer=lambda _name, _task: [[Text("Hel")], WorkerDied("killed by signal 9")])
    response, body = await (await serve(pool)).chat()
    assert (response.status, body["error"]["code"]) == (502, "worker_died")


async def test_a_bug_is_logged_and_hidden(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets the request id, the log the traceback under the same id."""

    def broken(_name: str, _task: object) -> ModeldError:
        raise ZeroDivisionError("secret detail")

    gateway = await serve(FakePool(answer=broken))
    response, body = await gateway.chat()
    request_id = response.headers["x-request-id"]
    assert response.status == 500
    assert request_id in body["error"]["message"]
    assert "secret" not in json.dumps(body)
    records = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [getattr(record, "request", None) for record in records] == [request_id]
    assert records[0].exc_info is not None
    assert gateway.value("modeld_internal_errors_total", endpoint=CHAT) == 1


async def test_prompts_are_not_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Neither requests nor refusals put what people write, nor keys, into the log, down to debug."""
    caplog.set_level("DEBUG", "modeld")
    gateway = await serve(api_keys=("CANARY-KEY",))
    key = {"authorization": "Bearer CANARY-KEY"}
    messages = [{"role": "user", "content": "CANARY"}]
    for fields in ({}, {"temperature": "CANARY"}, {"stream": True}):
        await gateway.ask("POST", CHAT, json={"model": "tiny", "messages": messages, **fields}, headers=key)
    await gateway.ask("GET", "/v1/models", headers={"authorization": "Bearer CANARY-WRONG"})
    lines = [
        f"{record.getMessage()} {vars(record)}"
        for record in caplog.records
        if record.name.startswith("modeld")
    ]
    assert len(lines) >= 4
    assert not [line for line in lines if "CANARY" in line]


async def test_their_request_id_is_logged_when_it_is_sane(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's own id can be found in the log; one made to break lines cannot get in."""
    caplog.set_level("INFO", "modeld")
    gateway = await serve()
    for theirs in ("abc-1", "x" * 500):
        await gateway.ask("GET", "/v1/models", headers={"x-request-id": theirs})
    logged = [
        getattr(record, "client_request", None) for record in caplog.records if record.message == "request"
    ]
    assert logged == ["abc-1", None]


async def test_images_need_a_model_that_sees(serve: Serve) -> None:
    """The facts of the loaded model decide, and the message part is named."""
    facts = Facts(loader="fake", device="cpu", capabilities=("chat", "vision"))
    pool = FakePool(models={"tiny": model("tiny"), "eyes": model("eyes", facts=facts)})
    gateway = await serve(pool)
    part = {"type": "image_url", "image_url": {"url": data_url(png())}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}]
    response, body = await gateway.chat(messages=messages)
    assert (response.status, body["error"]["param"]) == (400, "messages[0].content[1].image_url")
    response, _ = await gateway.chat(model="eyes", messages=messages)
    assert response.status == 200


async def test_a_deadline_ends_a_silent_request(serve: Serve) -> None:
    """request_timeout gives 504 that SDKs do not repeat, and the call is cancelled."""
    pool = FakePool(answer=lambda _name, _task: [])
    gateway = await serve(pool, request_timeout=0.5)
    response, body = await gateway.chat()
    assert (response.status, body["error"]["code"]) == (504, "request_timeout")
    assert response.headers["x-should-retry"] == "false"
    assert all(stream.cancelled for stream in pool.streams)


async def test_completions_of_several_prompts(serve: Serve) -> None:
    """Each prompt is a call of its own; choices are numbered prompt-major, usage is added up."""

    def answer(_name: str, task: object) -> list[list[Text | Finish | Usage] | None]:
        assert isinstance(task, CompletionTask)
        return [
            [Text(f"{task.prompt}-{index}", index) for index in range(task.n)],
            [Finish("stop", index) for index in range(task.n)],
            [Usage(prompt_tokens=2, completion_tokens=3)],
            None,
        ]

    gateway = await serve(FakePool(answer=answer))  # type: ignore[arg-type]
    request = {"model": "tiny", "prompt": ["a", "b"], "n": 2}
    response, body = await gateway.ask("POST", "/v1/completions", json=request)
    assert response.status == 200
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "a-0"),
        (1, "a-1"),
        (2, "b-0"),
        (3, "b-1"),
    ]
    assert body["usage"]["total_tokens"] == 10
    async with gateway.http.post(
        gateway.url + "/v1/completions", json={**request, "stream": True}
    ) as streamed:
        events = (await streamed.text()).strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    texts: dict[int, str] = {}
    for event in events[:-1]:
        choice = json.loads(event[6:])["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "a-0", 1: "a-1", 2: "b-0", 3: "b-1"}


async def test_one_failing_prompt_fails_the_request(serve: Serve) -> None:
    """The error keeps its status, and the other prompts' calls are cancelled."""
    pool = FakePool()
    pool.answer = lambda _name, task: (
        [EngineError("broken")] if isinstance(task, CompletionTask) and task.prompt == "b" else []
    )
    gateway = await serve(pool)
    response, body = await gateway.ask(
        "POST", "/v1/completions", json={"model": "tiny", "prompt": ["a", "b"]}
    )
    assert (response.status, body["error"]["message"]) == (502, "broken")
    assert pool.streams[0].cancelled


async def test_models_are_listed_with_their_state(serve: Serve) -> None:
    """All configured models are listed, and names with slashes can be retrieved."""
    pool = FakePool(models={"org/a": model("org/a"), "b": model("b", state=State.STOPPED)})
    gateway = await serve(pool)
    _, body = await gateway.ask("GET", "/v1/models")
    assert body["object"] == "list"
    assert [(card["id"], card["modeld"]["state"]) for card in body["data"]] == [
        ("org/a", "ready"),
        ("b", "stopped"),
    ]
    for path in ("/v1/models/org/a", "/v1/models/org%2Fa"):
        response, card = await gateway.ask("GET", path)
        assert (response.status, card) == (200, body["data"][0])
    response, body = await gateway.ask("GET", "/v1/models/nope")
    assert (response.status, body["error"]["code"]) == (404, "model_not_found")


async def test_health_and_readiness(serve: Serve) -> None:
    """The process lives whatever its models do; readiness tells the truth about them."""
    pool = FakePool(models={"a": model("a"), "b": model("b", state=State.FAILED, message="not GGUF")})
    gateway = await serve(pool)
    response, body = await gateway.ask("GET", "/health")
    assert (response.status, body["status"]) == (200, "ok")
    response, body = await gateway.ask("GET", "/readyz")
    assert (response.status, body["ready"], body["models_failed"]) == (503, False, {"b": "not GGUF"})
    del pool.models["b"]
    response, body = await gateway.ask("GET", "/readyz")
    assert (response.status, body["ready"]) == (200, True)


async def test_metrics_count_every_kind_of_request(serve: Serve) -> None:
    """Streamed or not, usage asked for or not, tokens are counted; strangers' names make no series."""
    gateway = await serve()
    await gateway.chat()
    await gateway.chat(stream=True)
    await gateway.chat(stream=True, stream_options={"include_usage": True})
    await gateway.chat(model="made-up-1")
    await gateway.ask("GET", "/made/up/2")
    assert gateway.value("modeld_requests_total", model="tiny", endpoint=CHAT, status="200") == 3
    assert gateway.value("modeld_requests_total", model="unknown", endpoint=CHAT, status="404") == 1
    assert gateway.value("modeld_requests_total", model="unknown", endpoint="unknown", status="404") == 1
    assert gateway.value("modeld_prompt_tokens_total", model="tiny") == 15
    assert gateway.value("modeld_completion_tokens_total", model="tiny") == 3
    assert gateway.value("modeld_stream_chunks_total", model="tiny") == 3 + 4
    assert gateway.value("modeld_time_to_first_token_seconds_count", model="tiny") == 3
    assert gateway.value("modeld_requests_in_progress", endpoint=CHAT) == 0
    response, _ = await gateway.ask("GET", "/metrics")
    async with gateway.http.get(gateway.url + "/metrics") as scrape:
        text = await scrape.text()
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "made" not in text
    assert 'modeld_model_state{model="tiny",state="ready"} 1.0' in text


async def test_the_usage_chunk_goes_only_to_who_asked(serve: Serve) -> None:
    """Counting tokens for the metrics must not put a usage chunk into a stream that did not ask."""
    gateway = await serve(FakePool(answer=lambda _name, task: said("a b", n=choices_of(task))))
    for asked in (False, True):
        options = {"stream_options": {"include_usage": True}} if asked else {}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True, **options}
        async with gateway.http.post(gateway.url + CHAT, json=body) as response:
            text = await response.text()
        assert ('"usage"' in text) == asked
        assert isinstance(gateway.pool.calls[-1].task, ChatTask)

"""Named gateways, aliases, and what a request may say beside OpenAI's fields."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from modeld.errors import ModeldError, ModelUnavailable, Overloaded
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import Task
from modeld.supervisor.admission import Priority
from modeld.supervisor.states import ReplicaStatus, State
from tests.component.gateway.served import CHAT, USER, Serve, Served, http_chunks, post
from tests.fakes.pool import Answer, FakePool, model, said

COMPLETIONS = "/v1/completions"
BODY = {"model": "tiny", "messages": [USER], "prompt": "x"}


def _pool() -> FakePool:
    return FakePool.of(
        model("tiny", aliases=("gpt-4o",)),
        model("tiny", gateway="side", aliases=("little",)),
        model("org/big", gateway="side"),
    )


def _always(script: list[Answer] | ModeldError) -> Callable[[str, Task], list[Answer] | ModeldError]:
    return lambda _name, _task: script


async def _ids(gateway: Served, path: str) -> list[str]:
    _, body = await gateway.ask("GET", path)
    return [card["id"] for card in body["data"]]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("gateway_path", "asked", "key"),
    [
        ("", "tiny", "tiny"),
        ("", "gpt-4o", "tiny"),
        ("/side", "tiny", "side/tiny"),
        ("/side", "little", "side/tiny"),
        ("/side", "org/big", "side/org/big"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_name_reaches_its_gateway_s_model(
    serve: Serve, route: str, gateway_path: str, asked: str, key: str, stream: bool
) -> None:
    """A served name or an alias is found in its own gateway and answers under the name asked for."""
    gateway = await serve(_pool())
    async with gateway.http.post(
        gateway.url + gateway_path + route, json=BODY | {"model": asked, "stream": stream}
    ) as response:
        raw = await response.read()
    assert response.status == 200
    assert [call.model for call in gateway.pool.calls] == [key]
    answers = [line[6:] for line in raw.decode().splitlines() if line] if stream else [raw.decode()]
    assert {json.loads(answer)["model"] for answer in answers if answer != "[DONE]"} == {asked}
    assert gateway.value("modeld_requests_total", model=key, endpoint=route, status="200") == 1


async def test_a_request_looks_its_model_up_and_scans_nothing(serve: Serve) -> None:
    """On the way of a call no list of all models is made, at the default gateway or at a named one."""
    gateway = await serve(_pool())
    for path in ("", "/side"):
        assert (await gateway.ask("POST", path + CHAT, json=BODY))[0].status == 200
    assert gateway.pool.scans == 0


async def test_models_of_other_gateways_are_not_there(serve: Serve) -> None:
    """A gateway lists and serves its own models only; the error says where the name does exist."""
    gateway = await serve(_pool())
    assert await _ids(gateway, "/v1/models") == ["tiny", "gpt-4o"]
    assert await _ids(gateway, "/side/v1/models") == ["tiny", "little", "org/big"]
    for path, asked, where in (("", "little", "at /side/v1;"), ("/side", "gpt-4o", "but at /v1;")):
        response, body = await gateway.ask("POST", path + CHAT, json=BODY | {"model": asked})
        assert (response.status, body["error"]["code"]) == (404, "model_not_found")
        assert where in body["error"]["message"]
        response, _ = await gateway.ask("GET", f"{path}/v1/models/{asked}")
        assert response.status == 404
    for internal in ("side/tiny", "side/org/big"):  # the pool's keys are nobody else's business
        assert (await gateway.ask("POST", CHAT, json=BODY | {"model": internal}))[0].status == 404
    assert gateway.pool.calls == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", CHAT), ("POST", COMPLETIONS), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")],
)
async def test_an_unknown_gateway_names_those_there_are(serve: Serve, method: str, path: str) -> None:
    """404 in the envelope with a code of its own, and no series of the stranger's making."""
    gateway = await serve(_pool())
    options = {"json": BODY} if method == "POST" else {}
    for unknown in ("nope", "Side", "v1", "side%2Ftiny"):
        response, body = await gateway.ask(method, f"/{unknown}{path}", **options)
        assert (response.status, body["error"]["code"]) == (404, "gateway_not_found")
        assert "'side' at /side/v1" in body["error"]["message"]
    assert b"nope" not in gateway.metrics.render()


async def test_gateways_come_and_go_in_a_running_daemon(serve: Serve) -> None:
    """What the pool says at the moment of the request counts; no route is added or removed."""
    pool = FakePool()
    gateway = await serve(pool)
    assert (await gateway.ask("GET", "/side/v1/models"))[0].status == 404
    pool.models["side/new"] = model("new", gateway="side")
    assert await _ids(gateway, "/side/v1/models") == ["new"]
    assert (await gateway.ask("POST", "/side" + CHAT, json=BODY | {"model": "new"}))[0].status == 200
    pool.models["side/new"] = replace(pool.models["side/new"], aliases=("newer",))
    assert (await gateway.ask("GET", "/side/v1/models/newer"))[0].status == 200
    del pool.models["side/new"]
    response, body = await gateway.ask("GET", "/side/v1/models/new")
    assert (response.status, body["error"]["code"]) == (404, "gateway_not_found")


@pytest.mark.parametrize(
    ("asked", "meant", "rule"),
    [
        ("Tiny", "tiny", True),
        ("GPT-4O", "gpt-4o", True),
        ("gpt4o", "gpt-4o", False),
        ("tinny", "tiny", False),
    ],
)
async def test_a_near_miss_is_named_and_not_served(serve: Serve, asked: str, meant: str, rule: bool) -> None:
    """Names are case-sensitive; who is nearly right learns the right name, and no other model answers."""
    gateway = await serve(_pool())
    response, body = await gateway.chat(model=asked)
    assert (response.status, body["error"]["code"], body["error"]["param"]) == (
        404,
        "model_not_found",
        "model",
    )
    assert f"did you mean {meant!r}?" in body["error"]["message"]
    assert ("upper and lower case count" in body["error"]["message"]) == rule
    assert gateway.pool.calls == []


async def test_a_far_miss_guesses_nothing(serve: Serve) -> None:
    """A name unlike all others gets the list's address and no suggestion, however long it is."""
    gateway = await serve(_pool())
    for asked in ("mistral", "?", "t" * 100_000):
        response, body = await gateway.ask("POST", "/side" + CHAT, json=BODY | {"model": asked})
        assert response.status == 404
        assert "GET /side/v1/models lists" in body["error"]["message"]
        assert "did you mean" not in body["error"]["message"]
        assert len(body["error"]["message"]) < 400


async def test_cards_tell_what_agents_ask_for(serve: Serve) -> None:
    """State, reason, memory, replicas and names, before a load too; an alias has a card of its own."""
    facts = Facts(loader="fake", device="cpu", capabilities=("chat",), context_length=4096)
    ready, loading = (
        ReplicaStatus(state=state, cause="test", message="", since=0.0)
        for state in (State.READY, State.LOADING)
    )
    status = replace(
        model("big", aliases=("b", "c"), facts=facts, message="2 of 2 replicas serve", on_demand=True),
        footprint=7 << 30,
        pinned=True,
        replicas=(ready, loading),
    )
    gateway = await serve(FakePool.of(status))
    _, body = await gateway.ask("GET", "/v1/models")
    card, *others = body["data"]
    assert card["modeld"] == {
        "state": "ready",
        "message": "2 of 2 replicas serve",
        "loader": "fake",
        "usecase": "generate",
        "capabilities": ["chat"],
        "context_length": 4096,
        "parameters": None,
        "quantization": None,
        "size": None,
        "footprint": 7 << 30,
        "pinned": True,
        "on_demand": True,
        "replicas": {"ready": 1, "total": 2},
        "aliases": ["b", "c"],
        "alias_of": None,
    }
    assert [(other["id"], other["modeld"]["alias_of"]) for other in others] == [("b", "big"), ("c", "big")]
    assert others[0]["modeld"] | {"alias_of": None} == card["modeld"]
    assert (await gateway.ask("GET", "/v1/models/c"))[1] == others[1]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("sent", "passed"), [({}, None), ({"keep_alive": "10m"}, 600.0), ({"keep_alive": 0}, 0.0)]
)
async def test_keep_alive_goes_down_with_the_call(
    serve: Serve, route: str, sent: dict[str, str | int], passed: float | None
) -> None:
    """The pool learns the seconds, and a request that does not say is told apart from one that says 0."""
    gateway = await serve()
    assert (await gateway.ask("POST", route, json=BODY | sent))[0].status == 200
    assert [call.keep_alive for call in gateway.pool.calls] == [passed]


async def test_never_is_without_end(serve: Serve) -> None:
    """-1 and "never" are the same, and reach all calls of a request of several prompts."""
    gateway = await serve()
    for sent in (-1, "never"):
        body = BODY | {"prompt": ["a", "b"], "keep_alive": sent}
        assert (await gateway.ask("POST", COMPLETIONS, json=body))[0].status == 200
    assert [call.keep_alive for call in gateway.pool.calls] == [math.inf] * 4


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("sent", ["soon", -5, True, [], "", "10 minutes"])
async def test_a_wrong_keep_alive_is_refused(serve: Serve, route: str, sent: object) -> None:
    """400 with the param, and nothing reaches the pool."""
    gateway = await serve()
    response, body = await gateway.ask("POST", route, json=BODY | {"keep_alive": sent})
    assert (response.status, body["error"]["param"]) == (400, "keep_alive")
    assert gateway.pool.calls == []


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        (None, Priority.INTERACTIVE),
        ("interactive", Priority.INTERACTIVE),
        ("background", Priority.BACKGROUND),
        ("Background ", Priority.BACKGROUND),
    ],
)
async def test_the_priority_goes_down_with_the_call(
    serve: Serve, route: str, sent: str | None, passed: Priority
) -> None:
    """Somebody waits for the answer unless the header says otherwise."""
    gateway = await serve()
    headers = {} if sent is None else {"x-modeld-priority": sent}
    assert (await gateway.ask("POST", route, json=BODY, headers=headers))[0].status == 200
    assert [call.priority for call in gateway.pool.calls] == [passed]


@pytest.mark.parametrize("sent", ["urgent", "", "0"])
async def test_a_wrong_priority_is_refused(serve: Serve, sent: str) -> None:
    """400 that names the header and its two words."""
    gateway = await serve()
    response, body = await gateway.ask("POST", CHAT, json=BODY, headers={"x-modeld-priority": sent})
    assert (response.status, body["error"]["param"]) == (400, "X-Modeld-Priority")
    assert "interactive or background" in body["error"]["message"]
    assert gateway.pool.calls == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_a_refusal_says_when_to_come_back(serve: Serve, stream: bool, late: bool) -> None:
    """429 and 503 carry the seconds the pool knows, before the first keep-alive also on a stream."""
    full = Overloaded("position 4 of a queue that holds 3", retry_after=12.5)
    busy = ModelUnavailable("needs 7.9 GiB, 5.1 GiB free", retry_after=90)
    for error, status, retry_after in ((full, 429, "13"), (busy, 503, "90")):
        script: list[Answer] | ModeldError = [[], error] if late else error
        pool = FakePool(answer=_always(script))
        response, body = await (await serve(pool)).chat(stream=stream)
        assert (response.status, response.headers["retry-after"]) == (status, retry_after)
        assert body["error"]["message"] == error.message


async def test_a_full_queue_does_not_close_the_rest(serve: Serve) -> None:
    """Limits are for inference: lists, health and metrics answer while a model refuses."""
    gateway = await serve(FakePool(answer=lambda _name, _task: Overloaded("full")))
    assert (await gateway.chat())[0].status == 429
    for path in ("/v1/models", "/v1/models/tiny", "/health", "/metrics"):
        assert (await gateway.ask("GET", path))[0].status == 200


async def test_a_stream_at_a_named_gateway_is_kept_alive(serve: Serve) -> None:
    """Comments fill the wait for a load there as at the default gateway."""
    pool = _pool()
    pool.answer = lambda _name, _task: []
    gateway = await serve(pool, keepalive_interval=0.02)
    reader, writer = await gateway.connect()
    raw = json.dumps(BODY | {"stream": True})
    writer.write(post(raw, "/side" + CHAT))
    await reader.readuntil(b": keep-alive\n\n\r\n")
    pool.streams[0].feed(*said())
    chunks = http_chunks(await reader.read())
    writer.close()
    await writer.wait_closed()
    assert chunks[-1] == b"data: [DONE]\n\n"

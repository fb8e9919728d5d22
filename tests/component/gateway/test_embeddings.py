"""Embeddings, reranking and tokens over HTTP, from a pool that plays an engine."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from modeld.errors import BadRequest, EngineError
from modeld.protocol.tasks import (
    DetokenizeTask,
    EmbedTask,
    RerankTask,
    Score,
    Task,
    Text,
    TokenizeTask,
    Tokens,
    Usage,
    Vector,
)
from modeld.supervisor.admission import Priority
from tests.component.gateway.served import USER, Serve
from tests.fakes.pool import Answer, FakePool, model

ROUTES = ("/v1/embeddings", "/v1/rerank", "/v1/tokenize", "/v1/detokenize")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v1/rerank": {"query": "q", "documents": ["a", "b", "c"]},
    "/v1/tokenize": {"text": "a b"},
    "/v1/detokenize": {"tokens": [1, 2]},
}


def answered(_name: str, task: Task) -> list[Answer]:
    """Answer as an engine would, out of order."""
    match task:
        case EmbedTask():
            count = len(task.inputs)
            vectors: list[Answer] = [
                [Vector(at, struct.pack("<2f", at, 0.5))] for at in reversed(range(count))
            ]
            return [*vectors, [Usage(count * 3, 0)], None]
        case RerankTask():
            return [[Score(1, 0.9), Score(0, -2.0), Score(2, 0.5), Usage(12, 0)], None]
        case TokenizeTask():
            return [[Tokens((5, 6, 7))], None]
        case DetokenizeTask():
            return [[Text("a b")], None]
        case _:
            raise AssertionError(task)


def pool(**more: Any) -> FakePool:
    """Return a pool with an embedding model at the default gateway and at `lab`, and others."""
    return FakePool(
        models={
            status.name: status
            for status in (
                model("vec", usecase="embed", aliases=("text-embedding-3-small",)),
                model("vec", usecase="embed", gateway="lab"),
                model("tiny"),
                model("ears", usecase="transcription"),
            )
        },
        answer=more.get("answer", answered),
    )


async def test_an_embedding_answer(serve: Serve) -> None:
    """The list has the vectors in input order under the requested name, as floats unless asked otherwise, and
    counts usage, in the metrics too; base64 holds the same values.
    """
    gateway = await serve(pool())
    body = {"model": "text-embedding-3-small", "input": ["a", "b", "c"], "user": "u", "dimensions": 2}
    response, plain = await gateway.ask("POST", "/v1/embeddings", json=body)
    assert response.status == 200
    assert plain == {
        "object": "list",
        "data": [{"object": "embedding", "index": at, "embedding": [float(at), 0.5]} for at in range(3)],
        "model": "text-embedding-3-small",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    assert gateway.pool.calls[-1].task == EmbedTask(inputs=("a", "b", "c"), dimensions=2)
    assert gateway.value("modeld_prompt_tokens_total", model="vec") == 9
    _, coded = await gateway.ask("POST", "/v1/embeddings", json={**body, "encoding_format": "base64"})
    values = [struct.unpack("<2f", base64.b64decode(each["embedding"])) for each in coded["data"]]
    assert values == [(0.0, 0.5), (1.0, 0.5), (2.0, 0.5)]


async def test_a_rerank_answer(serve: Serve) -> None:
    """Results are sorted, cut to top_n, with their documents only if asked for."""
    gateway = await serve(pool())
    body = {"model": "vec", **BODIES["/v1/rerank"], "top_n": 2}
    response, answer = await gateway.ask("POST", "/v1/rerank", json=body)
    assert response.status == 200
    assert answer["model"] == "vec"
    assert answer["id"].startswith("rerank-")
    assert answer["results"] == [
        {"index": 1, "relevance_score": 0.9},
        {"index": 2, "relevance_score": 0.5},
    ]
    assert answer["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    _, answer = await gateway.ask("POST", "/v1/rerank", json={**body, "return_documents": True})
    assert [each["document"] for each in answer["results"]] == [{"text": "b"}, {"text": "c"}]


@pytest.mark.parametrize("name", ["vec", "tiny"])
async def test_tokens_of_any_model_that_reads_text(serve: Serve, name: str) -> None:
    """Both ways, for an embedding model and a language model alike."""
    gateway = await serve(pool())
    _, split = await gateway.ask("POST", "/v1/tokenize", json={"model": name, "content": "a b"})
    assert split == {"tokens": [5, 6, 7], "count": 3}
    _, joined = await gateway.ask("POST", "/v1/detokenize", json={"model": name, "tokens": [5, 6]})
    assert joined == {"text": "a b", "content": "a b"}
    assert gateway.pool.calls[-1].task == DetokenizeTask(tokens=(5, 6))


@pytest.mark.parametrize("route", ROUTES)
async def test_named_gateways_priority_and_keep_alive(serve: Serve, route: str) -> None:
    """Every route is at every gateway, and the request's urgency and keep_alive reach the pool."""
    gateway = await serve(pool())
    body = {"model": "vec", **BODIES[route], "keep_alive": "5m"}
    headers = {"X-Modeld-Priority": "background"}
    response, _ = await gateway.ask("POST", "/lab" + route, json=body, headers=headers)
    assert response.status == 200
    call = gateway.pool.calls[-1]
    assert (call.model, call.priority, call.keep_alive) == ("lab/vec", Priority.BACKGROUND, 300.0)
    response, answer = await gateway.ask("POST", route, json={**body, "keep_alive": "soon"})
    assert (response.status, answer["error"]["param"]) == (400, "keep_alive")


@pytest.mark.parametrize("route", ROUTES)
async def test_wrong_models_are_refused_before_any_work(serve: Serve, route: str) -> None:
    """An unknown model is 404; one for another use is 400 and says what it is for; nothing is called."""
    gateway = await serve(pool())
    response, answer = await gateway.ask("POST", route, json={"model": "nope", **BODIES[route]})
    assert (response.status, answer["error"]["code"]) == (404, "model_not_found")
    response, answer = await gateway.ask("POST", route, json={"model": "ears", **BODIES[route]})
    assert (response.status, answer["error"]["code"]) == (400, "unsupported_task")
    assert "/v1/audio/transcriptions" in answer["error"]["message"]
    response, answer = await gateway.ask("POST", route, data=b"{", headers={"content-type": "text/plain"})
    assert response.status == 415
    assert gateway.pool.calls == []


async def test_chat_on_an_embedding_model_and_embeddings_on_a_chat_model(serve: Serve) -> None:
    """Both are 400 that names what the model is for."""
    gateway = await serve(pool())
    for route, body, word in (
        ("/v1/chat/completions", {"model": "vec", "messages": [USER]}, "/v1/embeddings"),
        ("/v1/embeddings", {"model": "tiny", "input": "a"}, "/v1/chat/completions"),
        ("/v1/rerank", {"model": "tiny", **BODIES["/v1/rerank"]}, "/v1/chat/completions"),
    ):
        response, answer = await gateway.ask("POST", route, json=body)
        assert (response.status, answer["error"]["code"]) == (400, "unsupported_task")
        assert word in answer["error"]["message"]


async def test_the_engines_refusals_keep_their_status_and_param(serve: Serve) -> None:
    """A too long input is 400 with its index; an engine that gives rubbish is 502, never passed on."""
    refused = BadRequest("input[1] has 9", code="context_length_exceeded", param="input[1]")
    for error, status, param in ((refused, 400, "input[1]"), (EngineError("NaN"), 502, None)):
        gateway = await serve(pool(answer=lambda _name, _task, error=error: [[Vector(0, b"")], error]))
        response, answer = await gateway.ask(
            "POST", "/v1/embeddings", json={"model": "vec", "input": ["a", "b"]}
        )
        assert (response.status, answer["error"]["param"]) == (status, param)

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from modeld.errors import EngineError
from modeld.jobs.mass.results import ChatCollector, TokensCollector, VectorCollector, answer
from modeld.protocol.tasks import Event, Finish, Reasoning, Text, Tokens, Usage, Vector
from modeld.store.job_ends import failure
from modeld.store.job_records import ItemResult, Job, JobStatus


def job(kind: str, status: JobStatus = "done", error: str | None = None, items: int = 1) -> Job:
    """Return a job that stands so."""
    return Job(
        key=1,
        id="job_1",
        identity="local",
        kind=kind,
        model="m",
        detail=b'{"model":"as asked"}',
        status=status,
        items=items,
        waiting=0,
        taken=items,
        done=items,
        failed=0,
        code=None,
        error=error,
        created=0.0,
        begun=0.0,
        ended=1.0,
        deadline=None,
        expires=None,
    )


def told(job: Job, *items: ItemResult) -> dict[str, Any]:
    """Return what a caller is told."""
    body: dict[str, Any] = json.loads(answer(job, items))
    return body


def done(place: int, body: bytes) -> ItemResult:
    """Return an item that is done."""
    return ItemResult(place, "done", body)


def collected(events: Sequence[Event], times: Sequence[float] = (1.0, 1.0)) -> dict[str, Any]:
    """Return a chat's result; `times` are the clock's at each event."""
    clock = iter([*times, *[times[-1]] * len(events)])
    collector = ChatCollector("job_1", "m", lambda: next(clock))
    for event in events:
        collector.add([event])
    body: dict[str, Any] = json.loads(collector.body())
    return body


def test_a_chat_is_told_whole() -> None:
    """Text, thought, finish and usage; its speed is that of the tokens after the first."""
    events: list[Event] = [Reasoning("hm "), Text("Hi "), Text("you"), Finish("length"), Usage(7, 5)]
    assert collected(events, (1.0, 1.5, 2.0, 3.0, 3.0)) == {
        "id": "job_1",
        "model": "m",
        "message": {"role": "assistant", "content": "Hi you"},
        "finish_reason": "length",
        "reasoning_content": "hm ",
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        "tokens_per_second": 2.0,
    }


def test_speed_is_nothing_where_it_cannot_be_told() -> None:
    """All in one moment, or no token at all, divide nothing by nothing."""
    assert collected([Text("x"), Finish("stop"), Usage(1, 1)])["tokens_per_second"] == 0
    assert collected([Finish("length"), Usage(1, 0)], (0.0, 5.0))["tokens_per_second"] == 0


@pytest.mark.parametrize(
    "collector", [ChatCollector("j", "m", lambda: 0.0), VectorCollector(), TokensCollector()]
)
def test_half_an_answer_is_none(collector: ChatCollector | VectorCollector | TokensCollector) -> None:
    """An engine that ends without what was asked for is an error, not an empty result."""
    with pytest.raises(EngineError):
        collector.body()


def test_vectors_and_tokens_are_lists_of_numbers() -> None:
    """As the engine gave them."""
    vectors = VectorCollector()
    vectors.add([Vector(0, array("f", [0.5, -2.0]).tobytes()), Usage(1, 0)])
    assert json.loads(vectors.body()) == [0.5, -2.0]
    tokens = TokensCollector()
    tokens.add([Tokens((1, 2)), Tokens((3,))])
    assert json.loads(tokens.body()) == [1, 2, 3]


def test_results_have_the_shape_of_their_kind() -> None:
    """One item as itself, a batch as a list in order."""
    assert told(job("chat"), done(0, b'{"id":"x"}')) == {
        "job_id": "job_1",
        "status": "done",
        "result": {"id": "x"},
    }
    assert told(job("batch_chat"), done(0, b'"a"'), done(1, b'"b"'))["result"] == {
        "id": "job_1",
        "model": "as asked",
        "responses": ["a", "b"],
    }
    assert told(job("embed"), done(0, b"[1,2]"))["result"] == {
        "id": "job_1",
        "model": "as asked",
        "embedding": [1, 2],
    }
    assert told(job("batch_embed"), done(0, b"[1]"), done(1, b"[2]"))["result"] == {
        "id": "job_1",
        "model": "as asked",
        "embeddings": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [2]}],
    }
    assert told(job("tokenize"), done(0, b"[5]"))["result"] == {"tokens": [5]}


@pytest.mark.parametrize(("kind", "field"), [("batch_chat", "responses"), ("batch_embed", "embeddings")])
def test_an_item_that_failed_says_so_in_its_place(kind: str, field: str) -> None:
    """The others are as they are."""
    result = told(job(kind), ItemResult(0, "failed", failure("x", "too long")), done(1, b"[2]"))["result"]
    assert result[field][0] == {"index": 0, "error": "too long"}
    assert len(result[field]) == 2


@pytest.mark.parametrize("status", ["pending", "processing"])
def test_an_unfinished_job_has_neither_result_nor_error(status: JobStatus) -> None:
    """Only its name and status."""
    assert told(job("chat", status)) == {"job_id": "job_1", "status": status}


def test_mass_knows_four_statuses() -> None:
    """An error says why; what was cancelled is one too."""
    assert told(job("chat", "error", "no such model")) == {
        "job_id": "job_1",
        "status": "error",
        "error": "no such model",
    }
    assert told(job("chat", "cancelled")) == {
        "job_id": "job_1",
        "status": "error",
        "error": "the job was cancelled",
    }

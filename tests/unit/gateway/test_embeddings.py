"""Bodies of embeddings, rerank and tokenize requests to tasks, and events to answers."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, EngineError
from modeld.gateway.families import embeddings, rerank, tokenize
from modeld.gateway.families.embeddings import MAX_INPUTS, EmbeddingCollector
from modeld.gateway.families.rerank import MAX_DOCUMENTS, RerankCollector
from modeld.protocol.tasks import Score, TokenizeTask, Usage, Vector

Inputs = tuple[str | tuple[int, ...], ...]


def inputs(value: Any) -> Inputs:
    """Return the task's inputs for a request's `input`."""
    return embeddings.to_task(embeddings.read(json.dumps({"model": "m", "input": value}).encode())).inputs


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
        ([0], ((0,),)),
    ],
)
def test_the_four_forms_of_input(value: Any, wanted: Inputs) -> None:
    """Text, texts, token ids and lists of them are so many inputs in their order."""
    assert inputs(value) == wanted


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("", "input"),
        ([], "input"),
        ([[]], "input[0]"),
        (["a", ""], "input[1]"),
        (["a", None], "input[1]"),
        ([1, "a"], "input[1]"),
        ([True], "input[0]"),
        ([[1], [2, -1]], "input[1][1]"),
        ([[1, 2**31]], "input[0][1]"),
        ([[1.5]], "input[0][0]"),
        ({"text": "a"}, "input"),
        (None, "input"),
        (["a"] * (MAX_INPUTS + 1), "input"),
    ],
    ids=str,
)
def test_bad_input_names_its_place(value: Any, param: str) -> None:
    """What has no vector is refused with the path of the first thing that is wrong."""
    with pytest.raises(BadRequest) as caught:
        inputs(value)
    assert caught.value.param == param


def test_a_token_list_has_no_limit_of_inputs() -> None:
    """A long list of token ids is one input; the most inputs fit."""
    assert inputs([7] * (MAX_INPUTS + 1)) == ((7,) * (MAX_INPUTS + 1),)
    assert len(inputs(["a"] * MAX_INPUTS)) == MAX_INPUTS


@pytest.mark.parametrize(
    ("field", "value"),
    [("encoding_format", "int8"), ("dimensions", 0), ("dimensions", "64"), ("model", "")],
)
def test_other_bad_fields(field: str, value: Any) -> None:
    """Each is refused with its name."""
    with pytest.raises(BadRequest) as caught:
        embeddings.read(json.dumps({"model": "m", "input": "a", field: value}).encode())
    assert caught.value.param == field


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=5), st.randoms())
def test_vectors_come_in_the_order_of_the_inputs(vectors: list[list[float]], random: Any) -> None:
    """In whatever order the engine is done, `data` is in input order; base64 holds the very same values as
    little-endian float32.
    """
    events = [Vector(at, struct.pack("<3f", *values)) for at, values in enumerate(vectors)]
    random.shuffle(events)
    for coded in (False, True):
        collector = EmbeddingCollector(model="m", count=len(vectors), base64=coded)
        for event in events:
            collector.add([event])
        collector.add([Usage(9, 0)])
        body = json.loads(collector.body())
        assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
        assert [each["index"] for each in body["data"]] == list(range(len(vectors)))
        assert {each["object"] for each in body["data"]} == {"embedding"}
        got = [each["embedding"] for each in body["data"]]
        assert (
            [list(struct.unpack("<3f", base64.b64decode(each))) for each in got] == vectors
            if coded
            else (got == vectors)
        )


def test_a_missing_vector_is_the_engines_fault() -> None:
    """No answer has fewer vectors than inputs."""
    collector = EmbeddingCollector(model="m", count=2, base64=True)
    collector.add([Vector(0, b"\0\0\0\0"), Usage(1, 0)])
    with pytest.raises(EngineError, match="input 1"):
        collector.body()


def test_documents_are_texts_or_objects() -> None:
    """Both forms are the same task; nothing of an object but its text is read."""
    raw = json.dumps({"model": "m", "query": "q", "documents": ["a", {"text": "b", "id": 7}, ""]})
    assert rerank.to_task(rerank.read(raw.encode())).documents == ("a", "b", "")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["a", 1]}, "documents[1]"),
        ({"documents": [{"title": "x"}]}, "documents[0].text"),
        ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"top_n": 0}, "top_n"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_rerank_request_names_its_field(fields: dict[str, Any], param: str) -> None:
    """Each is refused with where it is wrong."""
    raw = json.dumps({"model": "m", "query": "q", "documents": ["a"], **fields}).encode()
    with pytest.raises(BadRequest) as caught:
        rerank.to_task(rerank.read(raw))
    assert caught.value.param == param


@given(st.lists(FLOATS, min_size=1, max_size=20), st.none() | st.integers(1, 25))
def test_results_are_the_best_first(scores: list[float], top_n: int | None) -> None:
    """Scores descend, each under its document's index and with its text; equals keep their order."""
    texts = [f"d{at}" for at in range(len(scores))]
    collector = RerankCollector(id="r", model="m", count=len(scores), top_n=top_n, documents=texts)
    collector.add([*(Score(at, score) for at, score in enumerate(scores)), Usage(3, 0)])
    results = json.loads(collector.body())["results"]
    assert len(results) == min(len(scores), top_n or len(scores))
    keys = [(-each["relevance_score"], each["index"]) for each in results]
    assert keys == sorted((-score, at) for at, score in enumerate(scores))[: len(results)]
    assert all(each["document"] == {"text": texts[each["index"]]} for each in results)


def test_a_missing_score_is_the_engines_fault() -> None:
    """No document is left out in silence."""
    collector = RerankCollector(id="r", model="m", count=2, top_n=1, documents=None)
    collector.add([Score(1, 0.5), Usage(1, 0)])
    with pytest.raises(EngineError, match="1 scores for 2 documents"):
        collector.body()


@pytest.mark.parametrize("name", ["text", "content", "prompt"])
@pytest.mark.parametrize("special", [None, True, False])
def test_a_text_to_split_has_three_names(name: str, special: bool | None) -> None:
    """They are the same; the tokens that frame a prompt are there unless the request says no."""
    raw = json.dumps({"model": "m", name: "hi", "add_special": special}).encode()
    task = tokenize.to_task(tokenize.read_tokenize(raw))
    assert task == TokenizeTask(text="hi", special=special is not False)


def test_one_text_is_split_at_a_time() -> None:
    """None is a missing parameter, two are refused with both names."""
    with pytest.raises(BadRequest) as caught:
        tokenize.to_task(tokenize.read_tokenize(b'{"model": "m"}'))
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "text")
    with pytest.raises(BadRequest, match="text and prompt"):
        tokenize.to_task(tokenize.read_tokenize(b'{"model": "m", "text": "a", "prompt": "b"}'))


@pytest.mark.parametrize("tokens", ["[-1]", "[1.5]", '["a"]', "[2147483648]", '"a"', "[true]"])
def test_what_is_no_token_is_refused(tokens: str) -> None:
    """Only token ids can be joined."""
    with pytest.raises(BadRequest) as caught:
        tokenize.read_detokenize(b'{"model": "m", "tokens": %b}' % tokens.encode())
    assert caught.value.param == ("tokens[0]" if tokens[0] == "[" else "tokens")

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.jobs.batches.answers import Answers
from modeld.jobs.batches.records import Place
from modeld.jobs.batches.scan import BOM, MOST_LINES, MOST_MISTAKES, Scan, scan
from modeld.jobs.files.shelf import Shelf
from modeld.store.job_ends import failure
from modeld.store.job_records import ItemResult

CHAT = "/v1/chat/completions"
LONGEST = 4000


def line(**change: Any) -> bytes:
    """Return a line that is right but for what is changed; None leaves a field out."""
    fields = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}} | change
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def scanned(folder: Path, data: bytes, longest: int = LONGEST) -> Scan:
    """Return what is found in a file."""
    path = folder / "in"
    path.write_bytes(data)
    return scan(path, CHAT, longest, hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"nothing", "invalid_json_line", None),
        (b"[1]", "invalid_request", None),
        (b'{"custom_id":"a"', "invalid_json_line", None),
        (b'{"custom_id":"\xff"}', "invalid_json_line", None),
        (b'{"a":' + b"[" * 1500, "invalid_json_line", None),
        (line(custom_id=None), "missing_required_parameter", "custom_id"),
        (line(custom_id=7), "invalid_request", "custom_id"),
        (line(custom_id=""), "invalid_request", "custom_id"),
        (line(custom_id="x" * 513), "invalid_request", "custom_id"),
        (line(custom_id="first"), "duplicate_custom_id", "custom_id"),
        (line(method=None), "missing_required_parameter", "method"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url=None), "missing_required_parameter", "url"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (line(body=None), "missing_required_parameter", "body"),
        (line(body=[]), "invalid_request", "body"),
        (line(body={}), "invalid_request", "body.model"),
        (line(body={"model": 1}), "invalid_request", "body.model"),
        (line(body={"model": "m", "stream": True}), "streaming_unsupported", "body.stream"),
        (line(body={"model": "n"}), "mismatched_model", "body.model"),
        (line(body={"model": "m", "x": "y" * LONGEST}), "line_too_long", None),
    ],
)
def test_each_mistake_is_told_with_its_line(tmp_path: Path, raw: bytes, code: str, param: str | None) -> None:
    """Whatever stands around it, and with or without an end of the line."""
    first = line(custom_id="first")
    for data in (first + b"\n\n" + raw, first + b"\r\n \n" + raw + b"\n" + line(custom_id="last") + b"\n"):
        [mistake] = scanned(tmp_path, data).mistakes
        assert (mistake.code, mistake.line, mistake.param) == (code, 3, param)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (line().decode().encode("utf-16"), "save the file as UTF-8, not as UTF-16"),
        ('{"custom_id": "größe"}'.encode("latin-1"), "save the file as UTF-8"),
        (json.dumps(json.loads(line()), indent=2).encode(), "each request stands on one line"),
        (b"[" + line() + b"]", "not a JSON object"),
    ],
)
def test_what_may_be_the_matter_with_a_file_is_told(tmp_path: Path, data: bytes, words: str) -> None:
    """Where its owner could not see it: another encoding, requests over several lines, a list."""
    assert words in scanned(tmp_path, data).mistakes[0].message


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """The first line is found behind it."""
    first, second = line(custom_id="1"), line(custom_id="2")
    data = BOM + first + b"\n" + second
    found = scanned(tmp_path, data)
    assert found.mistakes == []
    places = [msgspec.json.decode(request, type=Place) for request in found.requests]
    assert [data[place.offset :][: place.length].strip() for place in places] == [first, second]


def test_several_mistakes_of_a_line_are_all_told(tmp_path: Path) -> None:
    """Also those of other lines."""
    found = scanned(tmp_path, b"{}\n" + line() + b"\nno")
    assert [(one.line, one.param) for one in found.mistakes] == [
        (1, "custom_id"),
        (1, "method"),
        (1, "url"),
        (1, "body"),
        (3, None),
    ]
    assert (found.model, found.model_line) == ("m", 2)


def test_there_is_an_end_to_mistakes_and_to_lines(tmp_path: Path) -> None:
    """A file of nonsense is not read to its end; one of too many requests is refused."""
    assert len(scanned(tmp_path, b"no\n" * 10_000).mistakes) == MOST_MISTAKES
    many = b"".join(line(custom_id=str(at)) + b"\n" for at in range(MOST_LINES + 1))
    [mistake] = scanned(tmp_path, many).mistakes
    assert (mistake.code, mistake.line) == ("too_many_tasks", MOST_LINES + 1)


@given(st.lists(st.sampled_from(["", " ", "\t", "x", "xx" * 40]), max_size=20), st.booleans())
def test_places_are_those_of_the_lines(tmp_path_factory: Any, shapes: list[str], ended: bool) -> None:
    """What the queue holds of a request finds its line again, whatever blank lines are between."""
    lines = [
        line(custom_id=f"{at}{shape}") if shape.strip() else shape.encode() for at, shape in enumerate(shapes)
    ]
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    found = scanned(tmp_path_factory.getbasetemp(), data)
    wanted = [raw for raw in lines if raw.strip()]
    places = [msgspec.json.decode(request, type=Place) for request in found.requests]
    assert [data[place.offset :][: place.length].strip() for place in places] == wanted
    assert bool(found.mistakes) is (not wanted)


def test_memory_does_not_grow_with_a_file(tmp_path: Path) -> None:
    """Ten thousand lines in and out, 10 MB each way, in a part of that: places and names."""
    count = 10_000
    shelf = Shelf(tmp_path / "files")
    path = shelf.lent("batch_x")
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for at in range(count):
            raw = line(custom_id=str(at), body={"model": "m", "text": "x" * 900}) + b"\n"
            digest.update(raw)
            file.write(raw)
    body = json.dumps({"usage": {"prompt_tokens": 1}, "text": "y" * 900}).encode()
    tracemalloc.start()
    try:
        found = scan(path, CHAT, LONGEST, digest.hexdigest())
        assert not found.mistakes
        assert len(found.requests) == count
        _, scanning = tracemalloc.get_traced_memory()
        del found
        tracemalloc.reset_peak()
        answers = Answers(shelf, "batch_x")
        for at in range(0, count, 50):
            answers.add([ItemResult(place, "done", body) for place in range(at, at + 50)])
        _, writing = tracemalloc.get_traced_memory()
        answers.drop()
    finally:
        tracemalloc.stop()
    assert answers.usage.total_tokens == count
    assert scanning < 4 << 20
    assert writing < 2 << 20


def test_every_end_of_a_request_has_its_line(tmp_path: Path) -> None:
    """Answers in one file, all else in the other, each with what happened to it."""
    shelf = Shelf(tmp_path / "files")
    shelf.lent("batch_x").write_bytes(b"\n".join(line(custom_id=str(at)) for at in range(6)))
    answers = Answers(shelf, "batch_x")
    answers.add(
        [
            ItemResult(0, "failed", failure("x", "no", status=400, type="t", param="p")),
            ItemResult(1, "done", b'{"a":1}'),
            ItemResult(2, "failed", failure("expired", "late")),
            ItemResult(3, "cancelled", None),
            ItemResult(4, "failed", failure("too_many_attempts", "it died")),
            ItemResult(5, "failed", failure("internal_error", "a defect", status=500)),
        ]
    )
    assert answers.good is not None
    assert answers.bad is not None
    answers.good.keep("good")
    answers.bad.keep("bad")
    [good] = [json.loads(raw) for raw in shelf.path("good").read_text().splitlines()]
    assert (good["custom_id"], good["response"]["body"], good["error"]) == ("1", {"a": 1}, None)
    bad = [json.loads(raw) for raw in shelf.path("bad").read_text().splitlines()]
    assert [one["custom_id"] for one in bad] == ["0", "2", "3", "4", "5"]
    assert bad[0]["response"]["status_code"] == 400
    assert bad[0]["response"]["body"] == {"error": {"message": "no", "type": "t", "param": "p", "code": "x"}}
    assert [one["error"]["code"] for one in bad[1:4]] == [
        "batch_expired",
        "batch_cancelled",
        "too_many_attempts",
    ]
    assert [one["error"]["code"] for one in (bad[0], bad[4])] == ["x", "internal_error"]
    assert bad[4]["response"]["body"]["error"]["type"] == "server_error"
    answers.drop()
    assert shelf.path("good").exists()

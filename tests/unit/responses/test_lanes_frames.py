"""Frames of clients, and those that are no event of a response."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_steer_failed_event import ResponseSteerFailedEvent
from openai.types.responses.responses_server_event import ResponseWsError

from modeld.errors import BadRequest, DeadlineExceeded, ModeldError, Overloaded, TooLarge
from modeld.ids import RequestId
from modeld.responses.websocket import frames

ID = RequestId("req_1")


def refused(call: Any, *args: Any) -> BadRequest:
    """Return the error that a call raises."""
    with pytest.raises(BadRequest) as caught:
        call(*args)
    return caught.value


@given(st.binary(max_size=200) | st.dictionaries(st.text(), st.text()).map(lambda o: json.dumps(o).encode()))
def test_any_bytes(raw: bytes) -> None:
    """Whatever comes is a frame or a refusal in words."""
    try:
        value = json.loads(raw.decode(), parse_constant=int)  # NaN and its like are no JSON
    except ValueError:
        value = None
    if isinstance(value, dict):
        assert frames.read(raw).type == value.get("type")
    else:
        assert refused(frames.read, raw).code == "invalid_json"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'"x"', b"null", b"7", b"\xff\xfe", b'{"a":1} {}', b'{"type":"\xff"}']
)
def test_what_is_no_object(raw: bytes) -> None:
    """Anything but one JSON object is invalid_json."""
    assert refused(frames.read, raw).code == "invalid_json"


def test_deep_nesting() -> None:
    """A frame of brackets is refused, and no stack is used up."""
    assert refused(frames.read, b'{"type":' + b"[" * 100_000 + b"]" * 100_000 + b"}").code == "invalid_json"


@given(st.from_regex(r"[A-Za-z0-9_.-]{1,256}", fullmatch=True))
def test_names_of_lanes(name: str) -> None:
    """Letters, digits, underscores, hyphens and periods make a name; an answer to it says it again."""
    assert frames.lane(name) == name
    assert json.loads(b'{"a":1' + frames.end(name)) == {"a": 1, "stream_id": name}


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "é", "a\n", "٣", "x" * 257, 7, True, [], {}, 1.5])
def test_what_is_no_name(name: Any) -> None:
    """Anything else is refused in OpenAI's words."""
    error = refused(frames.lane, name)
    assert (error.code, error.param) == ("invalid_stream_id", "stream_id")
    assert error.message.startswith("The 'stream_id' field must be a non-empty string")


def test_no_name() -> None:
    """No name and null are the lane without one, whose frames have no stream_id."""
    assert frames.lane(None) is None
    assert frames.end(None) == b"}"


@pytest.mark.parametrize(
    ("error", "status", "type", "hints"),
    [
        (BadRequest("no", code="c", param="p"), 400, "invalid_request_error", set()),
        (TooLarge("much"), 413, "invalid_request_error", set()),
        (Overloaded("full", retry_after=2.5), 429, "rate_limit_error", {"retry-after", "retry-after-ms"}),
        (DeadlineExceeded("late"), 504, "server_error", {"x-should-retry"}),
        (ZeroDivisionError("secret"), 500, "server_error", set()),
    ],
)
@pytest.mark.parametrize("lane", [None, "a"])
def test_refusals(error: Exception, status: int, type: str, hints: set[str], lane: str | None) -> None:
    """A refusal is OpenAI's error frame, with HTTP's status and hints, and gives no bug away."""
    raw = frames.refusal(error, ID, frames.end(lane))
    found = json.loads(raw)
    assert ResponseWsError.model_validate(found, strict=True).model_extra == {}
    assert found["status"] == status
    assert set(found["error"]) == {"message", "type", "param", "code"} | ({"headers"} if hints else set())
    assert set(found["error"].get("headers", ())) == hints
    assert found["error"]["type"] == type
    assert found.get("stream_id") == lane
    assert ("stream_id" in found) == (lane is not None)
    assert b"secret" not in raw
    if isinstance(error, ModeldError):
        assert (found["error"]["code"], found["error"]["param"]) == (error.code, error.param)


@given(st.text())
def test_a_refusal_is_one_line(text: str) -> None:
    """Whatever an error quotes, its frame is valid JSON without separators that clients cut at."""
    raw = frames.refusal(BadRequest(text), ID)
    assert not set("\n\r\u2028\u2029\u0085") & set(raw.decode())
    json.loads(raw)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"previous_response_id": "resp_1", "input": "No.\u2028"}, "steering_not_supported"),
        (
            {
                "previous_response_id": "resp_1",
                "input": [{"type": "message", "role": "user", "content": "No."}],
            },
            "steering_not_supported",
        ),
        ({"previous_response_id": "resp_1"}, "invalid_input"),
        ({"input": "x"}, "invalid_input"),
    ],
)
def test_steering(sent: dict[str, Any], code: str) -> None:
    """Who steers gets the input back, in the SDK's shape."""
    raw = frames.steer_failed(json.dumps({"type": "response.steer", **sent}, ensure_ascii=False).encode())
    found = ResponseSteerFailedEvent.model_validate(json.loads(raw), strict=True)
    assert found.error.code == code
    assert json.loads(raw)["steer"]["input"] == sent.get("input", "")
    assert found.steer.previous_response_id == sent.get("previous_response_id", "")


def test_the_head_of_a_create() -> None:
    """What decides before a request's turn comes is read whatever the rest looks like."""
    frame = frames.read(
        b'{"type":"response.create","previous_response_id":"resp_1","temperature":"hot",'
        b'"prompt_cache_options":{"prewarm":true}}'
    )
    assert (frame.type, frame.previous, frame.prewarm) == (frames.CREATE, "resp_1", True)
    frame = frames.read(b'{"previous_response_id":7,"prompt_cache_options":{"prewarm":1}}')
    assert (frame.type, frame.previous, frame.prewarm) == (None, None, False)

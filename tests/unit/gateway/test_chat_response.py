from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import EngineError
from modeld.gateway.families.chat.response import ChatChunks, ChatCollector
from modeld.protocol.tasks import (
    Event,
    Finish,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)

HEAD = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny",'
    b'"system_fingerprint":null,"choices":['
)
USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1, reasoning_tokens=1)
USAGE_BODY = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def _chunks(n: int = 1, include_usage: bool = False) -> ChatChunks:
    return ChatChunks(id="chatcmpl-1", created=7, model="tiny", n=n, include_usage=include_usage)


def _collector(n: int = 1, logprobs: bool = False) -> ChatCollector:
    return ChatCollector(id="chatcmpl-1", created=7, model="tiny", n=n, logprobs=logprobs)


def _data(sse: bytes) -> Any:
    assert sse.startswith(b"data: ")
    assert sse.endswith(b"\n\n")
    assert sse.count(b"\n") == 2
    return json.loads(sse[6:])


def test_the_exact_bytes_of_a_plain_stream() -> None:
    """A role chunk, a chunk for each text, a finish chunk; byte for byte."""
    encoder = _chunks()
    out = encoder.encode([Text("Hi"), Text(" \u2028é"), Finish("stop"), USAGE])
    assert out == [
        HEAD
        + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n',
        HEAD + b'{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]}\n\n',
        HEAD
        + '{"index":0,"delta":{"content":" \\u2028é"},"logprobs":null,"finish_reason":null}]}\n\n'.encode(),
        HEAD + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n',
    ]
    assert encoder.end() == []
    assert encoder.usage == USAGE


def test_usage_comes_last_with_no_choices_and_is_null_before() -> None:
    """With include_usage every chunk has the key, and only the last has the numbers."""
    encoder = _chunks(include_usage=True)
    out = [_data(chunk) for chunk in encoder.encode([Text("Hi"), Finish("stop"), USAGE])]
    assert [chunk["usage"] for chunk in out] == [None, None, None]
    (last,) = encoder.end()
    assert _data(last)["choices"] == []
    assert _data(last)["usage"] == USAGE_BODY


def test_each_choice_has_its_role_and_its_finish() -> None:
    """With n=2 the choices interleave, each with one role chunk first and one finish last."""
    encoder = _chunks(n=2)
    events: list[Event] = [Text("a", 1), Text("b", 0), Text("c", 1), Finish("stop", 1), Finish("length", 0)]
    got = [_data(chunk)["choices"][0] for chunk in encoder.encode(events)]
    for index, text, reason in ((0, "b", "length"), (1, "ac", "stop")):
        mine = [choice for choice in got if choice["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == text
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + [reason]
    assert encoder.end() == []


def test_tool_calls_carry_their_names_once() -> None:
    """The first delta of each call has index, id, type and name; later ones index and arguments only."""
    encoder = _chunks()
    events: list[Event] = [
        ToolCallDelta(0, "", "call_a", "f"),
        ToolCallDelta(0, '{"x":'),
        ToolCallDelta(0, "1}"),
        ToolCallDelta(1, "{}", "call_b", "g"),
        Finish("tool_calls"),
    ]
    deltas = [_data(chunk)["choices"][0]["delta"] for chunk in encoder.encode(events)]
    assert [delta["tool_calls"][0] for delta in deltas[1:-1]] == [
        {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_reasoning_has_a_delta_of_its_own() -> None:
    """Thinking never mixes with the answer's text."""
    deltas = [_data(chunk)["choices"][0]["delta"] for chunk in _chunks().encode([Reasoning("hm"), Text("4")])]
    assert deltas == [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "4"}]


TOKEN = TokenLogprob(
    "Hi", -0.5, (72, 105), (TopLogprob("Hi", -0.5, (72, 105)), TopLogprob("Yo", float("-inf")))
)
TOKEN_BODY = {
    "token": "Hi",
    "logprob": -0.5,
    "bytes": [72, 105],
    "top_logprobs": [
        {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
        {"token": "Yo", "logprob": -9999.0, "bytes": None},
    ],
}


def test_logprobs_in_chat_shape() -> None:
    """Log probabilities stand beside exactly their text, in the stream and in the body."""
    choice = _data(_chunks().encode([Text("Hi", logprobs=(TOKEN,))])[1])["choices"][0]
    assert choice["delta"] == {"content": "Hi"}
    assert choice["logprobs"] == {"content": [TOKEN_BODY], "refusal": None}
    whole = _collector(logprobs=True)
    whole.add([Text("Hi", logprobs=(TOKEN,)), Finish("stop")])
    assert json.loads(whole.body())["choices"][0]["logprobs"] == {"content": [TOKEN_BODY], "refusal": None}


def test_a_choice_without_a_finish_is_an_error() -> None:
    """An engine that stops in the middle does not look complete, streamed or not."""
    encoder, whole = _chunks(n=2), _collector(n=2)
    events: list[Event] = [Text("a"), Finish("stop"), Text("b", 1), USAGE]
    encoder.encode(events)
    whole.add(events)
    with pytest.raises(EngineError):
        encoder.end()
    with pytest.raises(EngineError):
        whole.body()


def test_the_whole_body() -> None:
    """A completion has every key, and its texts are the joined pieces."""
    whole = _collector(n=2)
    whole.add([Reasoning("h"), Text("Hel"), Text("x", 1), Reasoning("m")])
    whole.add([Text("lo"), Finish("stop"), Finish("length", 1), USAGE])
    assert json.loads(whole.body()) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "tiny",
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "reasoning_content": "hm",
                },
                "logprobs": None,
                "finish_reason": "stop",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "x", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            },
        ],
        "usage": USAGE_BODY,
    }


def test_content_is_null_only_beside_tool_calls() -> None:
    """An empty answer is "", an answer that only calls tools is null."""
    empty, calling = _collector(), _collector()
    empty.add([Finish("stop")])
    calling.add([ToolCallDelta(0, '{"a"', "c1", "f"), ToolCallDelta(0, ":1}"), Finish("tool_calls")])
    assert json.loads(empty.body())["choices"][0]["message"]["content"] == ""
    message = json.loads(calling.body())["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.text())), st.booleans())
def test_streamed_and_whole_say_the_same(pieces: list[tuple[int, str]], include_usage: bool) -> None:
    """Joined deltas are the body's content, for any text, and every event is one line of valid JSON."""
    events: list[Event] = [Text(text, index) for index, text in pieces]
    events += [Finish("stop", index) for index in range(3)]
    encoder, whole = _chunks(3, include_usage), _collector(3)
    whole.add(events)
    joined = ["", "", ""]
    for sse in encoder.encode(events):
        assert not set(sse.decode()) & set("\u2028\u2029\u0085")
        choice = _data(sse)["choices"][0]
        joined[choice["index"]] += choice["delta"].get("content", "")
    assert joined == [choice["message"]["content"] for choice in json.loads(whole.body())["choices"]]

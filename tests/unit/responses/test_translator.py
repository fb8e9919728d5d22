"""What a response looks like in the cases people ask about; `test_translator_rules` has the random ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from modeld.protocol.tasks import Event, Finish, Reasoning, Text, TokenLogprob, ToolCallDelta, Usage
from modeld.responses import events as e
from modeld.responses.items import Response
from modeld.responses.translator import HeldCall, Translator
from tests.fixtures.openai_schema.check import check, check_text


def names() -> Callable[[str], str]:
    """Give ids that are counted."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


def translator(**options: Any) -> Translator:
    """Return one for a response as it is before any work."""
    return Translator(Response(id="resp_1", created_at=1, model="m"), names(), **options)


def bodies(events: list[e.StreamEvent]) -> list[dict[str, Any]]:
    """Return events as clients read them, valid to everybody."""
    return [check_text(e.payload(event)) for event in events]


def kinds(events: list[e.StreamEvent]) -> list[str]:
    """Return the types of events, without what all begin with."""
    return [body["type"].removeprefix("response.") for body in bodies(events)]


def test_a_thought_and_a_text() -> None:
    """The order of OpenAI's own streams, every event valid."""
    run = translator()
    events = run.begin()
    events += run.feed([Reasoning("hm"), Text("he"), Text("llo"), Finish("stop"), Usage(3, 2, 1, 1)])
    events += [*run.settle(), run.finish(9)]
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    response = bodies(events)[-1]["response"]
    assert response["completed_at"] == 9
    assert response["usage"] == {
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    assert response["output"][0] == {
        "type": "reasoning",
        "id": "rs_0",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }


def test_a_thought_as_a_summary_and_sealed() -> None:
    """Where a summary was asked for there is no raw thought; the seal is over all of it."""
    run = translator(summarised=True, seal=str.upper)
    events = run.feed([Reasoning("so "), Reasoning("so"), Finish("length")]) + run.settle()
    assert kinds(events) == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert bodies(events)[-2]["status"] == "incomplete"
    assert bodies(events)[-1]["item"] == {
        "type": "reasoning",
        "id": "rs_0",
        "status": "incomplete",
        "summary": [{"type": "summary_text", "text": "so so"}],
        "content": [],
        "encrypted_content": "SO SO",
    }


def test_calls_of_servers_are_held_back() -> None:
    """They make no event, end what was said before them, and are told once; plain calls stay plain."""
    run = translator(remote={"search"})
    said: list[Event] = [
        Text("let me see"),
        ToolCallDelta(0, '{"q":', "call_a", "search"),
        ToolCallDelta(0, "1}"),
        ToolCallDelta(1, "{}", "call_b", "own"),
        ToolCallDelta(2, "", "call_c", "search"),
        Finish("tool_calls"),
    ]
    events = run.feed(said) + run.turn()
    assert [body["item"]["type"] for body in bodies(events) if "item" in body] == [
        "message",
        "message",
        "function_call",
        "function_call",
    ]
    assert run.take_held() == [HeldCall("call_a", "search", '{"q":1}'), HeldCall("call_c", "search", "")]
    assert run.take_held() == []
    assert [(call.call_id, call.arguments) for call in run.calls] == [("call_b", "{}")]
    run.feed([Text("next")])
    assert run.calls == []


def test_calls_that_were_cut_are_not_made() -> None:
    """Half an argument is not to be sent to anybody."""
    run = translator(remote={"search"})
    run.feed([ToolCallDelta(0, '{"q":', "call_a", "search"), Finish("length")])
    assert run.settle() == []
    assert run.take_held() == []


def test_a_call_at_a_server() -> None:
    """As OpenAI streams it: all arguments at once, and keys that are null until they are known."""
    run = translator()
    events = run.call_begin("srv", "tool", '{"a":1}', "mcpr_9")
    added = bodies(events)[0]["item"]
    assert added == {
        "type": "mcp_call",
        "id": "mcp_0",
        "server_label": "srv",
        "name": "tool",
        "arguments": "",
        "approval_request_id": "mcpr_9",
        "output": None,
        "error": None,
        "status": "in_progress",
    }
    error = {"type": "http_error", "code": 502, "message": "bad gateway"}
    done = bodies(run.call_end(None, error))
    assert [body["type"] for body in done] == ["response.mcp_call.failed", "response.output_item.done"]
    assert done[1]["item"] == added | {"arguments": '{"a":1}', "error": error, "status": "failed"}


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_what_is_cut_short_is_incomplete(reason: Any) -> None:
    """The response says why, and the item that was open is incomplete."""
    run = translator()
    run.feed([Text("half a sen"), Finish(reason), Usage(1, 2)])
    run.settle()
    last = run.finish(2)
    assert isinstance(last, e.IncompleteEvent)
    assert last.response.status == "incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == {"length": "max_output_tokens"}.get(reason, reason)
    assert [item.status for item in last.response.output] == ["incomplete"]
    assert last.response.completed_at is None


def test_an_end_that_could_not_be_stored_is_replaced() -> None:
    """The client sees one last event, at the number of the one that was never sent."""
    run = translator()
    run.begin()
    first = run.finish(5)
    (last,) = run.fail("store_failed", "no space left", 6)
    assert isinstance(last, e.Failed)
    assert last.sequence_number == first.sequence_number == 2
    assert last.response.completed_at is None
    assert last.response.error is not None
    assert (last.response.error.code, last.response.error.message) == ("server_error", "no space left")


def test_an_error_is_told_in_both_shapes() -> None:
    """Flat for those who type it so, nested for those who read OpenAI's streams; the failure follows."""
    run = translator()
    run.begin()
    run.finish(5)
    events = run.error("store_failed", "no space left", "store", "server_error")
    events += run.fail("store_failed", "no space left", 6)
    assert bodies(events)[0] == {
        "type": "error",
        "sequence_number": 2,
        "code": "store_failed",
        "message": "no space left",
        "param": "store",
        "error": {
            "type": "server_error",
            "code": "store_failed",
            "message": "no space left",
            "param": "store",
        },
    }
    assert kinds(events) == ["error", "failed"]


def test_cancelling_ends_as_incomplete() -> None:
    """There is no event of that name; the status says it."""
    run = translator()
    run.feed([Text("so")])
    events = run.cancel(3)
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]
    response = bodies(events)[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("cancelled", None)
    assert response["output"][0]["status"] == "incomplete"


def test_log_probabilities_have_bytes() -> None:
    """A list, never null, and a number that JSON can hold."""
    run = translator()
    (*_, delta) = bodies(run.feed([Text("ä", 0, (TokenLogprob("ä", float("-inf")),))]))
    assert delta["logprobs"] == [
        {"token": "ä", "logprob": -9999.0, "bytes": [0xC3, 0xA4], "top_logprobs": []}
    ]
    done = bodies(run.settle())
    assert done[0]["logprobs"] == done[1]["part"]["logprobs"] == delta["logprobs"]


def test_what_was_stored_is_framed_the_same() -> None:
    """A log keeps the JSON text; its event is the one that was sent."""
    for event in translator().begin():
        assert e.framed(e.payload(event)) == e.frame(event)


KEYS = """
    id object created_at completed_at status incomplete_details model previous_response_id instructions output
    error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty
    top_logprobs temperature reasoning usage max_output_tokens max_tool_calls store background service_tier
    metadata safety_identifier prompt_cache_key
"""
NULL = """
    completed_at incomplete_details previous_response_id instructions error reasoning usage max_output_tokens
    max_tool_calls safety_identifier prompt_cache_key
"""


def test_all_keys_are_always_there() -> None:
    """The object has each key of the Open Responses schema; of all others, only those with a value."""
    body = json.loads(msgspec.json.encode(Response(id="resp_1", created_at=1, model="m")))
    assert len(KEYS.split()) == 31
    assert set(KEYS.split()) == body.keys()
    assert {key for key, value in body.items() if value is None} == set(NULL.split())
    check("Response", body)
    more = Response(id="resp_1", created_at=1, model="m", conversation={"id": "conv_1"}, user="me")
    body = json.loads(msgspec.json.encode(more))
    assert body.keys() - set(KEYS.split()) == {"conversation", "user"}
    check("Response", body)

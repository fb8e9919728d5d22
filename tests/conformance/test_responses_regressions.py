"""Defects that other servers of the Responses API have had, each as what a caller must see here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai.types.responses import ResponseCompactionItem

from tests.conformance.python_sdk import LENIENT, AsyncSdk
from tests.conformance.responses_daemon import ANSWER, PARIS, THOUGHT, WEATHER, said, scripted
from tests.harness.daemon import Daemon
from tests.harness.models import llama
from tests.harness.responses import check_response, send, stream

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

ASK = {"model": "thinker", "input": "What is the weather?"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Any) -> AsyncIterator[Daemon]:
    """Run a daemon with SmolLM2, for its template, and scripted models."""
    async with scripted(
        "thinker", "caller", "failing", more=(llama("plain", demo_gguf, n_ctx=256),)
    ) as started:
        yield started


async def ask(daemon: Daemon, **body: Any) -> dict[str, Any]:
    """Ask plainly and return the response."""
    answer = await send(daemon.url, "responses", body)
    assert answer.status == 200, answer.body
    check_response(answer.json)
    found: dict[str, Any] = answer.json
    return found


async def test_parallel_calls_are_items_of_their_own(daemon: Daemon) -> None:
    """Two calls of one turn come one after the other, each with index, ids and all its arguments."""
    body = {**ASK, "model": "caller", "tools": [WEATHER]}
    answer = await stream(daemon.url, body)
    final = answer.whole()
    calls = [item for item in final["output"] if item["type"] == "function_call"]
    assert [json.loads(call["arguments"]) for call in calls] == [PARIS, PARIS]
    assert len({call["id"] for call in calls}) == len({call["call_id"] for call in calls}) == 2
    created = answer.events[0]["response"]
    assert created["model"] == "caller"
    assert created["created_at"] == final["created_at"]
    single = (await stream(daemon.url, {**body, "parallel_tool_calls": False})).whole()
    assert [item["type"] for item in single["output"]] == ["reasoning", "function_call"]


async def test_calls_stay_in_the_chain(daemon: Daemon) -> None:
    """A chain keeps calls and their outputs; an output is matched with a call two responses ago as well."""
    first = await ask(daemon, **{**ASK, "model": "caller", "tools": [WEATHER]})
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    second = await ask(
        daemon, model="caller", input=outputs, tools=[WEATHER], previous_response_id=first["id"]
    )
    assert said(second["output"]) == [("message", ANSWER)]
    third = await ask(daemon, **ASK, previous_response_id=second["id"])
    page = await send(daemon.url, f"responses/{third['id']}/input_items?order=asc&limit=100")
    kinds = [item["type"] for item in page.json["data"]]
    assert kinds[-1] == "message"
    lengths = [each["usage"]["input_tokens"] for each in (first, second, third)]
    assert lengths[0] < lengths[1]


async def test_a_stored_stream_can_be_continued_at_its_last_event(daemon: Daemon) -> None:
    """The response is stored before response.completed is sent: who chains at once finds it."""
    for _ in range(10):
        answer = await stream(daemon.url, ASK, lambda event: event["type"] == "response.completed")
        id = answer.events[-1]["response"]["id"]
        assert (await ask(daemon, **ASK, previous_response_id=id))["previous_response_id"] == id


async def test_thoughts_are_told_three_times(daemon: Daemon) -> None:
    """Raw thoughts come as deltas, as a whole, and in the item at its end; summaries where asked for."""
    answer = await stream(daemon.url, ASK)
    final = answer.whole()
    done = [event["text"] for event in answer.events if event["type"] == "response.reasoning_text.done"]
    assert done == [THOUGHT]
    assert final["output"][0]["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    body = {**ASK, "reasoning": {"summary": "auto"}}
    answer = await stream(daemon.url, body)
    final = answer.whole()
    assert final["output"][0]["summary"] == [{"type": "summary_text", "text": THOUGHT}]
    assert not [event for event in answer.events if "reasoning_text" in event["type"].split(".")]
    assert final["reasoning"]["summary"] == "auto"


async def test_ids_and_statuses_may_be_null(daemon: Daemon) -> None:
    """A caller may send items back with their ids and statuses null, absent, or as they came."""
    first = await ask(daemon, **ASK)
    for change in ({}, {"id": None, "status": None}):
        items = [{**item, **change} for item in first["output"]]
        given = [{"role": "user", "content": ASK["input"]}, *items, {"role": "user", "content": "Thanks."}]
        found = await ask(daemon, model="plain", input=given, max_output_tokens=1)
        assert found["usage"]["input_tokens"] > 0


async def test_developers_are_heard_anywhere(daemon: Daemon) -> None:
    """Messages of developers and systems, also behind the user's, reach a template that wants one first."""
    given = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Go on."},
    ]
    body = {"model": "plain", "input": given, "max_output_tokens": 1}
    assert (await ask(daemon, **body, instructions="Be kind."))["status"] == "incomplete"


async def test_null_is_as_good_as_absent(daemon: Daemon) -> None:
    """Every optional parameter may be null, and the response then shows its default."""
    names = """
        temperature top_p tools tool_choice truncation background service_tier store stream metadata text
        reasoning include instructions previous_response_id conversation max_output_tokens max_tool_calls
        parallel_tool_calls prompt_cache_key safety_identifier user top_logprobs stream_options prompt
    """
    found = await ask(daemon, **ASK, **dict.fromkeys(names.split()))
    assert (found["temperature"], found["top_p"], found["tool_choice"]) == (1.0, 1.0, "auto")
    assert (found["truncation"], found["store"], found["metadata"]) == ("disabled", True, {})


async def test_too_long_is_refused_or_cut_as_asked(daemon: Daemon) -> None:
    """A chain over the context is a 400, and with truncation=auto its oldest items are left out."""
    pages = [{"role": "user", "content": f"Page {number}: " + "sheep " * 50} for number in range(8)]
    given = [*pages, {"role": "user", "content": "How many pages?"}]
    body = {"model": "plain", "input": given, "max_output_tokens": 4}
    refused = await send(daemon.url, "responses", body)
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")
    found = await ask(daemon, **body, truncation="auto")
    assert 128 < found["usage"]["input_tokens"] < 256
    assert found["truncation"] == "auto"


@pytest.mark.parametrize(
    "kind",
    ["web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "computer"],
)
async def test_hosted_tools_are_named_in_their_refusal(daemon: Daemon, kind: str) -> None:
    """A tool that OpenAI hosts is a 400 that names it, never a 5xx and never silence."""
    answer = await send(daemon.url, "responses", {**ASK, "tools": [{"type": kind}]})
    assert answer.status == 400
    assert kind in answer.json["error"]["message"]
    assert answer.json["error"]["param"] == "tools[0].type"


async def test_a_failure_on_the_way_ends_the_stream(daemon: Daemon) -> None:
    """An engine that fails in the middle: what it had said is closed, response.failed is the end, and it is
    kept as failed.
    """
    answer = await stream(daemon.url, {"model": "failing", "input": "Drive on."})
    final = answer.whole()
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
    assert said(final["output"]) == [("message", "So far, so good.")]
    assert final["output"][0]["status"] == "incomplete"
    kept = await send(daemon.url, f"responses/{final['id']}")
    assert kept.json == final


@pytest.mark.parametrize(
    "body",
    [
        {"model": [None, None]},
        {"model": "thinker", "input": {"a": 1}},
        {"model": "thinker", "input": [None]},
        {"model": "thinker", "input": [{"type": "message", "role": "user", "content": [{"type": "x"}]}]},
        {"model": "thinker", "input": [{"type": "message", "role": "cat", "content": "x"}]},
        {"model": "thinker", "input": [{"type": "item_reference", "id": "msg_0"}]},
        {"model": "thinker", "input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        {"model": "thinker", "input": "x", "tools": [{"type": "function"}]},
        {"model": "thinker", "input": "x", "tool_choice": {"type": "function", "name": "nope"}},
        {"model": "thinker", "input": "x", "metadata": {"k": 1}},
        {"model": "thinker", "input": "x", "max_output_tokens": -1},
        {"model": "thinker", "input": "x\ud800"},
        {"model": "thinker", "input": "x", "reasoning": {"effort": "heroic"}},
        {"model": "thinker", "input": "x", "prompt": {"id": "pmpt_1"}},
        {
            "model": "thinker",
            "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}],
        },
    ],
)
async def test_nonsense_is_the_callers_fault(daemon: Daemon, body: dict[str, Any]) -> None:
    """A body that makes no sense is a 400 with OpenAI's envelope, and the daemon serves on."""
    answer = await send(daemon.url, "responses", body)
    assert answer.status == 400, answer.body
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert answer.json["error"]["type"] == "invalid_request_error"


async def test_store_false_carries_its_thoughts(daemon: Daemon) -> None:
    """reasoning.encrypted_content, asked for, is opaque, and read again when it is sent back."""
    body = {**ASK, "store": False, "include": ["reasoning.encrypted_content"]}
    first = await ask(daemon, **body)
    thought = first["output"][0]
    assert thought["encrypted_content"]
    assert THOUGHT not in thought["encrypted_content"]
    sealed = {key: thought[key] for key in ("type", "id", "encrypted_content")} | {"summary": []}
    given = [
        {"role": "user", "content": ASK["input"]},
        sealed,
        first["output"][1],
        {"role": "user", "content": "So?"},
    ]
    with_thought = await ask(daemon, **{**body, "input": given})
    without = await ask(daemon, **{**body, "input": [given[0], *given[2:]]})
    read = with_thought["usage"]["input_tokens"] - without["usage"]["input_tokens"]
    assert read == len(THOUGHT.split())


async def test_many_at_once_do_not_mix(daemon: Daemon) -> None:
    """Twenty chains at the same time, each continued: every one finds its own."""

    async def chain(number: int) -> None:
        first = await ask(daemon, **{**ASK, "metadata": {"n": str(number)}})
        second = await ask(daemon, **ASK, previous_response_id=first["id"])
        kept = (await send(daemon.url, f"responses/{first['id']}")).json
        assert kept["metadata"] == {"n": str(number)}
        assert second["previous_response_id"] == first["id"]

    await asyncio.gather(*(chain(number) for number in range(20)))


async def test_compacting(daemon: Daemon) -> None:
    """A conversation is compacted into an item that nobody can read, and goes on from it.

    The SDK is not strict here: the output begins with what the user said, and the SDK's type knows messages
    of the assistant only, though its words are that these come first.
    """
    turns = [
        {"role": "user", "content": "We launch on Tuesday."},
        {"role": "assistant", "content": "Noted, Tuesday."},
    ]
    async with AsyncSdk(daemon.url) as sdk:
        lenient = sdk.client.copy(_extra_kwargs=LENIENT)
        made = await lenient.responses.compact(model="plain", input=turns)  # type: ignore[arg-type]
    kept = [item.to_dict(warnings=False) for item in made.output]
    assert (made.object, [item["type"] for item in kept]) == (
        "response.compaction",
        ["message", "compaction"],
    )
    compaction = ResponseCompactionItem.model_validate(kept[-1], strict=True)
    assert "Tuesday" not in compaction.encrypted_content
    question = {"role": "user", "content": "When do we launch?"}
    body = {"model": "plain", "max_output_tokens": 1}
    whole = await ask(daemon, **body, input=[*kept, question])
    bare = await ask(daemon, **body, input=[kept[0], question])
    assert whole["usage"]["input_tokens"] > bare["usage"]["input_tokens"]
    damaged = {**kept[-1], "encrypted_content": compaction.encrypted_content[:-4] + "AAAA"}
    answer = await send(daemon.url, "responses", {**body, "input": [damaged, question]})
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


async def test_what_was_asked_is_shown(daemon: Daemon) -> None:
    """A response shows the parameters it was made with, in the created event and at the end."""
    asked = {
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "max_tool_calls": 3,
        "metadata": {"a" * 64: "b" * 512},
        "parallel_tool_calls": False,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "prompt_cache_key": "key",
        "reasoning": {"effort": "low", "summary": "detailed"},
        "safety_identifier": "someone",
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
        "tools": [WEATHER],
        "top_logprobs": 2,
        "top_p": 0.9,
        "truncation": "auto",
        "user": "somebody",
    }
    answer = await stream(
        daemon.url, {**ASK, **asked, "service_tier": "flex", "stream_options": {"include_obfuscation": False}}
    )
    final = answer.whole()
    for response in (answer.events[0]["response"], final):
        assert {name: response[name] for name in asked} == asked
    assert final["service_tier"] == "default"


@pytest.mark.parametrize(
    "given",
    [
        "text",
        [{"role": "user", "content": "text"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "text"}]}],
        [
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": "x"},
        ],
        [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        ],
        [
            {"role": "user", "content": "x"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}", "id": None},
            {"type": "function_call_output", "call_id": "d", "output": "x"},
            {"type": "function_call_output", "call_id": "c", "output": "x", "status": None},
        ],
    ],
    ids=["text", "easy", "parts", "refusal", "parts of an output", "parallel calls"],
)
async def test_input_as_clients_write_it(daemon: Daemon, given: Any) -> None:
    """Input is taken in every form that clients use, and listed with a type and an id for each item."""
    found = await ask(daemon, **{**ASK, "input": given})
    page = (await send(daemon.url, f"responses/{found['id']}/input_items?order=asc")).json
    assert [item["type"] for item in page["data"]] == [
        item.get("type", "message") for item in ([{}] if given == "text" else given)
    ]
    assert all(item["id"] for item in page["data"])
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])


async def test_items_by_reference(daemon: Daemon) -> None:
    """An item that is kept can be named by its id in place of being sent."""
    first = await ask(daemon, **{**ASK, "model": "caller", "tools": [WEATHER]})
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    question = {"role": "user", "content": ASK["input"]}
    body = {**ASK, "model": "caller", "tools": [WEATHER]}
    named = await ask(daemon, **{**body, "input": [question, *references, *outputs]})
    sent = await ask(daemon, **{**body, "input": [question, *first["output"], *outputs]})
    assert said(named["output"]) == said(sent["output"]) == [("message", ANSWER)]
    assert named["usage"]["input_tokens"] == sent["usage"]["input_tokens"]


async def test_a_coding_agents_request(daemon: Daemon) -> None:
    """What coding agents send is taken: fields that nobody here knows, two developers, thoughts sealed and
    sent back before a call and its output, nothing stored.
    """
    body = {
        "model": "caller",
        "tools": [WEATHER],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a22df9-024e-7552-a4aa-144018889f9f",
        "client_metadata": {"turn_id": "01a22df9-026a-7680-9946-0e295659d717"},
    }
    developers = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": text}]}
        for text in ("Be brief.", "You are in a sandbox.")
    ]
    asked = [
        *developers,
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    ]
    first = (await stream(daemon.url, {**body, "input": asked})).whole()
    thought, call = first["output"]
    thought = {key: value for key, value in thought.items() if key not in ("id", "status", "content")}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    second = (await stream(daemon.url, {**body, "input": [*asked, thought, call, output]})).whole()
    assert said(second["output"]) == [("message", ANSWER)]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + len(THOUGHT.split())

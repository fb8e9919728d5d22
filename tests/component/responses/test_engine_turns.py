"""One response by turns of a model: what it is asked for, what is made of its answers, when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import BadRequest, EngineError, ModeldError, Overloaded
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import (
    CountTask,
    Finish,
    FunctionTool,
    Reasoning,
    Task,
    Text,
    TokenLogprob,
    ToolChoice,
    TopLogprob,
    Usage,
)
from tests.component.responses.served_http import Api, calls, error_of, hanging, said, serving, turns, words
from tests.fakes.pool import Answer, FakePool, model
from tests.harness.mcp_server import Server
from tests.harness.mcp_server import serving as serving_tools
from tests.harness.responses import check_response, check_stream

F = {"type": "function", "name": "f", "parameters": {"type": "object"}}
G = {"type": "function", "name": "g", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def tools() -> Iterator[Server]:
    """Run an MCP server."""
    with serving_tools() as server:
        yield server


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Serve one model that says Hello."""
    async with serving(tmp_path, FakePool()) as api:
        yield api


def remote(server: Server, path: str = "/mcp", **fields: Any) -> dict[str, Any]:
    """Return the tool that stands for a server."""
    return {
        "type": "mcp",
        "server_label": "files",
        "server_url": server.at(path),
        "require_approval": "never",
        **fields,
    }


# --- what a model is asked ----------------------------------------------------------------------------------


async def test_the_fields_reach_the_model(api: Api) -> None:
    """Sampling, instructions, format, tools and effort are the task's; the rest is for the response alone."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    body = await api.create(
        instructions="Be kind.",
        max_output_tokens=50,
        temperature=0.5,
        top_p=0.25,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        tools=[F],
    )
    task = api.task()
    assert [(message.role, message.content) for message in task.messages] == [
        ("system", "Be kind."),
        ("user", "hi"),
    ]
    sampling = task.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (50, 0.5, 0.25)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (task.parallel_tool_calls, task.reasoning_effort) == (False, "low")
    assert (task.format.kind, task.format.schema, task.format.strict) == ("json_schema", schema, True)
    assert task.tools == (FunctionTool(name="f", parameters={"type": "object"}),)
    check_response(body)
    assert body["text"]["format"] == {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert (body["instructions"], body["temperature"], body["top_p"]) == ("Be kind.", 0.5, 0.25)
    assert await api.get(body["id"]) == body


@pytest.mark.parametrize("kind", ["text", "json_object"])
async def test_plain_formats(api: Api, kind: str) -> None:
    """text and json_object reach the model, and are shown as they came."""
    body = await api.create(text={"format": {"type": kind}, "verbosity": "low"})
    assert api.task().format.kind == kind
    assert body["text"] == {"format": {"type": kind}, "verbosity": "low"}


CHOICES: list[tuple[Any, ToolChoice, list[str]]] = [
    (None, ToolChoice(), ["f", "g"]),
    ("auto", ToolChoice(), ["f", "g"]),
    ("none", ToolChoice(mode="none"), ["f", "g"]),
    ("required", ToolChoice(mode="required"), ["f", "g"]),
    ({"type": "function", "name": "g"}, ToolChoice(mode="function", name="g"), ["f", "g"]),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        ToolChoice(),
        ["f"],
    ),
    (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
        ToolChoice(mode="required"),
        ["g"],
    ),
]


@pytest.mark.parametrize(("choice", "asked", "shown"), CHOICES, ids=lambda value: str(value)[:40])
async def test_every_form_of_a_tool_choice(
    api: Api, choice: Any, asked: ToolChoice, shown: list[str]
) -> None:
    """A choice reaches the model as its mode and name; tools that are not allowed are not shown to it."""
    body = await api.create(tools=[F, G], tool_choice=choice)
    task = api.task()
    assert task.tool_choice == asked
    assert [tool.name for tool in task.tools] == shown
    assert body["tool_choice"] == (choice or "auto")
    assert [tool["name"] for tool in body["tools"]] == ["f", "g"]


async def test_logprobs_are_given_where_they_are_included(api: Api) -> None:
    """include brings log probabilities into the item and the stream; without it there are empty lists."""
    token = TokenLogprob("Hi", -0.5, (72, 105), (TopLogprob("Hi", -0.5, (72, 105)),))
    api.pool.answer = lambda model, task: [
        [Text("Hi", logprobs=(token,))],
        [Finish("stop")],
        [Usage(5, 1)],
        None,
    ]
    body = await api.create(include=["message.output_text.logprobs"], top_logprobs=1)
    [part] = body["output"][0]["content"]
    one = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
    assert part["logprobs"] == [{**one, "top_logprobs": [one]}]
    assert api.task().top_logprobs == 1
    assert (await api.get(body["id"]))["output"][0]["content"] == [part]
    api.pool.answer = None
    assert (await api.create())["output"][0]["content"][0]["logprobs"] == []
    assert api.task().top_logprobs is None


async def test_an_encrypted_thought_comes_back_without_the_store(api: Api) -> None:
    """With store false and include, a thought is carried by the caller, and read again by the next turn."""
    api.pool.answer = turns(
        [[Reasoning("I think.")], [Text("So.")], [Finish("stop")], [Usage(5, 3)], None], said("Yes.")
    )
    first = await api.create(store=False, include=["reasoning.encrypted_content"])
    thought, message = first["output"]
    assert thought["encrypted_content"]
    assert "I think." not in thought["encrypted_content"]
    carried = {key: value for key, value in thought.items() if key != "content"}
    question = {"role": "user", "content": "Sure?"}
    await api.create([{"role": "user", "content": "hi"}, carried, message, question], store=False)
    [_, turn, _] = api.task().messages
    assert (turn.role, turn.reasoning, turn.content) == ("assistant", "I think.", "So.")
    plain = await api.create()
    assert all("encrypted_content" not in item for item in plain["output"])


async def test_a_stream_with_all_kinds_of_items_is_in_order(api: Api) -> None:
    """Thoughts, text and two calls make a stream that is whole, and the same response as is stored."""
    api.pool.answer = lambda model, task: [
        [Reasoning("Hm"), Reasoning(", well.")],
        [Text("Let me"), Text(" see.")],
        *calls(("f", {"a": 1}), ("g", {"b": [1, 2]})),
    ]
    events = await api.stream(tools=[F, G])
    final = check_stream(events)
    assert [item["type"] for item in final["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert [item["arguments"] for item in final["output"][2:]] == ['{"a": 1}', '{"b": [1, 2]}']
    assert await api.get(final["id"]) == final


# --- how it ends --------------------------------------------------------------------------------------------


async def test_a_limit_of_tokens_makes_it_incomplete(api: Api) -> None:
    """Cut short by max_output_tokens: status incomplete with the reason, stored so, in both modes."""
    api.pool.answer = lambda model, task: [[Text("So much")], [Finish("length")], [Usage(5, 2)], None]
    body = await api.create(max_output_tokens=2)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert await api.get(body["id"]) == body
    final = check_stream(await api.stream(max_output_tokens=2))
    assert final["status"] == "incomplete"
    assert final["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("full", retry_after=3.0), 429),
        (EngineError("the wheels came off"), 502),
        (BadRequest("no pictures", code="unsupported", param="messages"), 400),
    ],
    ids=["full", "engine", "request"],
)
async def test_an_error_before_the_first_event_is_a_plain_answer(
    api: Api, error: ModeldError, status: int
) -> None:
    """What fails before anything was sent has its true status, in both modes, and leaves nothing stored."""
    api.pool.answer = lambda model, task: error
    for mode in ({}, {"stream": True}):
        found, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi", **mode})
        assert found == status
        assert error_of(answer)["message"] == str(error)
    assert await api.rows("response") == await api.rows("item") == 0


async def test_an_error_in_the_middle_is_an_error_event_and_a_failed_response(api: Api) -> None:
    """After the first event: the open item is closed, an error told, response.failed ends it, as stored."""
    api.pool.answer = lambda model, task: [[Text("So")], EngineError("the wheels came off")]
    events = await api.stream()
    kinds = [event["type"] for event in events]
    assert kinds.count("error") == kinds.count("response.failed") == 1
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["message"]) == ("failed", "the wheels came off")
    [item] = failed["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "So")
    assert await api.get(failed["id"]) == failed
    status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi"})
    assert (status, error_of(answer)["message"]) == (502, "the wheels came off")


async def test_an_engine_that_ends_without_a_reason_has_failed(api: Api) -> None:
    """A call that ends without Finish is no answer: 502, or a failed response."""
    api.pool.answer = lambda model, task: [[Text("So")], None]
    status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi"})
    assert (status, error_of(answer)["code"]) == (502, "incomplete_answer")
    assert (await api.stream())[-1]["response"]["status"] == "failed"


async def test_the_time_of_a_request_is_limited(tmp_path: Path) -> None:
    """request_timeout ends a silent model: 504 as a whole, a failed response on a stream that has begun."""
    pool = FakePool(answer=lambda model, task: hanging("So"))
    async with serving(tmp_path, pool, request_timeout=1.0) as api:
        status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi"})
        assert (status, error_of(answer)["code"]) == (504, "request_timeout")
        *_, told, _, _, _, failed = await api.stream()
        assert told["type"] == "error" or failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert all(stream.cancelled for stream in pool.streams)


async def test_a_silent_model_shows_life_on_a_stream(tmp_path: Path) -> None:
    """Where nothing comes, the first events come, then comments; they take no numbers."""
    pool = FakePool(answer=lambda model, task: [])
    async with serving(tmp_path, pool, keepalive_interval=0.02) as api:
        reading = asyncio.ensure_future(
            api.events("POST", "responses", {"model": "tiny", "input": "hi", "stream": True})
        )
        await pool.opened.wait()
        [stream] = pool.streams
        while stream.takes < 5:
            await asyncio.sleep(0.005)
        stream.feed(*said())
        events = await reading
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "comment"]
    check_stream([event for event in events if event["type"] != "comment"])


# --- truncation ---------------------------------------------------------------------------------------------


def narrow(limit: int) -> FakePool:
    """Return a pool whose model holds so many words, and refuses more."""

    def answer(model: str, task: Task) -> list[Answer] | BadRequest:
        if isinstance(task, CountTask):
            return [[Usage(words(task.chat), 0)], None]
        assert not isinstance(task, CountTask)
        count = words(task)  # type: ignore[arg-type]
        if count >= limit:
            return BadRequest(
                f"{count} tokens are too many", code="context_length_exceeded", param="messages"
            )
        return said("Fine.")

    facts = Facts(loader="fake", device="cpu", context_length=limit, capabilities=("chat",))
    return FakePool(models={"tiny": model("tiny", facts=facts)}, answer=answer)


async def test_too_long_an_input_is_refused_or_shortened(tmp_path: Path) -> None:
    """truncation disabled: 400 that names input. auto: the oldest turns are left out of the prompt, not of
    what is stored, and instructions stay.
    """
    async with serving(tmp_path, narrow(20)) as api:
        long = [{"role": "user", "content": f"question number {number}"} for number in range(9)]
        for fields in ({}, {"truncation": "disabled"}):
            status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": long, **fields})
            error = error_of(answer)
            assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
        body = await api.create(long, truncation="auto", instructions="Be short.")
        assert body["truncation"] == "auto"
        texts = [message.content for message in api.task().messages]
        assert texts[0] == "Be short."
        assert texts[-1] == "question number 8"
        assert 2 < len(texts) < 9
        assert texts[1:] == [item["content"] for item in long[-len(texts) + 1 :]]
        status, page = await api.ask("GET", f"responses/{body['id']}/input_items?limit=100")
        assert len(page["data"]) == 9


async def test_what_cannot_be_shortened_is_refused(tmp_path: Path) -> None:
    """A last message that alone is too long is 400 with truncation auto as well."""
    async with serving(tmp_path, narrow(20)) as api:
        body = {"model": "tiny", "input": "word " * 30, "truncation": "auto"}
        status, answer = await api.ask("POST", "responses", body)
        assert (status, error_of(answer)["code"]) == (400, "context_length_exceeded")
        assert error_of(answer)["param"] == "input"


# --- turns with tools of servers ----------------------------------------------------------------------------


async def test_turns_are_one_response_and_their_usage_adds_up(tmp_path: Path, tools: Server) -> None:
    """Two calls and an answer: one stream, one response, the usage of all three turns, the list made once."""
    pool = FakePool(
        answer=turns(calls(("echo", {"text": "a"})), calls(("add", {"a": 1, "b": 2})), said("Ok."))
    )
    async with serving(tmp_path, pool) as api:
        events = await api.stream(tools=[remote(tools)])
        final = check_stream(events)
        assert [item["type"] for item in final["output"]] == [
            "mcp_list_tools",
            "mcp_call",
            "mcp_call",
            "message",
        ]
        assert [item["output"] for item in final["output"][1:3]] == ["a", "3"]
        assert final["usage"]["input_tokens"] == 10 + 10 + 5
        assert final["usage"]["output_tokens"] == 3 + 3 + 1
        assert await api.get(final["id"]) == final
        said_before = [
            (message.role, [call.name for call in message.tool_calls]) for message in api.task().messages
        ]
        assert said_before == [
            ("user", []),
            ("assistant", ["echo"]),
            ("tool", []),
            ("assistant", ["add"]),
            ("tool", []),
        ]
        before = len(tools.requests())
        pool.answer = turns(said("Again."))
        again = await api.create("more", tools=[remote(tools)], previous_response_id=final["id"])
        assert [item["type"] for item in again["output"]] == ["message"]
        assert len(tools.requests()) == before  # the list was known


async def test_a_loop_of_calls_ends_after_ten_turns(tmp_path: Path, tools: Server) -> None:
    """A model that calls again and again gets no server's tools in the tenth turn, and must answer."""
    script = calls(("echo", {"text": "again"}))

    def answer(model: str, task: Task) -> list[Answer]:
        return list(script) if task.tools else said("Enough.")  # type: ignore[union-attr]

    pool = FakePool(answer=answer)
    async with serving(tmp_path, pool) as api:
        body = await api.create(tools=[remote(tools)])
    assert len(pool.calls) == 10
    assert [item["type"] for item in body["output"]] == ["mcp_list_tools", *["mcp_call"] * 9, "message"]
    assert body["status"] == "completed"


@pytest.mark.parametrize("most", [1, 2])
async def test_max_tool_calls_counts_calls_that_are_run(tmp_path: Path, tools: Server, most: int) -> None:
    """No more calls are run than allowed, in one turn and over several; the answer comes without tools."""

    def answer(model: str, task: Task) -> list[Answer]:
        both = calls(("echo", {"text": "one"}), ("echo", {"text": "two"}))
        return both if task.tools else said("Enough.")  # type: ignore[union-attr]

    pool = FakePool(answer=answer)
    async with serving(tmp_path, pool) as api:
        body = await api.create(tools=[remote(tools)], max_tool_calls=most)
    kinds = [item["type"] for item in body["output"]]
    assert kinds == ["mcp_list_tools", *["mcp_call"] * most, "message"]
    assert body["max_tool_calls"] == most


async def test_own_functions_end_the_response_beside_calls_of_servers(tmp_path: Path, tools: Server) -> None:
    """A turn with a call of either kind: the server's is run, the caller's is the last of the output."""
    pool = FakePool(answer=turns(calls(("f", {"x": 1}), ("echo", {"text": "a"}))))
    async with serving(tmp_path, pool) as api:
        body = await api.create(tools=[F, remote(tools)])
        assert [item["type"] for item in body["output"]] == ["mcp_list_tools", "function_call", "mcp_call"]
        assert len(pool.calls) == 1
        call = body["output"][1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
        pool.answer = turns(said("Thanks."))
        await api.create([result], previous_response_id=body["id"], tools=[F, remote(tools)])
        roles = [message.role for message in api.task().messages]
        assert roles == ["user", "assistant", "tool", "tool"]


async def test_a_forced_call_is_made_once(tmp_path: Path, tools: Server) -> None:
    """tool_choice required binds the first turn only: the next one may answer."""
    pool = FakePool(answer=turns(calls(("echo", {"text": "a"})), said("Ok.")))
    async with serving(tmp_path, pool) as api:
        body = await api.create(tools=[remote(tools)], tool_choice="required")
        assert body["status"] == "completed"
        assert [api.task(at).tool_choice.mode for at in (0, 1)] == ["required", "auto"]


async def test_a_tool_that_hangs_shows_life_and_ends_with_the_request(tmp_path: Path, tools: Server) -> None:
    """While a tool hangs there are comments; request_timeout then ends the response as failed, with that
    reason, and the tool at its server.
    """
    pool = FakePool(answer=turns(calls(("hang", {"mark": "late"}))))
    async with serving(tmp_path, pool, keepalive_interval=0.05, request_timeout=10.0) as api:
        events = await api.stream(tools=[remote(tools)])
        kinds = [event["type"] for event in events]
        assert kinds[kinds.index("response.mcp_call_arguments.done") :].count("comment") > 3
        failed = events[-1]["response"]
        assert failed["status"] == "failed"
        assert "request_timeout" in failed["error"]["message"]
        [_, call] = failed["output"]
        assert call["status"] != "completed"
        await tools.seen("hang", "cancelled", mark="late")


async def test_a_client_that_leaves_ends_its_tool(tmp_path: Path, tools: Server) -> None:
    """The stream is closed while a tool hangs: the tool is cancelled at its server, and nothing is stored."""
    pool = FakePool(answer=turns(calls(("hang", {"mark": "left"}))))
    async with serving(tmp_path, pool) as api:
        body = {"model": "tiny", "input": "hi", "stream": True, "tools": [remote(tools)]}
        done = "response.mcp_call_arguments.done"
        await api.events("POST", "responses", body, enough=lambda event: event["type"] == done)
        await tools.seen("hang", "cancelled", mark="left")
        assert await api.rows("response") == 0


async def test_a_list_that_fails_is_424_or_a_failed_stream(tmp_path: Path, tools: Server) -> None:
    """A server that refuses: 424 external_connector_error; on a stream the list's item fails, then all."""
    async with serving(tmp_path) as api:
        bad = remote(tools, "/auth", authorization="wrong-token")
        status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi", "tools": [bad]})
        error = error_of(answer)
        assert (status, error["type"]) == (424, "external_connector_error")
        assert error["message"].startswith("Error retrieving tool list from MCP server: 'files'.")
        assert "401" in error["message"]
        events = await api.stream(tools=[bad])
        kinds = [event["type"] for event in events]
        assert "response.mcp_list_tools.failed" in kinds
        assert kinds[-2:] == ["error", "response.failed"]
        assert not api.pool.calls
        assert "wrong-token" not in str(events)
        assert "wrong-token" not in str(answer)


async def test_a_call_that_fails_is_told_to_the_model(tmp_path: Path, tools: Server) -> None:
    """A tool's failure is the item's error; the model goes on and the response is completed."""
    pool = FakePool(answer=turns(calls(("fail", {})), said("Sorry.")))
    async with serving(tmp_path, pool) as api:
        final = check_stream(await api.stream(tools=[remote(tools)]))
        [_, call, _] = final["output"]
        assert (call["status"], call["error"]["type"]) == ("failed", "mcp_tool_execution_error")
        assert final["status"] == "completed"
        assert "Error executing tool fail" in str(api.task().messages[-1].content)

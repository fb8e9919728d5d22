"""Approval of calls at MCP servers: who is asked, and that what was asked about is run once, or never."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import Overloaded
from tests.component.responses.served_http import (
    ANOTHER,
    KEYS,
    Api,
    WallClock,
    calls,
    error_of,
    said,
    serving,
    turns,
)
from tests.fakes.pool import FakePool
from tests.harness.mcp_server import Server
from tests.harness.mcp_server import serving as serving_tools
from tests.harness.responses import check_response, check_stream


@pytest.fixture(scope="module")
def tools() -> Iterator[Server]:
    """Run an MCP server. Its tool echo only reads; the others may do anything."""
    with serving_tools() as server:
        yield server


def remote(server: Server, **fields: Any) -> dict[str, Any]:
    """Return the tool that stands for a server, whose calls are asked for."""
    return {"type": "mcp", "server_label": "files", "server_url": server.url, **fields}


def adding(text: str = "Ok.") -> FakePool:
    """Return a pool whose model adds, and says something then."""
    return FakePool(answer=turns(calls(("add", {"a": 1, "b": 2})), said(text)))


def added(server: Server) -> int:
    """Return how often the server has added."""
    return sum(call["tool"] == "add" for call in server.calls())


async def asked(api: Api, server: Server, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a response that asks for approval; return it, and its request."""
    body = await api.create(tools=[remote(server)], **fields)
    assert body["status"] == "completed"
    assert body["output"][-1]["type"] == "mcp_approval_request"
    return body, body["output"][-1]


def answer(request: dict[str, Any], approve: bool = True, **fields: Any) -> dict[str, Any]:
    """Return the item that answers a request."""
    return {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": approve,
        **fields,
    }


async def test_an_approved_call_is_run_once_with_what_was_shown(tmp_path: Path, tools: Server) -> None:
    """Nothing runs before the answer; then just that call, which names its request; the list is not asked
    for again, and the model reads the result.
    """
    before = added(tools)
    async with serving(tmp_path, adding()) as api:
        body, request = await asked(api, tools)
        assert request["name"] == "add"
        assert json.loads(request["arguments"]) == {"a": 1, "b": 2}
        assert [item["type"] for item in body["output"]] == ["mcp_list_tools", "mcp_approval_request"]
        assert added(tools) == before
        body = {
            "input": [answer(request)],
            "previous_response_id": body["id"],
            "tools": [remote(tools)],
        }
        events = await api.stream(**body)
        final = check_stream(events)
        call, _ = final["output"]
        assert (call["type"], call["approval_request_id"], call["output"]) == ("mcp_call", request["id"], "3")
        assert call["arguments"] == request["arguments"]
        assert added(tools) == before + 1
        assert [message.role for message in api.task().messages] == ["user", "assistant", "tool"]
        # A replay, whole, as a stream and in the background, is refused and runs nothing.
        error = await api.refused(**body)
        assert "answered already" in error["message"]
        again = {**body, "previous_response_id": final["id"]}
        assert "answered already" in (await api.refused(**again))["message"]
        assert added(tools) == before + 1


async def test_a_denied_call_is_not_run_and_the_model_is_told(tmp_path: Path, tools: Server) -> None:
    """approve false: no call, its reason reaches the model, and it cannot be approved later."""
    before = added(tools)
    async with serving(tmp_path, adding()) as api:
        first, request = await asked(api, tools)
        denied = answer(request, False, reason="Too risky.")
        body = await api.create([denied], previous_response_id=first["id"], tools=[remote(tools)])
        assert [item["type"] for item in body["output"]] == ["message"]
        assert "Too risky." in str(api.task().messages[-1].content)
        for id in (first["id"], body["id"]):
            error = await api.refused(input=[answer(request)], previous_response_id=id, tools=[remote(tools)])
            assert "answered already" in error["message"]
        assert added(tools) == before


async def test_of_two_answers_at_once_one_runs(tmp_path: Path, tools: Server) -> None:
    """Eight requests with the same approval, in all modes at once: one is let in, the call is run once."""
    before = added(tools)
    async with serving(tmp_path, adding()) as api:
        first, request = await asked(api, tools)
        body = {
            "model": "tiny",
            "input": [answer(request)],
            "previous_response_id": first["id"],
            "tools": [remote(tools)],
        }
        modes: list[dict[str, Any]] = [{"store": True}, {"store": False}, {"background": True}] * 3
        both = await asyncio.gather(*(api.ask("POST", "responses", {**body, **mode}) for mode in modes))
        assert sorted(status for status, _ in both) == [200] + [400] * 8
        for id in [found["id"] for status, found in both if status == 200]:
            if id in api.background._records:
                await api.over(id)
        assert added(tools) == before + 1


async def test_what_was_never_asked_cannot_be_approved(tmp_path: Path, tools: Server) -> None:
    """An unknown request, one of another chain, and one of another caller: 400, and nothing runs."""
    before = added(tools)
    async with serving(tmp_path, adding(), api_keys=KEYS) as api:
        _, request = await asked(api, tools)
        error = await api.refused(input=[answer(request)], tools=[remote(tools)])
        assert error["message"] == (
            "The following MCP approval requests have approval responses but weren't passed as input: "
            + request["id"]
        )
        assert error["param"] == "input[0].approval_request_id"
        await api.refused(input=[answer({"id": "mcpr_x"})], tools=[remote(tools)])
        carried = [{"role": "user", "content": "hi"}, request, answer(request)]
        body = {"model": "tiny", "input": carried, "tools": [remote(tools)]}
        status, refusal = await api.ask("POST", "responses", body, key=ANOTHER)
        assert (status, error_of(refusal)["code"]) == (400, "invalid_value")
        assert added(tools) == before
        assert (await api.ask("POST", "responses", body))[0] == 200  # it was not used up
        assert added(tools) == before + 1


async def test_a_request_that_the_caller_carries_is_the_one_that_was_made(
    tmp_path: Path, tools: Server
) -> None:
    """With store false the request comes back with the answer: changed in any part it is refused, made up it
    is unknown, as it was it runs once.
    """
    before = added(tools)
    async with serving(tmp_path, adding()) as api:
        _, request = await asked(api, tools, store=False)
        user = {"role": "user", "content": "hi"}
        for change in (
            {"arguments": '{"a": 1, "b": 200}'},
            {"name": "fail"},
            {"id": "mcpr_made_up"},
        ):
            changed = {**request, **change}
            error = await api.refused(
                input=[user, changed, answer(changed)], tools=[remote(tools)], store=False
            )
            assert error["code"] == "invalid_value"
        other = {**remote(tools), "server_label": "other"}
        changed = {**request, "server_label": "other"}
        error = await api.refused(input=[user, changed, answer(changed)], tools=[other], store=False)
        assert "another call" in error["message"]
        assert added(tools) == before
        body = await api.create([user, request, answer(request)], tools=[remote(tools)], store=False)
        assert body["output"][-2]["output"] == "3"
        await api.refused(input=[user, request, answer(request)], tools=[remote(tools)], store=False)
        assert added(tools) == before + 1


async def test_a_request_that_is_there_already_is_a_duplicate(tmp_path: Path, tools: Server) -> None:
    """Sent again beside previous_response_id, a request is refused in OpenAI's words."""
    async with serving(tmp_path, adding()) as api:
        first, request = await asked(api, tools)
        error = await api.refused(
            input=[request, answer(request)], previous_response_id=first["id"], tools=[remote(tools)]
        )
        assert error["message"] == (
            f"Duplicate item found with id {request['id']}. Remove duplicate items from your input and try "
            "again."
        )


async def test_the_server_must_be_sent_again(tmp_path: Path, tools: Server) -> None:
    """An approval without the tool that names its server is refused, and not used up by that."""
    async with serving(tmp_path, adding()) as api:
        first, request = await asked(api, tools)
        error = await api.refused(input=[answer(request)], previous_response_id=first["id"])
        assert (error["param"], "authorization" in error["message"]) == ("tools", True)
        body = await api.create([answer(request)], previous_response_id=first["id"], tools=[remote(tools)])
        assert body["output"][0]["type"] == "mcp_call"


async def test_a_refusal_for_another_reason_uses_no_approval_up(tmp_path: Path, tools: Server) -> None:
    """A request that is refused beside its approval, or finds the model's queue full before the call was
    made, may be sent again.
    """
    before = added(tools)
    async with serving(tmp_path, adding()) as api:
        first, request = await asked(api, tools)
        body = {
            "input": [answer(request)],
            "previous_response_id": first["id"],
            "tools": [remote(tools)],
        }
        await api.refused(404, **body, model="nobody")
        await api.refused(**body, temperature=7)
        status, counted = await api.ask("POST", "responses/input_tokens", {"model": "tiny", **body})
        assert status in (200, 502), counted
        assert added(tools) == before
        assert (await api.create(**body))["output"][0]["output"] == "3"
        assert added(tools) == before + 1


@pytest.mark.parametrize(
    ("approval", "asks"),
    [
        ("always", True),
        (None, True),
        ("never", False),
        ({"never": {"tool_names": ["add"]}}, False),
        ({"never": {"tool_names": ["echo"]}}, True),
        ({"never": {"read_only": True}}, True),
        ({"always": {"tool_names": ["add"]}, "never": {"tool_names": ["add"]}}, True),
        ({"always": {"tool_names": ["echo"]}}, True),
    ],
    ids=str,
)
async def test_who_is_asked(tmp_path: Path, tools: Server, approval: Any, asks: bool) -> None:
    """require_approval in all its forms decides about each tool by name and by what it does."""
    async with serving(tmp_path, adding()) as api:
        body = await api.create(tools=[remote(tools, require_approval=approval)])
        check_response(body)
        kinds = [item["type"] for item in body["output"]]
        assert kinds[1] == ("mcp_approval_request" if asks else "mcp_call")


async def test_of_several_calls_those_that_may_run_and_the_others_are_asked_for(
    tmp_path: Path, tools: Server
) -> None:
    """In one turn: calls that need no approval are run, all requests come out together, the model waits; each
    request is answered by itself, one for and one against.
    """
    before = added(tools)
    script = calls(("add", {"a": 1, "b": 1}), ("echo", {"text": "x"}), ("add", {"a": 2, "b": 2}))
    reading = {"never": {"read_only": True}}
    async with serving(tmp_path, FakePool(answer=turns(script, said()))) as api:
        body = await api.create(tools=[remote(tools, require_approval=reading)])
        kinds = [item["type"] for item in body["output"]]
        assert kinds == ["mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_request"]
        assert (len(api.pool.calls), added(tools)) == (1, before)
        one, two = body["output"][2:]
        final = await api.create(
            [answer(one), answer(two, False)],
            previous_response_id=body["id"],
            tools=[remote(tools, require_approval=reading)],
        )
        assert [item["type"] for item in final["output"]] == ["mcp_call", "message"]
        assert (final["output"][0]["output"], added(tools)) == ("2", before + 1)


async def test_a_request_in_the_background_is_answered_in_the_background(
    tmp_path: Path, tools: Server
) -> None:
    """A run ends with its request; a second run, with the answer, makes the call."""
    async with serving(tmp_path, adding()) as api:
        run = await api.create(tools=[remote(tools)], background=True, store=True)
        request = (await api.over(run["id"]))["output"][-1]
        second = await api.create(
            [answer(request)],
            previous_response_id=run["id"],
            tools=[remote(tools)],
            background=True,
            store=True,
        )
        body = await api.over(second["id"])
        assert [item["type"] for item in body["output"]] == ["mcp_call", "message"]


async def test_approvals_expire_with_what_asked_for_them(tmp_path: Path, tools: Server) -> None:
    """After responses.keep an answer is refused, before the sweep as after it."""
    clock = WallClock()
    before = added(tools)
    async with serving(tmp_path, adding(), clock=clock, keep_s=100.0) as api:
        _, request = await asked(api, tools)
        clock.offset = 101.0
        user = {"role": "user", "content": "hi"}
        for _ in range(2):
            error = await api.refused(input=[user, request, answer(request)], tools=[remote(tools)])
            assert "its time is over" in error["message"]
            await api.context.approvals.sweep(clock.time())
        assert added(tools) == before


async def test_a_call_that_was_not_made_can_be_approved_again(tmp_path: Path, tools: Server) -> None:
    """When the run fails before its approved call, the answer is not used up: sent again, the call is made,
    once.
    """
    before = added(tools)
    async with serving(tmp_path, adding(), most_background=0) as api:
        first, request = await asked(api, tools)
        body = {
            "input": [answer(request)],
            "previous_response_id": first["id"],
            "tools": [remote(tools)],
        }
        status, refusal = await api.ask("POST", "responses", {"model": "tiny", **body, "background": True})
        assert (status, error_of(refusal)["code"]) == (429, "too_many_background_responses")
        assert (await api.create(**body))["output"][0]["output"] == "3"
        assert added(tools) == before + 1


async def test_a_call_that_was_made_is_not_made_again_when_the_model_fails(
    tmp_path: Path, tools: Server
) -> None:
    """The approved call has run, then the model's queue is full: the answer is used up."""
    before = added(tools)
    async with serving(tmp_path, adding()) as api:
        first, request = await asked(api, tools)
        body = {
            "input": [answer(request)],
            "previous_response_id": first["id"],
            "tools": [remote(tools)],
        }
        api.pool.answer = lambda model, task: Overloaded("full", retry_after=1.0)
        status, _ = await api.ask("POST", "responses", {"model": "tiny", **body})
        assert (status, added(tools)) == (429, before + 1)
        assert "answered already" in (await api.refused(**body))["message"]
        assert added(tools) == before + 1

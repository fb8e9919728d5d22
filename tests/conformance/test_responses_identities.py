"""What one key has made is nobody else's business: the Python SDK, strict, with two keys.

The models are scripted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import openai
import pytest
import pytest_asyncio

from tests.conformance.python_sdk import AsyncSdk
from tests.conformance.responses_daemon import CREATE, RETRIEVE, scripted, settled
from tests.harness.daemon import Daemon
from tests.harness.mcp_server import mcp_server
from tests.harness.responses import connected, send

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINE, OTHERS = "sk-mine", "sk-others"
ASK: dict[str, Any] = {"model": "thinker", "input": "My secret is 42."}


class Two(NamedTuple):
    """Clients with different keys."""

    mine: AsyncSdk
    others: AsyncSdk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon that knows two keys."""
    async with scripted("thinker", "slow", "remote", api_keys=[MINE, OTHERS]) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def two(daemon: Daemon) -> AsyncIterator[Two]:
    """Give a client for each key."""
    async with AsyncExitStack() as stack:
        mine, others = [await stack.enter_async_context(AsyncSdk(daemon.url, key)) for key in (MINE, OTHERS)]
        yield Two(mine, others)


async def test_a_response_is_its_makers(two: Two) -> None:
    """Another key finds no response: not to read, list, delete, cancel or replay."""
    made = await two.mine.call(CREATE, **ASK)
    for method, arguments in (
        (RETRIEVE, {}),
        ("responses.delete", {}),
        ("responses.cancel", {}),
        ("responses.input_items.list", {}),
        (RETRIEVE, {"stream": True}),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await two.others.call(method, response_id=made.id, **arguments)
        assert "42" not in str(caught.value.body)
    assert await two.mine.call(RETRIEVE, response_id=made.id) == made


async def test_nobody_goes_on_from_it(two: Two) -> None:
    """Another key cannot continue a response, nor name its items; it looks as if there were none."""
    made = await two.mine.call(CREATE, **ASK)
    with pytest.raises(openai.BadRequestError) as caught:
        await two.others.call(CREATE, **ASK, previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"
    reference = {"type": "item_reference", "id": made.output[-1].id}
    given = [reference, {"role": "user", "content": "So?"}]
    with pytest.raises(openai.BadRequestError):
        await two.others.call(CREATE, model="thinker", input=given)
    assert (await two.mine.call(CREATE, model="thinker", input=given)).status == "completed"


async def test_a_conversation_is_its_makers(two: Two) -> None:
    """Another key finds no conversation, by whichever way."""
    items = [{"type": "message", "role": "user", "content": "My secret is 42."}]
    made = await two.mine.call("conversations.create", items=items)
    for method, arguments in (
        ("conversations.retrieve", {}),
        ("conversations.delete", {}),
        ("conversations.update", {"metadata": {}}),
        ("conversations.items.list", {}),
        ("conversations.items.create", {"items": items}),
    ):
        with pytest.raises(openai.NotFoundError):
            await two.others.call(method, conversation_id=made.id, **arguments)
    with pytest.raises(openai.NotFoundError):
        await two.others.call(CREATE, model="thinker", input="x", conversation=made.id)
    assert await two.mine.call("conversations.retrieve", conversation_id=made.id) == made


async def test_sealed_thoughts_are_their_makers(two: Two) -> None:
    """What is sealed for one key cannot be used by another."""
    body = {**ASK, "store": False, "include": ["reasoning.encrypted_content"]}
    thought = (await two.mine.call(CREATE, **body)).output[0]
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    given = [{"role": "user", "content": "x"}, sealed, {"role": "user", "content": "y"}]
    assert (await two.mine.call(CREATE, **{**body, "input": given})).status == "completed"
    with pytest.raises(openai.BadRequestError):
        await two.others.call(CREATE, **{**body, "input": given})


async def test_a_run_is_its_makers(two: Two) -> None:
    """Another key cannot cancel a run."""
    made = await two.mine.call(CREATE, model="slow", input="x", background=True)
    with pytest.raises(openai.NotFoundError):
        await two.others.call("responses.cancel", response_id=made.id)
    assert (await two.mine.call("responses.cancel", response_id=made.id)).status == "cancelled"
    assert (await settled(two.mine, made.id)).status == "cancelled"


async def test_approval_is_its_askers(two: Two) -> None:
    """Another key cannot approve a call, even with all its items in hand; the one that was asked can."""
    async with mcp_server() as server:
        tool = {"type": "mcp", "server_label": "sums", "server_url": server.url}
        body = {"model": "remote", "tools": [tool], "store": False}
        asked = await two.mine.call(CREATE, **body, input="Add one and two.")
        given = [
            {"role": "user", "content": "Add one and two."},
            *(item.to_dict() for item in asked.output),
            {"type": "mcp_approval_response", "approval_request_id": asked.output[-1].id, "approve": True},
        ]
        with pytest.raises(openai.BadRequestError):
            await two.others.call(CREATE, **body, input=given)
        assert server.calls() == []
        done = await two.mine.call(CREATE, **body, input=given)
        assert [item.type for item in done.output] == ["mcp_call", "message"]
        assert len(server.calls()) == 1


async def test_sockets_and_keys(daemon: Daemon) -> None:
    """A socket belongs to its key, and one without a key is not opened."""
    async with connected(daemon.url, MINE) as socket:
        made = await socket.whole(**ASK)
    assert (await send(daemon.url, f"responses/{made['id']}", key=MINE)).json == made
    assert (await send(daemon.url, f"responses/{made['id']}", key=OTHERS)).status == 404
    async with connected(daemon.url, OTHERS) as socket:
        error = await socket.refused(**ASK, previous_response_id=made["id"])
        assert error["error"]["code"] == "previous_response_not_found"
    assert (await send(daemon.url, "responses", ASK)).status == 401
    with pytest.raises(Exception, match="401"):
        async with connected(daemon.url, "sk-wrong"):
            pass

"""What a socket remembers: chains that are not stored, what ends them, and what is read from the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import EngineError
from modeld.protocol.tasks import ChatTask, Text
from tests.component.responses.served import Body, Served, served
from tests.component.responses.sockets import Client, answer, connected, scripted, told
from tests.fakes.pool import Answer, FakePool, last_chat

NOT_STORED: dict[str, Any] = {"store": False}
DEAD: list[Answer] = [[Text("So")], EngineError("the wheels came off")]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve the room with a model that says hello."""
    async with served(tmp_path) as started:
        yield started


async def gone(client: Client, id: str, **fields: Any) -> bool:
    """Say whether a response cannot be continued; only one way of saying so is right."""
    events = await client.turn("x", previous_response_id=id, **fields)
    if events[-1]["type"] == "response.completed":
        return False
    assert told(events[0]) == (400, "previous_response_not_found", "previous_response_id")
    assert events[0]["error"]["message"] == f"Previous response with id '{id}' not found."
    return True


def turns(pool: FakePool) -> list[tuple[str, str | None]]:
    """Return who said what in the last call."""
    task: ChatTask = last_chat(pool)
    return [(turn.role, _text(turn.content)) for turn in task.messages]


def _text(content: Any) -> str | None:
    return content if isinstance(content, str) or content is None else "".join(part.text for part in content)


async def test_a_chain_that_is_not_stored(api: Served) -> None:
    """On its socket a response goes on that is stored nowhere: all of its turns reach the model."""
    async with connected(api) as client:
        response: Body = {}
        previous: Body = {}
        for number in range(4):
            response = await client.whole(f"turn {number}", **NOT_STORED, **previous)
            previous = {"previous_response_id": response["id"]}
        assert turns(api.pool) == [
            *[pair for number in range(3) for pair in (("user", f"turn {number}"), ("assistant", "Hello."))],
            ("user", "turn 3"),
        ]
        assert response["previous_response_id"] is not None
        async with connected(api) as other:
            assert await gone(other, response["id"])
        status, _ = await api.ask("POST", "/v1/responses", json={"model": "tiny", "input": "x", **previous})
        assert status == 400


async def test_only_the_newest_of_a_lane(api: Served) -> None:
    """What came before the newest response of a lane is forgotten; other lanes' newest are not."""
    async with connected(api) as client:
        first = await client.whole(**NOT_STORED)
        other = await client.whole(**NOT_STORED, stream_id="a")
        await client.whole(**NOT_STORED, previous_response_id=first["id"])
        assert await gone(client, first["id"], stream_id="b")
        assert not await gone(client, other["id"], stream_id="b")


async def test_a_fork_into_another_lane(api: Served) -> None:
    """A lane may go on from another's newest response, which stays what it was."""
    async with connected(api) as client:
        first = await client.whole("one", **NOT_STORED, stream_id="a")
        for lane in ("b", "c", "a"):
            await client.whole("two", **NOT_STORED, stream_id=lane, previous_response_id=first["id"])
            assert turns(api.pool)[0] == ("user", "one")


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": 9},
        {"model": "nope"},
        {"tools": [{"type": "web_search"}]},
        {"background": True},
        {"generate": False, "input": [{"role": "user", "content": [{"type": "input_video"}]}]},
    ],
    ids=str,
)
async def test_a_refused_continuation_forgets_its_parent(api: Served, bad: Body) -> None:
    """In its own lane a refusal ends the chain; from another lane it does not."""
    async with connected(api) as client:
        parent = await client.whole(**NOT_STORED, stream_id="a")
        id = parent["id"]
        assert await client.refused(**{**NOT_STORED, **bad}, stream_id="b", previous_response_id=id)
        assert not await gone(client, id, stream_id="c", **NOT_STORED)
        assert await client.refused(**{**NOT_STORED, **bad}, stream_id="a", previous_response_id=id)
        assert await gone(client, id, stream_id="d")


async def test_a_failed_continuation_forgets_its_parent(tmp_path: Path) -> None:
    """The same when the engine dies on the way, and when it refuses before a word."""
    deaths: tuple[list[Answer] | EngineError, ...] = (DEAD, EngineError("not even a word"))
    for dying in deaths:
        folder = tmp_path / str(isinstance(dying, list))
        folder.mkdir()
        ok = answer("ok")
        pool = scripted(ok, dying, ok, dying, ok)
        async with served(folder, pool) as api, connected(api) as client:
            id = (await client.whole(**NOT_STORED))["id"]
            await client.turn(**NOT_STORED, previous_response_id=id, stream_id="b")
            assert not await gone(client, id, stream_id="c", **NOT_STORED)
            await client.turn(**NOT_STORED, previous_response_id=id)
            assert await gone(client, id)


async def test_a_failure_elsewhere_forgets_nothing(api: Served) -> None:
    """What did not go on from a lane's newest response does not harm it, in whatever lane it fails."""
    async with connected(api) as client:
        id = (await client.whole(**NOT_STORED))["id"]
        for fields in ({}, {"previous_response_id": "resp_none"}):
            await client.refused(temperature=9, **fields)
        await client.send("{")
        await client.event()
        assert not await gone(client, id)


async def test_a_failed_response_is_not_continued(tmp_path: Path) -> None:
    """A response that failed is not remembered."""
    pool = scripted(DEAD, answer("ok"))
    async with served(tmp_path, pool) as api, connected(api) as client:
        failed = (await client.turn(**NOT_STORED))[-1]["response"]
        assert await gone(client, failed["id"])


async def test_what_is_stored_is_read_from_the_store(api: Served) -> None:
    """A stored response goes on from anywhere, old ones too, and from nowhere when it was deleted."""
    async with connected(api) as client:
        first = await client.whole("one")
        second = await client.whole("two", previous_response_id=first["id"])
        await client.refused(temperature=9, previous_response_id=second["id"])
        assert not await gone(client, first["id"])
        async with connected(api) as other:
            third = await other.whole("three", previous_response_id=second["id"])
        assert [text for role, text in turns(api.pool) if role == "user"] == ["one", "two", "three"]
        status, _ = await api.ask(
            "POST", "/v1/responses", json={"model": "tiny", "input": "x", "previous_response_id": third["id"]}
        )
        assert status == 200
        newest = await client.whole("four")
        await api.ask("DELETE", f"/v1/responses/{newest['id']}")
        assert await gone(client, newest["id"])


async def test_storing_the_end_of_a_chain(api: Served) -> None:
    """A stored response that goes on from one that is not has its whole history in the store."""
    async with connected(api) as client:
        first = await client.whole("one", **NOT_STORED)
        second = await client.whole("two", previous_response_id=first["id"])
    async with connected(api) as client:
        await client.whole("three", previous_response_id=second["id"])
        assert [text for role, text in turns(api.pool) if role == "user"] == ["one", "two", "three"]
        assert await gone(client, first["id"])


async def test_memory_has_a_bound(tmp_path: Path) -> None:
    """A socket remembers as much as one body may have: older lanes are forgotten, and nobody is refused."""
    async with served(tmp_path, max_request_body=4000) as api, connected(api) as client:
        ids = [
            (await client.whole("x" * 1500, **NOT_STORED, stream_id=lane))["id"] for lane in ("a", "b", "c")
        ]
        lost = [await gone(client, id, stream_id="d", max_output_tokens=5) for id in ids]
    assert lost == [True, False, False]


async def test_conversations(api: Served) -> None:
    """A conversation grows by what is said on a socket, stored or not."""
    _, conversation = await api.ask("POST", "/v1/conversations", json={})
    async with connected(api) as client:
        await client.whole("one", conversation=conversation["id"])
        await client.whole("two", conversation=conversation["id"], **NOT_STORED)
    assert [text for role, text in turns(api.pool) if role == "user"] == ["one", "two"]
    _, items = await api.ask("GET", f"/v1/conversations/{conversation['id']}/items")
    assert len(items["data"]) == 4


async def test_another_identitys_responses(tmp_path: Path) -> None:
    """What somebody else has stored is not there."""
    async with served(tmp_path, api_keys=("one", "two")) as api:
        async with connected(api, authorization="Bearer one") as client:
            id = (await client.whole())["id"]
        async with connected(api, authorization="Bearer two") as client:
            assert await gone(client, id)

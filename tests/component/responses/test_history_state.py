"""What is kept, for whom, and what is not: chains, conversations, lists of items, secrets, store false."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from modeld.protocol.tasks import Finish, Reasoning, Text, Usage
from tests.component.responses.served_http import (
    ANOTHER,
    KEYS,
    Api,
    calls,
    error_of,
    hanging,
    said,
    serving,
    turns,
)
from tests.fakes.pool import FakePool
from tests.harness.mcp_server import Server
from tests.harness.mcp_server import serving as serving_tools
from tests.harness.responses import check_response

MARKER = "marmalade-7f3a"
F = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def tools() -> Iterator[Server]:
    """Run an MCP server."""
    with serving_tools() as server:
        yield server


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Serve one model that says Hello, to two callers."""
    async with serving(tmp_path, FakePool(), api_keys=KEYS) as api:
        yield api


def on_disk(folder: Path, *words: str) -> list[str]:
    """Return the words that stand anywhere in the database's files, the log of writes included."""
    data = b"".join(path.read_bytes() for path in folder.glob("modeld.sqlite3*"))
    assert data
    return [word for word in words if word.encode() in data]


# --- chains -------------------------------------------------------------------------------------------------


async def test_a_chain_gives_its_items_and_not_its_instructions(api: Api) -> None:
    """Each response continues all items before it; instructions are those of the request alone."""
    first = await api.create("one", instructions="Be kind.")
    second = await api.create("two", previous_response_id=first["id"])
    assert (second["instructions"], second["previous_response_id"]) == (None, first["id"])
    assert [(message.role, message.content) for message in api.task().messages] == [
        ("user", "one"),
        ("assistant", "Hello."),
        ("user", "two"),
    ]
    fork = await api.create("three", previous_response_id=first["id"])
    assert [message.content for message in api.task().messages] == ["one", "Hello.", "three"]
    assert (await api.ask("DELETE", f"responses/{first['id']}"))[0] == 200
    for id, text in ((second["id"], "two"), (fork["id"], "three")):
        await api.create("more", previous_response_id=id)
        assert [message.content for message in api.task().messages] == [
            "one",
            "Hello.",
            text,
            "Hello.",
            "more",
        ]


async def test_an_item_can_be_referred_to(api: Api) -> None:
    """A stored item stands in for itself by its id, with a type or without; twice it is a duplicate."""
    first = await api.create("one")
    id = first["output"][0]["id"]
    reference = {"type": "item_reference", "id": id}
    await api.create([reference, {"role": "user", "content": "two"}])
    assert [message.content for message in api.task().messages] == ["Hello.", "two"]
    await api.create([{"id": id}, {"role": "user", "content": "three"}])
    assert [message.content for message in api.task().messages] == ["Hello.", "three"]
    for input, previous in (([reference, reference], None), ([reference], first["id"])):
        error = await api.refused(input=input, previous_response_id=previous)
        assert error["message"].startswith(f"Duplicate item found with id {id}.")


async def test_without_store_nothing_is_kept(tmp_path: Path) -> None:
    """store false leaves no word in the database, whole or streamed; the response is 404 afterwards."""
    async with serving(tmp_path, FakePool(answer=turns(said(f"You said {MARKER}-2")))) as api:
        body = await api.create(f"{MARKER}-1", store=False, metadata={"k": f"{MARKER}-3"})
        assert body["store"] is False
        [*_, last] = await api.stream(f"{MARKER}-1", store=False, instructions=f"{MARKER}-4")
        for id in (body["id"], last["response"]["id"]):
            await api.missing("GET", f"responses/{id}")
            await api.missing("GET", f"responses/{id}/input_items")
            await api.missing("DELETE", f"responses/{id}")
            await api.missing("POST", f"responses/{id}/cancel")
            _, answer = await api.ask("POST", "responses", {"model": "tiny", "previous_response_id": id})
            assert error_of(answer)["code"] == "previous_response_not_found"
        for table in ("response", "item", "link", "chain", "run", "log"):
            assert await api.rows(table) == 0
    assert on_disk(tmp_path, MARKER) == []


async def test_an_approval_without_store_leaves_no_word(tmp_path: Path, tools: Server) -> None:
    """What is asked about in a response that is not stored is kept as a digest alone."""
    pool = FakePool(answer=turns(calls(("echo", {"text": MARKER}))))
    async with serving(tmp_path, pool) as api:
        remote = {"type": "mcp", "server_label": "files", "server_url": tools.url}
        body = await api.create(store=False, tools=[remote])
        assert MARKER in body["output"][-1]["arguments"]
        assert await api.rows("approval") == 1
    assert on_disk(tmp_path, MARKER) == []


async def test_secrets_of_tools_are_nowhere(
    tmp_path: Path, tools: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A token, headers and a URL's query reach the server and nothing else: no answer, no event, no row, no
    line of a log, when all goes well and when it fails.
    """
    caplog.set_level(logging.DEBUG)
    remote = {
        "type": "mcp",
        "server_label": "files",
        "server_url": tools.url + "?key=secret-query",
        "authorization": "secret-token",
        "headers": {"X-Api-Key": "secret-header"},
        "require_approval": "never",
    }
    secrets = ("secret-token", "secret-header", "secret-query")
    failing = {**remote, "server_label": "broken", "server_url": tools.at("/auth") + "?key=secret-query"}
    pool = FakePool(answer=turns(calls(("echo", {"text": "x"})), said(), calls(("f", {})), said()))
    async with serving(tmp_path, pool) as api:
        ended = await api.create(tools=[remote])
        assert ended["output"][1]["output"] == "x"
        sent = tools.requests()[-1]["headers"]
        assert (sent["authorization"], sent["x-api-key"]) == ("Bearer secret-token", "secret-header")
        answers: list[Any] = [
            ended,
            await api.stream("again", tools=[F, remote], background=True, store=True),
        ]
        answers.append([(await api.ask("POST", "responses", {"model": "tiny", "tools": [failing]}))[1]])
        answers.append(await api.stream(tools=[failing]))
        run = await api.create(tools=[failing], background=True)
        answers.append([await api.over(run["id"])])
        assert not [secret for secret in secrets if secret in str(answers)]
        [tool] = [tool for tool in ended["tools"] if tool["type"] == "mcp"]
        assert (tool["headers"], "authorization" in tool) == (None, False)
    assert on_disk(tmp_path, *secrets) == []
    logged = [record for record in caplog.records if record.name.startswith("modeld")]
    assert not [secret for secret in secrets for record in logged if secret in record.getMessage()]


# --- lists of items -----------------------------------------------------------------------------------------


async def test_input_items_come_in_pages(api: Api) -> None:
    """limit, order and after walk over all items of the request, each once; the newest first if not asked."""
    given = [{"role": "user", "content": f"{number}"} for number in range(25)]
    first = await api.create("before")
    body = await api.create(given, previous_response_id=first["id"])
    base = f"responses/{body['id']}/input_items"

    def texts(page: dict[str, Any]) -> list[int]:
        assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
        assert page["object"] == "list"
        data = page["data"]
        assert page["first_id"] == (data[0]["id"] if data else "")
        assert page["last_id"] == (data[-1]["id"] if data else "")
        assert all(item["type"] == "message" and item["status"] == "completed" for item in data)
        return [int(item["content"][0]["text"]) for item in data]

    _, page = await api.ask("GET", base)
    assert (texts(page), page["has_more"]) == (list(range(24, 4, -1)), True)
    _, page = await api.ask("GET", f"{base}?limit=100&order=asc")
    assert (texts(page), page["has_more"]) == (list(range(25)), False)
    for order, expected in (("asc", list(range(25))), ("desc", list(range(24, -1, -1)))):
        seen: list[int] = []
        after = ""
        while True:
            _, page = await api.ask("GET", f"{base}?limit=10&order={order}{after}")
            seen += texts(page)
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert seen == expected
    _, page = await api.ask("GET", f"{base}?after={page['last_id']}")
    assert (texts(page), page["has_more"]) == ([], False)
    _, page = await api.ask("GET", f"{base}?include%5B%5D=message.input_image.image_url&limit=1")
    assert texts(page) == [24]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=0000001001", "limit"),
        (f"limit={'9' * 5000}", "limit"),
        ("limit=%C2%B2", "limit"),
        ("order=up", "order"),
        ("after=msg_nowhere", "after"),
        ("include=everything", "include"),
        ("include%5B%5D=everything", "include"),
    ],
    ids=lambda value: value[:30],
)
async def test_a_page_that_cannot_be(api: Api, query: str, param: str) -> None:
    """400 that names the parameter, for a response's items and a conversation's."""
    id = (await api.create())["id"]
    _, conversation = await api.ask("POST", "conversations", {})
    for path in (f"responses/{id}/input_items", f"conversations/{conversation['id']}/items"):
        status, answer = await api.ask("GET", f"{path}?{query}")
        assert (status, error_of(answer)["param"]) == (400, param)


async def test_a_response_without_items_of_its_own_has_an_empty_list(api: Api) -> None:
    """A request that only continues brings no items: the list is empty, its ids are null."""
    first = await api.create()
    body = await api.create([], previous_response_id=first["id"])
    _, page = await api.ask("GET", f"responses/{body['id']}/input_items")
    assert page == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


async def test_ids_of_any_kind_are_no_trouble(api: Api) -> None:
    """Paths with ids that nobody gave are 404 in the envelope, whatever they are made of."""
    for id in ("x" * 2000, "%00", "%ED%A0%80", "%FF", "..%2F..", "'%20OR%201=1--", "%F0%9F%8D%8A", "resp_"):
        for method, path in (
            ("GET", f"responses/{id}"),
            ("DELETE", f"responses/{id}"),
            ("POST", f"responses/{id}/cancel"),
            ("GET", f"responses/{id}/input_items"),
            ("GET", f"conversations/{id}"),
            ("GET", f"conversations/{id}/items"),
            ("GET", f"conversations/{id}/items/{id}"),
            ("DELETE", f"conversations/{id}"),
        ):
            await api.missing(method, path)


# --- conversations ------------------------------------------------------------------------------------------


async def test_a_conversation_grows_by_what_is_said_in_it(api: Api) -> None:
    """Its items come before the request's; both, and the answer, are added when the response is completed,
    also when the response itself is not stored, and in the background.
    """
    status, made = await api.ask(
        "POST",
        "conversations",
        {"items": [{"role": "system", "content": "Rhyme."}], "metadata": {"k": "v"}},
    )
    assert status == 200
    assert set(made) == {"id", "object", "metadata", "created_at"}
    assert (made["object"], made["metadata"]) == ("conversation", {"k": "v"})
    body = await api.create("one", conversation=made["id"])
    check_response(body)
    assert body["conversation"] == {"id": made["id"]}
    await api.create("two", conversation={"id": made["id"]}, store=False)
    run = await api.create("three", conversation=made["id"], background=True)
    await api.over(run["id"])
    assert [message.content for message in api.task().messages] == [
        "Rhyme.",
        "one",
        "Hello.",
        "two",
        "Hello.",
        "three",
    ]
    _, page = await api.ask("GET", f"conversations/{made['id']}/items?order=asc")
    assert [item["role"] for item in page["data"]] == ["system", *["user", "assistant"] * 3]
    assert await api.ask("GET", f"conversations/{made['id']}") == (200, made)


async def test_a_conversation_does_not_grow_by_what_failed(api: Api) -> None:
    """A response that fails, is refused, or is cancelled adds nothing."""
    _, made = await api.ask("POST", "conversations", {})
    api.pool.answer = lambda model, task: [[Text("So")], None]
    await api.stream("one", conversation=made["id"])
    await api.ask("POST", "responses", {"model": "tiny", "input": "one", "conversation": made["id"]})
    api.pool.answer = lambda model, task: hanging("So")
    run = await api.create("two", conversation=made["id"], background=True)
    assert (await api.ask("POST", f"responses/{run['id']}/cancel"))[1]["status"] == "cancelled"
    _, page = await api.ask("GET", f"conversations/{made['id']}/items")
    assert page["data"] == []


async def test_items_of_a_conversation_are_managed_by_hand(api: Api) -> None:
    """Items are added, listed, fetched, and taken out, which the next response sees."""
    async with api.http.post(
        f"{api.url}/v1/conversations", headers={**api.headers(), "content-type": "application/json"}
    ) as response:  # without a body's text it is an empty one
        made = await response.json()
    base = f"conversations/{made['id']}"
    status, page = await api.ask(
        "POST", f"{base}/items", {"items": [{"role": "user", "content": word} for word in ("one", "two")]}
    )
    assert (status, page["object"], len(page["data"])) == (200, "list", 2)
    first = page["data"][0]
    assert await api.ask("GET", f"{base}/items/{first['id']}") == (200, first)
    assert await api.ask("DELETE", f"{base}/items/{first['id']}") == (200, made)
    await api.missing("GET", f"{base}/items/{first['id']}")
    await api.missing("DELETE", f"{base}/items/{first['id']}")
    await api.create("three", conversation=made["id"])
    assert [message.content for message in api.task().messages] == ["two", "three"]
    _, updated = await api.ask("POST", base, {"metadata": {"new": "1"}})
    assert updated == {**made, "metadata": {"new": "1"}}
    assert await api.ask("DELETE", base) == (
        200,
        {"id": made["id"], "object": "conversation.deleted", "deleted": True},
    )
    for method, path in (("GET", base), ("DELETE", base), ("GET", f"{base}/items")):
        error = await api.missing(method, path)
        assert (error["code"], error["param"]) == ("conversation_not_found", "conversation_id")
    await api.missing("POST", f"{base}/items", {"items": [{"role": "user", "content": "x"}]})
    await api.missing("POST", base, {"metadata": {}})


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"metadata": {"k" * 65: ""}}, "metadata"),
        ("", {"metadata": {"k": "v" * 513}}, "metadata"),
        ("", {"metadata": {f"k{number}": "" for number in range(17)}}, "metadata"),
        ("", {"metadata": {"k": 5}}, "metadata"),
        ("", {"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ("", {"items": [{"type": "poem"}]}, "items[0].type"),
        ("", {"items": [{"type": "item_reference", "id": "x"}]}, "items[0].type"),
        ("", {"items": [{"role": "user", "content": "x", "id": "a"}] * 2}, "items[1].id"),
        ("", {"items": 5}, "items"),
        ("/{id}", {}, "metadata"),
        ("/{id}", {"metadata": {"k": "v" * 513}}, "metadata"),
        ("/{id}/items", {}, "items"),
        ("/{id}/items", {"items": []}, "items"),
        ("/{id}/items", {"items": [{"role": "nobody", "content": "x"}]}, "items[0].role"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_a_conversation_refuses(api: Api, path: str, body: Any, param: str) -> None:
    """400 that names the field, and nothing is added."""
    _, made = await api.ask("POST", "conversations", {})
    status, answer = await api.ask("POST", f"conversations{path.format(id=made['id'])}", body)
    error = error_of(answer)
    assert status == 400
    assert error["param"].startswith(param)
    assert await api.rows("conversation") == 1
    assert await api.rows("item") == 0


async def test_another_identity_finds_no_conversation(api: Api) -> None:
    """Each path is 404 for another key, and nothing is changed by it."""
    _, made = await api.ask("POST", "conversations", {"items": [{"role": "user", "content": "one"}]})
    base = f"conversations/{made['id']}"
    _, page = await api.ask("GET", f"{base}/items")
    [item] = page["data"]
    added = {"items": [{"role": "user", "content": "two"}]}
    for method, path, body in (
        ("GET", base, None),
        ("POST", base, {"metadata": {"k": "v"}}),
        ("DELETE", base, None),
        ("GET", f"{base}/items", None),
        ("POST", f"{base}/items", added),
        ("GET", f"{base}/items/{item['id']}", None),
        ("DELETE", f"{base}/items/{item['id']}", None),
        ("POST", "responses", {"model": "tiny", "input": "hi", "conversation": made["id"]}),
    ):
        await api.missing(method, path, body, key=ANOTHER)
    assert await api.ask("GET", base) == (200, made)
    assert (await api.ask("GET", f"{base}/items"))[1] == page


async def test_a_deleted_conversation_leaves_its_responses(api: Api) -> None:
    """A response made in it stays whole and can be continued; a run in it ends as if nothing had happened."""
    api.pool.answer = turns(said(), hanging("The"))
    _, made = await api.ask("POST", "conversations", {})
    body = await api.create("one", conversation=made["id"])
    run = await api.create("two", conversation=made["id"], background=True, store=True)
    while len(api.pool.streams) < 2:
        api.pool.opened.clear()
        await api.pool.opened.wait()
    assert (await api.ask("DELETE", f"conversations/{made['id']}"))[0] == 200
    api.pool.streams[1].feed([Text(" end.")], [Finish("stop")], [Usage(1, 1)], None)
    assert (await api.over(run["id"]))["status"] == "completed"
    assert await api.get(body["id"]) == body
    api.pool.answer = turns(said())
    await api.create("three", previous_response_id=run["id"])
    texts = [message.content for message in api.task().messages]
    assert texts == ["one", "Hello.", "two", "The end.", "three"]


async def test_responses_at_once_in_one_conversation_all_get_in(api: Api) -> None:
    """Eight at a time add question and answer each, together, none lost, none twice."""
    _, made = await api.ask("POST", "conversations", {})
    await asyncio.gather(*(api.create(f"q{number}", conversation=made["id"]) for number in range(8)))
    _, page = await api.ask("GET", f"conversations/{made['id']}/items?order=asc&limit=100")
    texts = [item["content"][0]["text"] for item in page["data"]]
    assert sorted(texts[::2]) == [f"q{number}" for number in range(8)]
    assert texts[1::2] == ["Hello."] * 8


async def test_thoughts_stay_in_the_chain(api: Api) -> None:
    """A stored thought is read by the next turn as a thought."""
    api.pool.answer = turns([[Reasoning("Hm.")], [Text("So.")], [Finish("stop")], [Usage(5, 3)], None])
    first = await api.create()
    await api.create("more", previous_response_id=first["id"])
    turn = api.task().messages[1]
    assert (turn.role, turn.reasoning, turn.content) == ("assistant", "Hm.", "So.")

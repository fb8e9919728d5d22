"""Random bodies and queries: whatever a caller sends, it is answered, and never with a 5xx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.component.responses.served_http import Api, error_of, serving
from tests.fakes.pool import FakePool
from tests.harness.responses import check_response

EXAMPLES = 120
NEITHER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

# Lone surrogates are what JSON's escapes can say and UTF-8 cannot.
TEXT = st.text(st.characters(exclude_categories=()), max_size=6) | st.sampled_from(
    ["", "\0", "\ud800", "x" * 600]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def maybe(value: Any) -> st.SearchStrategy[Any]:
    """Give a value of the right kind mostly, and junk sometimes."""
    known = value if isinstance(value, st.SearchStrategy) else st.just(value)
    return st.integers(0, 7).flatmap(lambda dice: JUNK if dice == 0 else known)


def few(most: int, **fields: Any) -> st.SearchStrategy[Any]:
    """Give objects with a few of these fields: of those with many, none would be let in."""
    one = st.one_of(*(st.tuples(st.just(name), maybe(value)) for name, value in fields.items()))
    return st.lists(one, max_size=most).map(dict)


def record(**fields: Any) -> st.SearchStrategy[Any]:
    """Give objects with some of these fields, and once in a while one more."""
    wanted = {name: maybe(value) for name, value in fields.items()}
    plain = st.fixed_dictionaries({}, optional=wanted)
    more = st.dictionaries(TEXT, JUNK, max_size=1)
    return maybe(st.builds(lambda one, two: {**two, **one}, plain, more))


ID = st.sampled_from(["a", "b", "msg_1", "resp_none", "conv_none", "mcpr_1", ""])
NAME = st.sampled_from(["f", "g", "no way", "", "x" * 200])
ROLE = st.sampled_from(["user", "assistant", "system", "developer", "tool"])
PART = record(
    type=st.sampled_from(
        ["input_text", "output_text", "text", "refusal", "input_image", "input_file", "input_audio", "smell"]
    ),
    text=TEXT,
    refusal=TEXT,
    image_url=st.sampled_from(["data:image/png;base64,AAAA", "file:///etc/passwd", "nonsense", ""]),
    annotations=st.just([]),
    logprobs=st.just([]),
    detail=st.sampled_from(["auto", "high"]),
)
CONTENT = TEXT | st.lists(PART, max_size=3)
ITEM = record(
    type=st.sampled_from(
        [
            "message",
            "function_call",
            "function_call_output",
            "reasoning",
            "mcp_list_tools",
            "mcp_call",
            "mcp_approval_request",
            "mcp_approval_response",
            "compaction",
            "item_reference",
            "web_search_call",
        ]
    ),
    id=ID,
    role=ROLE,
    content=CONTENT,
    status=st.sampled_from(["completed", "in_progress", "incomplete", "failed"]),
    call_id=ID,
    name=NAME,
    arguments=st.sampled_from(["{}", "{", "", '{"a": 1}']),
    output=CONTENT,
    summary=st.lists(record(type="summary_text", text=TEXT), max_size=2),
    encrypted_content=st.sampled_from(["AAAA", ""]),
    server_label=NAME,
    tools=st.lists(record(name=NAME, input_schema=JUNK, annotations=JUNK), max_size=2),
    error=JUNK,
    approval_request_id=ID,
    approve=st.booleans(),
    reason=TEXT,
)
TOOL = record(
    type=st.sampled_from(["function", "function", "mcp", "web_search", "custom", "nothing"]),
    name=NAME,
    parameters=record(type="object", properties=JUNK),
    strict=st.booleans(),
    description=TEXT,
    server_label=NAME,
    server_url=st.sampled_from(
        ["http://127.0.0.1:1/mcp", "http://169.254.169.254/", "ftp://x", "http://[", "//", "http://a b"]
    ),
    connector_id=ID,
    authorization=TEXT,
    headers=st.dictionaries(TEXT, TEXT, max_size=2),
    allowed_tools=st.lists(NAME, max_size=2),
    require_approval=st.sampled_from(["never", "always"]) | record(never=record(tool_names=[])),
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "developer"]), "content": st.text(max_size=5)}
)
BODY = st.builds(
    lambda one, two: {**one, **two},
    st.fixed_dictionaries(
        {"model": st.just("tiny"), "input": st.just("hi") | st.lists(MESSAGE | ITEM, min_size=1, max_size=3)}
    ),
    few(
        4,
        model=st.just("tiny"),
        input=TEXT | st.lists(ITEM, max_size=4),
        instructions=TEXT,
        store=st.booleans(),
        background=st.booleans(),
        previous_response_id=ID,
        conversation=ID | record(id=ID),
        include=st.lists(
            st.sampled_from(["message.output_text.logprobs", "reasoning.encrypted_content", "x"])
        ),
        max_output_tokens=st.integers(-1, 50),
        max_tool_calls=st.integers(-1, 5),
        metadata=st.dictionaries(TEXT, TEXT, max_size=3),
        parallel_tool_calls=st.booleans(),
        prompt_cache_key=TEXT,
        safety_identifier=TEXT,
        user=TEXT,
        service_tier=st.sampled_from(["auto", "flex", "x"]),
        reasoning=record(
            effort=st.sampled_from(["low", "none", ""]), summary="auto", generate_summary="auto"
        ),
        temperature=st.floats(-1, 3),
        top_p=st.floats(-1, 2),
        top_logprobs=st.integers(-1, 21),
        text=record(
            format=record(
                type=st.sampled_from(["text", "json_object", "json_schema", "xml"]),
                name=NAME,
                schema=JUNK,
                strict=st.booleans(),
            ),
            verbosity="low",
        ),
        tools=st.lists(TOOL, max_size=3),
        tool_choice=st.sampled_from(["auto", "none", "required", "x"])
        | record(
            type=st.sampled_from(["function", "allowed_tools", "mcp", "web_search"]),
            name=NAME,
            mode=st.sampled_from(["auto", "required"]),
            tools=st.lists(record(type="function", name=NAME), max_size=2),
            server_label=NAME,
        ),
        truncation=st.sampled_from(["auto", "disabled"]),
        background_options=record(completion_window=st.sampled_from(["soonest", "2h"])),
        stream_options=record(include_obfuscation=st.booleans()),
        generate=st.booleans(),
        keep_alive=st.sampled_from([0, "5m", "x", -1]),
    ),
)
CONVERSATION = record(
    items=st.lists(MESSAGE | ITEM, max_size=3), metadata=st.dictionaries(TEXT, TEXT, max_size=3)
)


class Loop:
    """An API that listens between the examples of a test, on a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._serving = serving(folder, FakePool())
        self.api = self.loop.run_until_complete(self._serving.__aenter__())

    def run(self, work: Callable[[Api], Awaitable[None]]) -> None:
        """Run one example."""
        self.loop.run_until_complete(asyncio.wait_for(work(self.api), 60))

    def close(self) -> None:
        """End it all."""
        self.loop.run_until_complete(self._serving.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """Serve one model for all examples."""
    running = Loop(tmp_path_factory.mktemp("state"))
    yield running
    running.close()


async def post(api: Api, path: str, body: Any) -> tuple[int, Any]:
    """Post a body as JSON with escapes, and return what it is answered with: never a 5xx, always sound."""
    raw = json.dumps(body)
    headers = {"content-type": "application/json"}
    async with api.http.post(f"{api.url}/v1/{path}", data=raw, headers=headers) as response:
        text = await response.read()
        assert response.status < 500, (raw, text)
        answer = json.loads(text)
        if response.status != 200:
            error = error_of(answer)
            assert error["type"] in ("invalid_request_error", "external_connector_error"), (raw, error)
        return response.status, answer


@settings(max_examples=EXAMPLES, suppress_health_check=NEITHER)
@given(BODY)
@example({"model": [None, None]})
@example({"model": "tiny", "input": "\ud800"})
@example({"model": "tiny", "input": "hi", "metadata": {"\udfff": "\ud800"}})
@example({"model": "tiny", "input": "hi", "max_tool_calls": 10**30})
@example({"model": "tiny", "input": "hi", "tools": [{"type": "function", "name": "f", "x": 10**30}]})
@example({"model": "tiny", "input": [{"type": "mcp_call", "server_label": "s", "name": "", "arguments": ""}]})
def test_no_body_is_a_server_error(loop: Loop, body: Any) -> None:
    """A body of any shape makes a sound response or a 4xx, and what was made can be read again, with its
    input, and deleted.
    """

    async def work(api: Api) -> None:
        status, answer = await post(api, "responses", body)
        if status != 200:
            return
        check_response(answer)
        id = answer["id"]
        await post(api, "responses/input_tokens", body)
        if answer["background"] or answer["store"]:
            if answer["background"]:
                await api.over(id)
            assert (await api.ask("GET", f"responses/{id}/input_items"))[0] == 200
            assert (await api.get(id))["id"] == id
            follow = {"model": "tiny", "input": "more", "previous_response_id": id}
            assert (await post(api, "responses", follow))[0] in (200, 400)
            assert (await api.ask("DELETE", f"responses/{id}"))[0] == 200
        await api.missing("GET", f"responses/{id}")

    loop.run(work)


@settings(max_examples=EXAMPLES, suppress_health_check=NEITHER)
@given(CONVERSATION, CONVERSATION)
def test_no_conversation_is_a_server_error(loop: Loop, body: Any, more: Any) -> None:
    """Bodies of any shape make, change and fill conversations, or are a 4xx; what was made can be used."""

    async def work(api: Api) -> None:
        status, made = await post(api, "conversations", body)
        if status != 200:
            return
        base = f"conversations/{made['id']}"
        await post(api, base, more)
        await post(api, f"{base}/items", more)
        status, page = await api.ask("GET", f"{base}/items?limit=100")
        assert status == 200
        for item in page["data"]:
            assert (await api.ask("GET", f"{base}/items/{item['id']}"))[0] in (200, 404)
        await post(api, "responses", {"model": "tiny", "input": "hi", "conversation": made["id"]})
        assert (await api.ask("DELETE", base))[0] == 200

    loop.run(work)


@settings(max_examples=EXAMPLES, suppress_health_check=NEITHER)
@given(
    st.dictionaries(
        st.sampled_from(["limit", "order", "after", "include[]", "include", "stream", "starting_after", "x"]),
        TEXT | st.sampled_from(["1", "asc", "true", "-1", "999999999999999999", "1e3"]),
        max_size=4,
    ),
    TEXT,
)
def test_no_query_is_a_server_error(loop: Loop, query: dict[str, str], id: str) -> None:
    """Queries and ids of any text are answered, or refused with a 4xx."""

    async def work(api: Api) -> None:
        clean = {key: value.encode("utf-8", "replace").decode() for key, value in query.items()}
        _, made = await post(api, "conversations", {})
        body = await api.create()
        for path in (f"responses/{body['id']}", f"conversations/{made['id']}"):
            for below in ("", "/input_items", "/items", "/items/x"):
                async with api.http.get(f"{api.url}/v1/{path}{below}", params=clean) as response:
                    assert response.status < 500, (path, below, clean)
                    await response.read()
        name = id.encode("utf-8", "replace").decode()
        async with api.http.get(api.url + "/v1/responses/" + name.replace("/", "_")) as response:
            assert response.status < 500

    loop.run(work)


@pytest.mark.parametrize(
    "raw", [b'{"model":"tiny","input":"\\ud800"}', b'{"model":"tiny","input":"\\udc00x"}']
)
def test_lone_surrogates_are_refused(loop: Loop, raw: bytes) -> None:
    """Text that cannot be written down as UTF-8 is 400 invalid_json, in every mode."""

    async def work(api: Api) -> None:
        for path in ("responses", "responses/input_tokens", "conversations"):
            headers = {"content-type": "application/json"}
            async with api.http.post(f"{api.url}/v1/{path}", data=raw, headers=headers) as response:
                assert response.status == 400
                assert error_of(await response.json())["code"] == "invalid_json"

    loop.run(work)

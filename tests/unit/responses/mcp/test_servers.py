"""What a request says about MCP servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.types.responses.tool import Mcp

from modeld.errors import BadRequest
from modeld.responses.mcp.servers import (
    Approval,
    McpServer,
    ToolFilter,
    policy,
    public,
    read_servers,
)
from tests.fixtures.openai_schema import check as openai_schema

URL = "https://mcp.example/mcp"


def body(**fields: Any) -> dict[str, Any]:
    """Return an mcp tool as callers send it."""
    return {"type": "mcp", "server_label": "docs", "server_url": URL, **fields}


def one(**fields: Any) -> McpServer:
    """Return the server of a request with one."""
    [server] = read_servers([body(**fields)])
    return server


def test_a_whole_one() -> None:
    """All fields arrive; other tools are passed over, whatever they hold."""
    tools = [
        {"type": "function", "name": "f"},
        {"no": "type"},
        body(
            authorization="tok",
            headers={"X-Key": "k"},
            allowed_tools=["a", "b"],
            require_approval="never",
            server_description="Documents",
            defer_loading=False,
            allowed_callers=["direct"],
        ),
    ]
    assert read_servers(tools) == (
        McpServer(
            label="docs",
            url=URL,
            authorization="tok",
            headers={"X-Key": "k"},
            allowed=ToolFilter(names=frozenset("ab")),
            approval=Approval(default="never"),
            description="Documents",
        ),
    )
    assert read_servers([body(headers=None, allowed_tools=None, require_approval=None)]) == (
        McpServer(label="docs", url=URL),
    )
    assert one(authorization="Bearer tok").authorization == "tok"
    assert one(authorization="").authorization is None
    assert read_servers([]) == ()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"connector_id": "connector_gmail"}, "connector_id", "OpenAI's own"),
    ({"server_url": None, "connector_id": "connector_gmail"}, "connector_id", "OpenAI's own"),
    ({"tunnel_id": "t"}, "tunnel_id", "OpenAI's own"),
    ({"server_url": None}, "server_url", "missing"),
    ({"server_url": ""}, "server_url", "missing"),
    ({"server_url": 5}, "server_url", "Expected"),
    ({"server_url": "ftp://a.example/"}, "server_url", "only http"),
    ({"server_url": "mcp.example"}, "server_url", "only http"),
    ({"server_url": "https://me:secret@a.example/"}, "server_url", "password"),
    ({"server_url": "http://metadata.google.internal/"}, "server_url", "secrets"),
    ({"server_url": "http://0x7f.1/"}, "server_url", "whole address"),
    ({"server_label": ""}, "server_label", "letter"),
    ({"server_label": "1a"}, "server_label", "letter"),
    ({"server_label": "a b"}, "server_label", "letter"),
    ({"server_label": "a\n"}, "server_label", "letter"),
    ({"server_label": "a" * 129}, "server_label", "letter"),
    ({"server_label": None}, "server_label", "Expected"),
    ({"authorization": "secret\r\nX: y"}, "authorization", "printable"),
    ({"authorization": "secret\u00e9"}, "authorization", "printable"),
    ({"authorization": "secret" * 5000}, "authorization", "length"),
    ({"headers": {"Authorization": "secret"}}, "headers", "as authorization of the tool"),
    ({"headers": {"host": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"Content-Length": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"Transfer-Encoding": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"Connection": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"Upgrade": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"TE": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"Proxy-Authorization": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"Mcp-Session-Id": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"Mcp-Param-X": "secret"}}, "headers", "set by the connection"),
    ({"headers": {"X-A": "secret", "x-a": "secret"}}, "headers", "more than once"),
    ({"headers": {"": "secret"}}, "headers", "name of a header"),
    ({"headers": {"a b": "secret"}}, "headers", "name of a header"),
    ({"headers": {"a:": "secret"}}, "headers", "name of a header"),
    ({"headers": {"a\n": "secret"}}, "headers", "name of a header"),
    ({"headers": {"X": "secret\n"}}, "headers", "on one line"),
    ({"headers": {"X": "secret\0"}}, "headers", "on one line"),
    ({"headers": {"X": "secret\x7f"}}, "headers", "on one line"),
    ({"headers": {"X": "secret\u2028"}}, "headers", "on one line"),
    ({"headers": {"X": "secret" * 5000}}, "headers", "16384"),
    ({"headers": {"X": 5}}, "headers", "Expected"),
    ({"headers": {f"X-{n}": "secret" for n in range(65)}}, "headers", "65 headers"),
    ({"headers": ["secret"]}, "headers", "Expected"),
    ({"allowed_tools": "a"}, "allowed_tools", "Expected"),
    ({"allowed_tools": {}}, "allowed_tools", "empty"),
    ({"allowed_tools": {"tool_names": None}}, "allowed_tools", "empty"),
    ({"allowed_tools": [5]}, "allowed_tools", "Expected"),
    ({"require_approval": "sometimes"}, "require_approval", "always, never"),
    ({"require_approval": True}, "require_approval", "Expected"),
    ({"require_approval": {"never": {}}}, "require_approval.never", "empty"),
    ({"require_approval": {"always": {"read_only": "yes"}}}, "require_approval", "Expected"),
    ({"server_description": 5}, "server_description", "Expected"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_what_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    """With the tool's place and field as `param`; no secret is repeated."""
    with pytest.raises(BadRequest, match=words) as caught:
        read_servers([{"type": "function"}, body(**fields)])
    assert (caught.value.param or "").startswith(f"tools[1].{param}")
    assert "secret" not in caught.value.message.replace("machines' secrets", "")


def test_a_label_is_there_once_and_always() -> None:
    """Two servers of one label cannot be told apart; a server without one cannot be named."""
    with pytest.raises(BadRequest, match="already the label") as caught:
        read_servers([body(), body(server_url="https://b.example/")])
    assert caught.value.param == "tools[1].server_label"
    with pytest.raises(BadRequest, match="missing") as caught:
        read_servers([{"type": "mcp", "server_url": URL}])
    assert caught.value.param == "tools[0].server_label"
    with pytest.raises(BadRequest, match="more than 32"):
        read_servers([body(server_label=f"s{n}") for n in range(33)])


def test_where_servers_may_be() -> None:
    """Anywhere but at metadata without hosts, else only there; https alone when that is asked for."""
    for url in ("http://127.0.0.1:1/", "http://[::1]/", "http://10.0.0.1/", "http://box.lan/", URL):
        assert read_servers([body(server_url=url)], policy())[0].url == url
    listed = policy(["box.lan", "127.0.0.1:1"])
    for url in ("http://127.0.0.1:1/", "http://box.lan/"):
        assert read_servers([body(server_url=url)], listed)
    for url in ("http://127.0.0.1:2/", URL):
        with pytest.raises(BadRequest, match=r"mcp\.allowed_hosts"):
            read_servers([body(server_url=url)], listed)
    with pytest.raises(BadRequest, match=r"mcp\.require_https"):
        read_servers([body(server_url="http://mcp.example/")], policy(require_https=True))


def test_secrets_are_not_shown() -> None:
    """Neither a server's repr nor what a response shows holds the token, a header, or the URL's path."""
    url = "https://mcp.example:8443/secret/path?key=secret#secret"
    server = one(server_url=url, authorization="secret", headers={"X-Key": "secret"})
    assert "secret" not in repr(server)
    assert server.host == "mcp.example"
    shown = public(
        body(
            server_url=url,
            authorization="secret",
            headers={"X-Key": "secret"},
            Authorization="secret",
            allowed_tools=["a"],
            require_approval={"never": {"read_only": True}},
        )
    )
    assert shown == {
        "type": "mcp",
        "server_label": "docs",
        "server_url": "https://mcp.example:8443/redacted",
        "allowed_tools": ["a"],
        "headers": None,
        "require_approval": {"never": {"read_only": True}},
    }
    assert public(body(server_url="http://127.0.0.1:80"))["server_url"] == "http://127.0.0.1"
    assert public(body())["require_approval"] == "always"


SHOWN: list[dict[str, Any]] = [
    {},
    {"server_url": None, "server_description": None, "allowed_tools": None, "require_approval": None},
    {"allowed_tools": ["a"], "require_approval": "never", "server_description": "Documents"},
    {"allowed_tools": {"tool_names": None, "read_only": True}, "require_approval": {"always": None}},
    {"require_approval": {"never": {"tool_names": ["a"], "read_only": None}}, "defer_loading": True},
    {"allowed_callers": ["direct"], "headers": {"X": "y"}, "authorization": "secret"},
]


@pytest.mark.parametrize("fields", SHOWN)
def test_what_is_shown_fits_the_schemas(fields: dict[str, Any]) -> None:
    """OpenAI's published one, and the type of its SDK."""
    shown = public(body(**fields))
    document = json.loads((Path(openai_schema.__file__).parent / "responses.json").read_text())
    Draft202012Validator({"$ref": "#/components/schemas/MCPTool", **document}).validate(shown)
    assert Mcp.model_validate(shown).server_label == "docs"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "server_label",
        "server_url",
        "authorization",
        "headers",
        "allowed_tools",
        "require_approval",
        "connector_id",
        "server_description",
    ]
)


@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_json_is_a_server_or_refused(fields: dict[str, Any]) -> None:
    """Nothing else is raised, and what is shown of it is JSON without the token and the headers."""
    given_body = body(**fields)
    shown = public(given_body)
    json.dumps(shown)
    assert "authorization" not in shown
    assert shown["headers"] is None
    refused = ""
    try:
        read_servers([given_body])
    except BadRequest as error:
        refused = error.param or "nothing"
    assert refused == "" or refused.startswith("tools[0].")


NAMES = st.sampled_from(["a", "b", "c"])
FILTERS = st.fixed_dictionaries(
    {}, optional={"tool_names": st.lists(NAMES, max_size=3), "read_only": st.booleans()}
).filter(bool)
RULES = (
    st.none()
    | st.sampled_from(["always", "never"])
    | st.fixed_dictionaries({}, optional={"always": st.none() | FILTERS, "never": st.none() | FILTERS})
)


def meant(wanted: dict[str, Any] | None, name: str, read_only: bool) -> bool:
    """Say in plain words what a filter means: every condition that is there holds."""
    if wanted is None:
        return False
    return name in wanted.get("tool_names", [name]) and wanted.get("read_only", read_only) == read_only


@given(RULES, NAMES, st.booleans())
def test_when_approval_is_needed(rule: Any, name: str, read_only: bool) -> None:
    """Always, but for what `never` means and `always` does not."""
    needed = one(require_approval=rule).approval.needed(name, read_only)
    if isinstance(rule, dict):
        exempt = meant(rule.get("never"), name, read_only) and not meant(rule.get("always"), name, read_only)
        assert needed is not exempt
    else:
        assert needed is (rule != "never")


@given(FILTERS, NAMES, st.booleans())
def test_what_a_filter_means(wanted: dict[str, Any], name: str, read_only: bool) -> None:
    """Every condition that is there holds; a plain list is one of names."""
    allowed = one(allowed_tools=wanted).allowed
    assert allowed is not None
    assert allowed.matches(name, read_only) is meant(wanted, name, read_only)
    if set(wanted) == {"tool_names"}:
        assert one(allowed_tools=wanted["tool_names"]).allowed == allowed

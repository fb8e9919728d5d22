"""Which tools of a server a model sees, and under which names."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.gateway.families.chat.tools import NAME
from modeld.responses.mcp.faults import Fault, phrase
from modeld.responses.mcp.servers import Approval, McpServer, ToolFilter
from modeld.responses.mcp.tools import RemoteTool, choose, expose, read_tool
from tests.fixtures.openai_schema.check import check

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def listed(name: str, read_only: bool = False, **fields: Any) -> dict[str, Any]:
    """Return a tool as a list item has it."""
    annotations = {"read_only": read_only}
    return {"name": name, "description": None, "input_schema": SCHEMA, "annotations": annotations, **fields}


def remote(name: str, label: str = "docs") -> RemoteTool:
    """Return a tool that is not exposed yet."""
    return RemoteTool(label, name, name, None, SCHEMA, {"read_only": False}, True)


def test_a_tool_of_a_server() -> None:
    """It becomes what an item shows; a missing hint means that it may change things."""
    raw = {
        "name": "read",
        "description": "Reads.",
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": True, "title": "x"},
        "outputSchema": {},
    }
    shown = {
        "name": "read",
        "description": "Reads.",
        "input_schema": SCHEMA,
        "annotations": {"read_only": True},
    }
    assert read_tool(raw) == shown
    item = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "docs", "tools": [shown]}
    check("OutputItem", item)
    for hints in (None, {}, {"readOnlyHint": "yes"}, {"readOnlyHint": False}, "readOnlyHint"):
        known = read_tool({**raw, "annotations": hints})
        assert isinstance(known, dict)
        assert known["annotations"] == {"read_only": False}
    long = read_tool({**raw, "description": "x" * 100_000})
    assert isinstance(long, dict)
    assert len(long["description"]) == 16384


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
TOOLS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=10) | JSON,
        "inputSchema": st.just(SCHEMA) | JSON,
        "input_schema": st.just(SCHEMA) | JSON,
        "annotations": JSON,
        "description": JSON,
    },
)


@settings(max_examples=60)
@given(st.lists(TOOLS, max_size=4))
def test_any_json_is_a_tool_or_left_out(found: list[Any]) -> None:
    """With a reason, for a server's own and for a list that a caller hands back; names are there once."""
    for raw in found:
        known = read_tool(raw)
        assert isinstance(known, str) or set(known) == {"name", "description", "input_schema", "annotations"}
    chosen = choose(McpServer("docs", "https://a.example/"), found)
    assert len({tool.name for tool in chosen}) == len(chosen)


def test_what_a_request_allows() -> None:
    """Only that is chosen, in the list's order, and each with its need of approval."""
    tools = [listed("a", True), listed("b"), listed("c", True), listed("a"), listed("d", input_schema=5), "x"]
    server = McpServer(
        "docs",
        "https://a.example/",
        allowed=ToolFilter(names=frozenset("acd")),
        approval=Approval(never=ToolFilter(names=frozenset("c"))),
    )
    assert choose(server, tools) == (
        RemoteTool("docs", "a", "a", None, SCHEMA, {"read_only": True}, True),
        RemoteTool("docs", "c", "c", None, SCHEMA, {"read_only": True}, False),
    )
    everything = choose(McpServer("docs", "https://a.example/"), tools)
    assert [tool.name for tool in everything] == ["a", "b", "c"]
    reading = McpServer("docs", "https://a.example/", allowed=ToolFilter(read_only=True))
    assert [tool.name for tool in choose(reading, tools)] == ["a", "c"]


def test_names_that_functions_can_have() -> None:
    """A good name stays, a taken one gets its server's label, and what is no name is cleaned."""
    tools = [
        remote("search"),
        remote("search", "web"),
        remote("search", "web-2"),
        remote("get weather é!"),
        remote("get weather ü?"),
        remote("日本"),
        remote("own"),
    ]
    exposed = [tool.exposed for tool in expose(tools, ["own", "docs_own"])]
    assert exposed == [
        "search",
        "web_search",
        "web-2_search",
        "get_weather_",
        "docs_get_weather_",
        "_",
        "docs_own_2",
    ]
    assert [tool.name for tool in expose(tools, [])] == [tool.name for tool in tools]


LABELS = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,127}", fullmatch=True)
NAMES = st.text(min_size=1, max_size=128) | st.sampled_from(["a", "a b", "x" * 128, "x" * 127 + "é"])


@given(st.lists(st.builds(remote, NAMES, LABELS), max_size=20), st.sets(NAMES, max_size=5))
def test_exposed_names_are_unique_and_fit(tools: list[RemoteTool], taken: set[str]) -> None:
    """Whatever servers call their tools; nothing else of a tool changes, and a free, good name is kept."""
    found = expose(tools, taken)
    names = [tool.exposed for tool in found]
    assert len({*names, *taken}) == len(names) + len(taken)
    assert all(NAME.fullmatch(name) for name in names)
    assert [(tool.label, tool.name) for tool in found] == [(tool.label, tool.name) for tool in tools]
    if found and NAME.fullmatch(found[0].name) and found[0].name not in taken:
        assert found[0].exposed == found[0].name


def test_faults_are_errors_of_items() -> None:
    """Each of the three kinds has its shape; a server's long words are cut."""
    assert Fault("http", 503, "busy").error() == {"type": "http_error", "code": 503, "message": "busy"}
    assert Fault("protocol", -32602, "no").error() == {
        "type": "mcp_protocol_error",
        "code": -32602,
        "message": "no",
    }
    assert Fault("tool", 0, "no").error() == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "no"}],
    }
    assert len(Fault("http", 500, "x" * 10_000).error()["message"]) == 2000
    assert len(Fault("tool", 0, "x" * 10_000).error()["content"][0]["text"]) == 10_000
    for fault in (Fault("http", 503, "busy"), Fault("protocol", -32602, "no"), Fault("tool", 0, "no")):
        item = {"id": "mcp_1", "type": "mcp_call", "server_label": "docs", "name": "f", "arguments": "{}"}
        check("OutputItem", {**item, "status": "failed", "output": None, "error": fault.error()})
    assert phrase(401) == "401 (Unauthorized)"
    assert phrase(599) == "599"

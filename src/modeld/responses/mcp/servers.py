"""What a request says about MCP servers: read, checked, and shown again without its secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from yarl import URL

from modeld.errors import BadRequest
from modeld.gateway.decoding import invalid, missing, unsupported
from modeld.gateway.egress import Policy, Refused
from modeld.gateway.egress.addresses import check

MOST_SERVERS = 32
"""Servers in one request."""

MOST_HEADERS = 64
"""Headers for one server."""

LONGEST_VALUE = 16 * 1024
"""Characters of a header's value, and of a token."""

LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}")
"""OpenAI's rule for labels."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
"""A header's name (RFC 9110, 5.6.2)."""

_VALUE = re.compile(r"[\t\x20-\x7e]*")
"""A header's value: what every server reads the same, on one line."""

FORBIDDEN_HEADERS = frozenset(
    {
        # Of the connection, not of the caller (RFC 9110, 7.6.1, and what frames a message).
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        # Of the protocol, and set by it.
        "accept",
        "accept-encoding",
        "content-type",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
    }
)


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Which tools are meant: by name, by whether they only read, or by both; None leaves that open."""

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def matches(self, name: str, read_only: bool) -> bool:
        """Say whether a tool is meant. One that names nothing means nothing."""
        if self.names is None and self.read_only is None:
            return False
        return (self.names is None or name in self.names) and self.read_only in (None, read_only)


@dataclass(frozen=True, slots=True)
class Approval:
    """When the caller is asked before a tool is called: always, but for what `never` means.

    What both mean is asked for. Without filters, `default` decides alone.
    """

    default: Literal["always", "never"] = "always"
    always: ToolFilter | None = None
    never: ToolFilter | None = None

    def needed(self, name: str, read_only: bool) -> bool:
        """Say whether the caller must approve of a call."""
        if self.always is not None and self.always.matches(name, read_only):
            return True
        if self.never is not None and self.never.matches(name, read_only):
            return False
        return self.default == "always"


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server that a request names. The token and the headers are secrets, and no part of its repr.

    `allowed` None lets all tools be used. `headers` are as sent, none of them Authorization.
    """

    label: str
    url: str = field(repr=False)  # a path or a query may hold a token, too
    authorization: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed: ToolFilter | None = None
    approval: Approval = Approval()
    description: str | None = None

    @property
    def host(self) -> str:
        """The server's host, for sentences."""
        return URL(self.url).raw_host or ""


class _Filter(msgspec.Struct):
    tool_names: list[str] | None = None
    read_only: bool | None = None


class _Approvals(msgspec.Struct):
    always: _Filter | None = None
    never: _Filter | None = None


class _Body(msgspec.Struct):
    server_label: str
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    authorization: Annotated[str, Meta(max_length=LONGEST_VALUE)] | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[str] | _Filter | None = None
    require_approval: str | _Approvals | None = None
    server_description: Annotated[str, Meta(max_length=4096)] | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


def policy(allowed_hosts: Iterable[str] = (), *, require_https: bool = False) -> Policy:
    """Return where MCP servers may be: with no hosts anywhere but at a cloud's metadata, else at those."""
    hosts = tuple(allowed_hosts)
    return Policy(
        fetch="listed" if hosts else "any",
        hosts=hosts,
        https=require_https,
        hosts_key="mcp.allowed_hosts",
        https_key="mcp.require_https",
    )


def read_servers(bodies: list[dict[str, Any]], where: Policy | None = None) -> tuple[McpServer, ...]:
    """Return the MCP servers among a request's tools. Raises BadRequest naming the tool and its field.

    A URL that `where` refuses is the caller's mistake, too; None leaves that to whoever asks the server.
    """
    found: dict[str, McpServer] = {}
    for at, body in enumerate(bodies):
        if body.get("type") != "mcp":
            continue
        server = _server(body, f"tools[{at}]", where)
        if server.label in found:
            raise invalid(
                f"tools[{at}].server_label", f"{server.label!r} is already the label of another MCP server"
            )
        found[server.label] = server
        if len(found) > MOST_SERVERS:
            raise invalid("tools", f"it names more than {MOST_SERVERS} MCP servers")
    return tuple(found.values())


def _server(body: dict[str, Any], param: str, where: Policy | None) -> McpServer:
    try:
        given = msgspec.convert(body, _Body)
    except msgspec.ValidationError as error:
        raise _mistake(error, param) from None
    if not LABEL.fullmatch(given.server_label):
        raise invalid(
            f"{param}.server_label", "expected a letter and up to 127 letters, digits, underscores and dashes"
        )
    if given.connector_id is not None:
        raise unsupported(f"{param}.connector_id", "connectors are OpenAI's own; send server_url")
    if given.tunnel_id is not None:
        raise unsupported(f"{param}.tunnel_id", "tunnels are OpenAI's own; send server_url")
    if not given.server_url:
        raise missing(f"{param}.server_url", "an MCP server is found by it")
    try:
        check(given.server_url, where or policy())
    except Refused as refused:
        raise invalid(f"{param}.server_url", str(refused)) from None
    if given.authorization is not None and not _VALUE.fullmatch(given.authorization):
        raise invalid(f"{param}.authorization", "a token holds printable ASCII characters only")
    return McpServer(
        label=given.server_label,
        url=given.server_url,
        authorization=(given.authorization or "").removeprefix("Bearer ") or None,
        headers=_headers(given.headers or {}, f"{param}.headers"),
        allowed=_allowed(given.allowed_tools, f"{param}.allowed_tools"),
        approval=_approval(given.require_approval, f"{param}.require_approval"),
        description=given.server_description,
    )


def _mistake(error: msgspec.ValidationError, param: str) -> BadRequest:
    """Say what is wrong with a body. Its values are secrets, and the decoder names types only."""
    reason, _, place = str(error).partition(" - at `$")
    if "required field" in reason:
        return missing(f"{param}.server_label", "an MCP server is known by it")
    path = place.rstrip("`").replace("[...]", "")
    return invalid(f"{param}{path}", reason.replace("`", ""))


def _headers(given: dict[str, str], param: str) -> dict[str, str]:
    """Return headers that may be sent. Raises BadRequest; no value is repeated in it."""
    if len(given) > MOST_HEADERS:
        raise invalid(param, f"{len(given)} headers are more than {MOST_HEADERS}")
    seen = set()
    for name, value in given.items():
        plain = name.lower()
        if not _TOKEN.fullmatch(name):
            raise invalid(param, f"{name[:60]!r} is not the name of a header")
        if plain == "authorization":
            raise invalid(param, "send the token as authorization of the tool, without Bearer, not here")
        if plain in FORBIDDEN_HEADERS or plain.startswith("mcp-param-"):
            raise invalid(param, f"the header {name[:60]} is set by the connection, not by callers")
        if plain in seen:
            raise invalid(param, f"the header {name[:60]} is there more than once")
        if len(value) > LONGEST_VALUE or not _VALUE.fullmatch(value):
            raise invalid(
                param,
                f"{name[:60]} needs a value of up to {LONGEST_VALUE} printable ASCII characters, on one line",
            )
        seen.add(plain)
    return given


def _allowed(given: list[str] | _Filter | None, param: str) -> ToolFilter | None:
    if given is None:
        return None
    if isinstance(given, list):
        return ToolFilter(names=frozenset(given))
    return _filter(given, param)


def _filter(given: _Filter, param: str) -> ToolFilter:
    if given.tool_names is None and given.read_only is None:
        raise invalid(param, "the filter is empty; give tool_names, read_only or both")
    names = None if given.tool_names is None else frozenset(given.tool_names)
    return ToolFilter(names=names, read_only=given.read_only)


def _approval(given: str | _Approvals | None, param: str) -> Approval:
    match given:
        case None | "always":
            return Approval()
        case "never":
            return Approval(default="never")
        case _Approvals(always=always, never=never):
            return Approval(
                always=None if always is None else _filter(always, f"{param}.always"),
                never=None if never is None else _filter(never, f"{param}.never"),
            )
        case _:
            raise invalid(param, "expected always, never or an object of filters")


def public(body: dict[str, Any]) -> dict[str, Any]:
    """Return an mcp tool as a response shows it, and as it is kept: no token, no headers, no URL's path.

    Only fields that are known are shown, so that a secret in a wrong place stays out as well.
    """
    shown = {
        "type": "mcp",
        "server_label": body.get("server_label"),
        "allowed_tools": _whole(body.get("allowed_tools")),
        "headers": None,
        "require_approval": _whole(body.get("require_approval")) or "always",
    }
    if isinstance(url := body.get("server_url"), str):
        shown["server_url"] = _origin(url)
    optional = ("server_description", "defer_loading", "allowed_callers")
    return {**shown, **{key: body[key] for key in optional if body.get(key) is not None}}


def _whole(value: Any) -> Any:
    """Return a filter without what it leaves open: OpenAI's schema has no null there."""
    if not isinstance(value, dict):
        return value
    return {key: _whole(each) for key, each in value.items() if each is not None}


def _origin(url: str) -> str:
    """Return a URL without what may be secret in it: all that follows the host."""
    try:
        parsed = URL(url)
        origin = str(parsed.origin())
    except ValueError:
        return "redacted"
    return origin if parsed.raw_path_qs in ("", "/") and not parsed.raw_fragment else f"{origin}/redacted"

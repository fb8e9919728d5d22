"""Who may call, and from where: keys, `Host`, `Origin`. Decisions only, no I/O.

Listening on loopback is no protection by itself: a web page in the owner's browser can send requests there,
directly (then `Origin` names it) or through a name that resolves to 127.0.0.1 (then `Host` names it).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from modeld.errors import BadRequest, Forbidden, Unauthorized
from modeld.ids import LOCAL, Identity

STATE_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})

EXPOSED = "x-request-id, openai-processing-ms, retry-after, retry-after-ms, x-should-retry"
"""Headers that a script from an allowed origin may read."""

_HEADER_LIST = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2000}")


def identity_of(key: str) -> Identity:
    """Return the identity of a key's owner; it does not give the key away."""
    return Identity("key_" + hashlib.sha256(key.encode()).hexdigest()[:16])


class Keys:
    """The keys that open the API."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._known = [(hashlib.sha256(key.encode()).digest(), identity_of(key)) for key in keys]

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Return who calls: LOCAL when there are no keys. Raises Unauthorized."""
        if not self._known:
            return LOCAL
        presented = _presented(headers)
        if presented is None:
            raise Unauthorized(
                "no API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'", code="missing_api_key"
            )
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found: Identity | None = None
        for known, identity in self._known:  # always over all of them: time must not tell which one is near
            if hmac.compare_digest(known, digest):
                found = identity
        if found is None:
            raise Unauthorized("this API key is not one of the keys in api_keys", code="invalid_api_key")
        return found


def _presented(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip() or None


def host_name(host: str) -> str | None:
    """Return the name in a `Host` value, lower case, without port and brackets; None when malformed."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s\[\]:/@]+))(?::\d{0,5})?", host)
    if match is None:
        return None
    return (match[1] or match[2]).lower().rstrip(".")


def is_loopback(name: str) -> bool:
    """Say whether a name (as from `host_name`) means this machine whatever a resolver says."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Places:
    """From where requests may come."""

    def __init__(self, *, loopback: bool, allowed_hosts: Iterable[str], cors_origins: Iterable[str]) -> None:
        self._loopback = loopback
        self._hosts = frozenset(host_name(host) or host.lower() for host in allowed_hosts)
        self._origins = frozenset(origin.lower() for origin in cors_origins)

    def check_host(self, host: str | None) -> None:
        """Refuse a request that was addressed to another name. Raises Forbidden.

        `host` is None for the HTTP/1.0 clients that send no such header; browsers always send one.
        """
        if not self._loopback or host is None:
            return
        name = host_name(host)
        if name is None or not (is_loopback(name) or name in self._hosts):
            raise Forbidden(
                f"this server does not answer to the host {host[:100]!r}; "
                "if it should, add the name to allowed_hosts in the configuration",
                code="host_not_allowed",
            )

    def cors_allows(self, origin: str) -> bool:
        """Say whether the owner opened the API to web pages of this origin."""
        return "*" in self._origins or origin.lower() in self._origins

    def check_origin(self, method: str, origin: str | None, host: str | None) -> None:
        """Refuse a request that changes something on behalf of a foreign web page. Raises Forbidden."""
        if origin is None or method not in STATE_CHANGING or self.cors_allows(origin):
            return
        if not self._same_host(origin, host):
            raise Forbidden(
                f"web pages from {origin[:100]!r} may not call this server; "
                "if they should, add the origin to cors_origins in the configuration",
                code="origin_not_allowed",
            )

    def _same_host(self, origin: str, host: str | None) -> bool:
        try:
            theirs = urlsplit(origin).hostname
        except ValueError:
            return False
        ours = host_name(host) if host else None
        if not theirs or ours is None:
            return False
        # Another port of the same host is let through: local applications send such an Origin, and a web page
        # gains nothing, since its preflight goes unanswered.
        return theirs == ours or (is_loopback(theirs) and is_loopback(ours))


def cors_headers(origin: str) -> dict[str, str]:
    """Return the headers of an answer that an allowed origin may read."""
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": EXPOSED,
        "vary": "Origin",
    }


def preflight_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the further headers that answer an allowed origin's preflight. Raises BadRequest."""
    wanted = headers.get("access-control-request-headers", "")
    if not _HEADER_LIST.fullmatch(wanted):
        raise BadRequest("access-control-request-headers is not a list of header names")
    answer = {
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-max-age": "600",
    }
    if wanted:
        answer["access-control-allow-headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        answer["access-control-allow-private-network"] = "true"
    return answer

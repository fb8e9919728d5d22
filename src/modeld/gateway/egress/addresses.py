"""Which addresses may be asked for a caller's sake. Pure: a URL or an address in, a decision out."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from yarl import URL

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST_URL = 8192
"""Characters; no honest address of a picture is longer."""


class Refused(Exception):
    """Nothing was sent: the words say which rule the URL breaks, and nothing of the network behind."""


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""All that is handed out for global unicast (RFC 4291). IPv4 in IPv6 clothes, mapped (::ffff:0:0/96) or
translated (64:ff9b::/96), lies outside of it, as do private, link-local and multicast addresses."""

_NOT_GLOBAL = _networks(
    # IPv4: IANA's registry of special-purpose addresses (RFC 6890 and later).
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    # IPv6, inside of 2000::/3: protocols (Teredo among them), documentation, and 6to4.
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
)

_PRIVATE = _networks(
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
)
"""Where an owner's own machines are, which he may list."""

_METADATA = _networks(
    # Machines in a cloud are told their secrets here; nobody may be helped to them.
    "169.254.0.0/16",
    "fe80::/10",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "fd00:ec2::/32",
    "fd20:ce::254/128",
    "fd00:c1::a9fe:a9fe/128",
)

_METADATA_NAMES = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "metadata.oraclecloud.com",
        "instance-data",
        "instance-data.ec2.internal",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    }
)
"""The same by name: in some clouds these lead to an address like any other."""


def allowed(address: Address, *, listed: bool) -> bool:
    """Say whether an address may be asked; `listed`: the owner named its host."""
    if any(address in network for network in _METADATA):
        return False
    if listed and any(address in network for network in _PRIVATE):
        return True
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_V6:
        return False
    return not any(address in network for network in _NOT_GLOBAL)


@dataclass(frozen=True, slots=True)
class Policy:
    """Where requests may go: to "public" addresses and `hosts`, to those "listed" there only, or to "none".

    "any" asks private addresses too, this machine's among them, and so treats every host as listed. An entry
    of `hosts` is a name or an address, with a port (which then counts) or without. `https` refuses plain
    http. The settings that say all this are named in refusals: `fetch_key`, `hosts_key`, `https_key`.
    """

    fetch: Literal["any", "public", "listed", "none"] = "public"
    hosts: tuple[str, ...] = ()
    https: bool = False
    fetch_key: str = "media.fetch"
    hosts_key: str = "media.fetch_hosts"
    https_key: str = ""

    def lists(self, host: str, port: int | None) -> bool:
        """Say whether the owner named this host."""
        return any(
            host == name and listed_port in (None, port) for name, listed_port in map(_entry, self.hosts)
        )


def check(text: str, policy: Policy) -> tuple[URL, bool]:
    """Return the URL and whether its host counts as listed; no name is looked up. Raises Refused."""
    if len(text) > LONGEST_URL:
        raise Refused(f"the URL has {len(text)} characters, {LONGEST_URL} are the limit")
    try:
        url = URL(text)
        port = url.port
        host = plain(url.raw_host or "")
    except (ValueError, UnicodeError):
        raise Refused("this is not a URL") from None
    if url.scheme not in ("http", "https"):
        raise Refused("only http and https URLs are fetched")
    if policy.https and url.scheme != "https":
        raise Refused(f"only https URLs are asked here ({policy.https_key})")
    if url.user is not None or url.password is not None:
        raise Refused("the URL holds a user name or a password; those are not sent")
    if not host or not port or "%" in host:
        raise Refused("the URL names no host")
    listed = check_host(host, port, policy)
    return url.with_fragment(None), listed


def check_host(host: str, port: int, policy: Policy) -> bool:
    """Return whether a host, as `plain` gives it, counts as listed; no name is looked up. Raises Refused."""
    if host in _METADATA_NAMES:
        raise Refused(f"{shown(host)} is where a cloud keeps its machines' secrets; it is never asked")
    if policy.fetch == "none":
        raise Refused(f"nothing is fetched here ({policy.fetch_key} is none)")
    listed = policy.fetch == "any" or policy.lists(host, port)
    if policy.fetch == "listed" and not listed:
        raise Refused(f"{shown(host)} is not among the hosts that are fetched from ({policy.hosts_key})")
    if literal(host) is None and _NUMBER_AT_END.search(host):
        # 127.1, 2130706433 and 0x7f000001 are addresses to some programs, and names to others.
        raise Refused(f"{shown(host)} is neither a name nor a whole address")
    return listed


_NUMBER_AT_END = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)$")


def plain(host: str) -> str:
    """Return a host as it is compared: lower case, without the dot that ends a full name."""
    return host.removesuffix(".").lower()


def literal(host: str) -> Address | None:
    """Return the address that a host is written as, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def shown(host: str) -> str:
    """Return a host for a sentence."""
    return repr(host[:100])


def _entry(text: str) -> tuple[str, int | None]:
    """Read an entry of the list: "box.lan", "box.lan:8080", "[::1]:8080" or "::1"."""
    if found := re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+):(\d+)", text):
        port = found[2] or found[4]
        return plain(found[1] or found[3]), int(port) if port else None
    return plain(text), None

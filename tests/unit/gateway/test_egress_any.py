"""Egress to servers that callers name and an owner may run himself: anywhere but at a cloud's metadata."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given

from modeld.gateway.egress import Egress, Policy, Refused
from modeld.gateway.egress.addresses import Address, check, check_host
from tests.unit.gateway.test_egress import ALWAYS, HOSTS, IF_LISTED, NEVER, RESTS

ANY = Policy("any", hosts_key="mcp.allowed_hosts")

METADATA = [
    "metadata",
    "metadata.google.internal",
    "Metadata.Google.Internal.",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.oraclecloud.com",
    "instance-data",
    "instance-data.ec2.internal",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
]

TRICKS = [
    # Public bypasses of other guards, each an address of metadata or none at all.
    "http://169.254.169.254/",
    "http://169.254.169.254./",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[::169.254.169.254]/",
    "http://[::ffff:0:169.254.169.254]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::]/",
    "http://[fd00:ec2::254]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://2852039166/",
    "http://0xA9FEA9FE/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://169.16689662/",
    "http://127.1/",
    "http://0/",
    "http://0.0.0.0/",
    "http://[::]/",
    "http://\uff11\uff16\uff19.254.169.254/",
    "http://\u2460\u2465\u2468.254.169.254/",
    "http://169\u3002254\u3002169\u3002254/",
    "http://me@169.254.169.254/",
    "http://a.example@169.254.169.254/",
    "http://169.254.169.254#@a.example/",
    "http://169.254.169.254?@a.example/",
    "http://169.254.169.254\\@a.example/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://224.0.0.1/",
    "gopher://127.0.0.1/",
    "file:///etc/passwd",
]


def leading(*addresses: str) -> Callable[[str, int], Awaitable[Sequence[Address]]]:
    """Return a resolver for which every name has these addresses."""

    async def resolve(host: str, port: int) -> Sequence[Address]:
        return [ipaddress.ip_address(text) for text in addresses]

    return resolve


@pytest.mark.parametrize("url", TRICKS)
async def test_no_trick_leads_to_metadata(url: str) -> None:
    """Every name has a public address there, so that nothing but the text speaks against it."""
    egress = Egress(ANY, resolve=leading("8.8.8.8"))
    with pytest.raises(Refused):
        await egress.addresses(url)


@pytest.mark.parametrize("host", METADATA)
async def test_no_name_of_metadata_is_asked(host: str) -> None:
    """Whatever address it has, and whatever the owner lists."""
    for policy in (ANY, Policy("listed", (host,))):
        egress = Egress(policy, resolve=leading("8.8.8.8"))
        with pytest.raises(Refused, match="secrets"):
            egress.check(f"http://{host}:8080/x")
        with pytest.raises(Refused, match="secrets"):
            await egress.pinned(host, 8080)


@pytest.mark.parametrize("address", NEVER)
async def test_a_name_of_a_bad_address_is_not_asked(address: str) -> None:
    """Alone and among good ones, for the URL and for the connection."""
    for found in ((address,), ("8.8.8.8", address), ("127.0.0.1", address)):
        egress = Egress(ANY, resolve=leading(*found))
        with pytest.raises(Refused, match="no address that may be asked"):
            await egress.addresses("http://box.lan/")
        with pytest.raises(Refused, match="no address that may be asked"):
            await egress.pinned("box.lan", 80)


@pytest.mark.parametrize("address", [*ALWAYS, *IF_LISTED])
async def test_all_others_are_asked(address: str) -> None:
    """Public ones, those of the house, and this machine."""
    egress = Egress(ANY, resolve=leading(address))
    assert await egress.pinned("box.lan", 80) == [ipaddress.ip_address(address)]
    shown = f"[{address}]" if ":" in address else address
    assert await egress.addresses(f"http://{shown}:9000/mcp") == (ipaddress.ip_address(address),)


async def test_a_connection_keeps_to_the_list() -> None:
    """The host of a connection is checked like that of a URL, the port included."""
    egress = Egress(Policy("listed", ("box.lan:81",), hosts_key="mcp.allowed_hosts"), resolve=leading("::1"))
    assert await egress.pinned("BOX.lan.", 81) == [ipaddress.ip_address("::1")]
    for host, port in (("box.lan", 80), ("other.lan", 81), ("127.0.0.1", 81)):
        with pytest.raises(Refused, match=r"mcp\.allowed_hosts"):
            await egress.pinned(host, port)
    with pytest.raises(Refused, match=r"media\.fetch is none"):
        await Egress(Policy("none"), resolve=leading("::1")).pinned("box.lan", 81)


def test_only_https() -> None:
    """Plain http is refused by the setting's name, on every host."""
    policy = Policy("any", https=True, https_key="mcp.require_https")
    assert check("https://box.lan/", policy)[1]
    for url in ("http://box.lan/", "http://127.0.0.1/", "HTTP://a.example/"):
        with pytest.raises(Refused, match=r"mcp\.require_https"):
            check(url, policy)


@given(HOSTS, RESTS)
def test_a_host_is_judged_as_its_url_is(host: str, rest: str) -> None:
    """What the URL's check lets pass, the connection's does, too: both know the host by the same text."""
    try:
        url, listed = check(f"http://{host}{rest}", ANY)
    except Refused:
        return
    assert listed
    assert check_host((url.raw_host or "").removesuffix(".").lower(), url.port or 0, ANY)

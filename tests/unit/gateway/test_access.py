from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, Forbidden, Unauthorized
from modeld.gateway import access
from modeld.ids import LOCAL


def _places(
    loopback: bool = True, hosts: tuple[str, ...] = (), origins: tuple[str, ...] = ()
) -> access.Places:
    return access.Places(loopback=loopback, allowed_hosts=hosts, cors_origins=origins)


GOOD_HOSTS = [
    "localhost",
    "LocalHost:8000",
    "localhost.",
    "app.localhost:1",
    "127.0.0.1",
    "127.8.9.10:8000",
    "[::1]",
    "[::1]:8000",
    "box.lan:8000",
    "BOX.LAN",
]
BAD_HOSTS = [
    "",
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "evillocalhost",
    "127.0.0.1.evil.example",
    "10.0.0.1",
    "[::2]:8000",
    "127.0.0.1@evil.example",
    "localhost, evil.example",
    "localhost:8000:9000",
    "localhost/evil",
    "box.lan.evil",
]


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_names_of_this_machine_are_let_in(host: str) -> None:
    """Loopback names and addresses, in any case and with any port, and the allowed hosts."""
    _places(hosts=("Box.lan",)).check_host(host)


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_foreign_names_are_refused_with_the_fix(host: str) -> None:
    """Any other name on a loopback bind is what a rebinding attack looks like."""
    with pytest.raises(Forbidden, match="allowed_hosts") as caught:
        _places(hosts=("box.lan",)).check_host(host)
    assert caught.value.code == "host_not_allowed"


def test_other_binds_answer_to_any_name() -> None:
    """A daemon on the network has keys and cannot know its names."""
    _places(loopback=False).check_host("whatever.example")
    _places().check_host(None)


@given(st.text(max_size=40))
def test_any_host_header_is_decided(host: str) -> None:
    """Garbage in Host is refused, never an exception of another kind, and never mistaken for loopback."""
    try:
        _places().check_host(host)
    except Forbidden:
        return
    name = access.host_name(host)
    assert name is not None
    assert access.is_loopback(name)


@pytest.mark.parametrize(
    ("origin", "host", "let_in"),
    [
        (None, "localhost:8000", True),
        ("http://localhost:3000", "127.0.0.1:8000", True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://box.lan", "box.lan:8000", True),
        ("https://app.example", "localhost:8000", True),
        ("https://APP.example", "localhost:8000", True),
        ("https://app.example.evil", "localhost:8000", False),
        ("https://evil.example", "localhost:8000", False),
        ("http://localhost.evil.example", "localhost:8000", False),
        ("null", "localhost:8000", False),
        ("", "localhost:8000", False),
        ("http://[::1", "localhost:8000", False),
        ("https://evil.example", None, False),
    ],
)
def test_pages_that_may_change_something(origin: str | None, host: str | None, let_in: bool) -> None:
    """Pages of this host and of the opened origins may; others get told which setting opens the door."""
    gate = _places(hosts=("box.lan",), origins=("https://app.example",))
    if let_in:
        gate.check_origin("POST", origin, host)
    else:
        with pytest.raises(Forbidden, match="cors_origins") as caught:
            gate.check_origin("POST", origin, host)
        assert caught.value.code == "origin_not_allowed"
    gate.check_origin("GET", origin, host)


def test_a_star_opens_to_all_origins() -> None:
    """The owner can say "everybody"."""
    _places(origins=("*",)).check_origin("POST", "https://any.example", "localhost")


def test_without_keys_everybody_is_local() -> None:
    """No keys configured: no key needed, whatever is sent."""
    assert access.Keys(()).identify({}) == LOCAL
    assert access.Keys(()).identify({"authorization": "Bearer x"}) == LOCAL


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer k2"},
        {"authorization": "bearer  k2 "},
        {"x-api-key": "k2"},
        {"authorization": "Basic eA==", "x-api-key": "k2"},
    ],
)
def test_a_key_gives_its_identity(headers: dict[str, str]) -> None:
    """Bearer or x-api-key, and the identity is a digest that does not hold the key."""
    identity = access.Keys(("k1", "k2")).identify(headers)
    assert identity == access.identity_of("k2")
    assert identity.startswith("key_")
    assert len(identity) == 20
    assert "k2" not in identity


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": "Bearer"}, "missing_api_key"),
        ({"authorization": "Bearer "}, "missing_api_key"),
        ({"authorization": "Basic k1"}, "missing_api_key"),
        ({"authorization": "k1"}, "missing_api_key"),
        ({"authorization": "Bearer K1"}, "invalid_api_key"),
        ({"authorization": "Bearer k1k2"}, "invalid_api_key"),
        ({"authorization": "Bearer \udcff\u20ac"}, "invalid_api_key"),
        ({"x-api-key": "k"}, "invalid_api_key"),
        ({"authorization": "Bearer wrong", "x-api-key": "k1"}, "invalid_api_key"),
    ],
)
def test_no_key_and_wrong_keys_are_refused(headers: dict[str, str], code: str) -> None:
    """Nothing but a whole key opens the door, whatever bytes come in."""
    with pytest.raises(Unauthorized) as caught:
        access.Keys(("k1", "k2")).identify(headers)
    assert caught.value.code == code
    assert "wrong" not in caught.value.message


def test_preflights() -> None:
    """What the page asks for is granted; what is no list of names is refused."""
    granted = access.preflight_headers(
        {
            "access-control-request-headers": "authorization, content-type, x-stainless-lang",
            "access-control-request-private-network": "true",
        }
    )
    assert granted["access-control-allow-headers"] == "authorization, content-type, x-stainless-lang"
    assert granted["access-control-allow-private-network"] == "true"
    assert "POST" in granted["access-control-allow-methods"]
    assert "access-control-allow-headers" not in access.preflight_headers({})
    with pytest.raises(BadRequest):
        access.preflight_headers({"access-control-request-headers": "a\r\nb: c"})

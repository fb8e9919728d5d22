from __future__ import annotations

import socket

import pytest

from modeld.config.schema import Config
from modeld.daemon import bind, check_exposure
from modeld.errors import ConfigError, StartupError


@pytest.mark.parametrize("name", ["127.0.0.1", "127.3.2.1", "::1", "localhost", "LocalHost"])
def test_loopback_needs_no_keys(name: str) -> None:
    """This machine may be served without keys."""
    check_exposure(Config.model_validate({"listen": {"host": name}}))


@pytest.mark.parametrize("name", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_another_address_without_keys_is_refused_and_with_keys_is_not(name: str) -> None:
    """Whatever others can reach needs a key; the message names both ways out."""
    with pytest.raises(ConfigError, match="set api_keys"):
        check_exposure(Config.model_validate({"listen": {"host": name}}))
    check_exposure(Config.model_validate({"listen": {"host": name}, "api_keys": ["a-long-enough-key"]}))


def test_a_taken_port_is_told_in_one_line() -> None:
    """Binding a taken port is a StartupError that names it."""
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 is taken") as caught:
            bind("127.0.0.1", port)
        assert "\n" not in str(caught.value)


def test_an_address_this_machine_does_not_have_is_a_startup_error() -> None:
    """A name that does not resolve and an address of somebody else are told, not raised as OSError."""
    with pytest.raises(StartupError, match="cannot listen on"):
        bind("no-such-host.invalid", 0)
    with pytest.raises(StartupError, match="cannot listen on"):
        bind("192.0.2.1", 0)


def test_ipv6_where_there_is_any() -> None:
    """::1 binds as an IPv6 socket."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with bind("::1", 0) as sock:
            assert sock.family is socket.AF_INET6
    except StartupError as error:
        pytest.skip(str(error))

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modeld.service.notify import Notifier


@contextmanager
def _manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if address.startswith("@") else address)
        manager.settimeout(5)
        yield manager


@pytest.mark.parametrize(
    ("send", "expected"),
    [
        (lambda n: n.ready(), "READY=1"),
        (lambda n: n.ready("3 models"), "READY=1\nSTATUS=3 models"),
        (lambda n: n.status("two\nlines"), "STATUS=two lines"),
        (lambda n: n.stopping("SIGTERM"), "STOPPING=1\nSTATUS=SIGTERM"),
        (lambda n: n.watchdog(), "WATCHDOG=1"),
    ],
)
def test_messages(send: Callable[[Notifier], None], expected: str, short_dir: Path) -> None:
    """Each method is one datagram in the manager's words, and a status is always one line."""
    address = str(short_dir / "n")
    with _manager(address) as manager:
        send(Notifier(address))
        assert manager.recv(4096).decode() == expected


def test_reloading_carries_the_moment(short_dir: Path) -> None:
    """RELOADING=1 comes with MONOTONIC_USEC, without which systemd refuses it."""
    address = str(short_dir / "n")
    with _manager(address) as manager:
        Notifier(address).reloading()
        first, second = manager.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    name, _, value = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert int(value) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the abstract namespace is Linux's")
def test_abstract_address() -> None:
    """An address that begins with @ is found in the abstract namespace."""
    address = f"@modeld-test-{os.getpid()}"
    with _manager(address) as manager:
        Notifier(address).ready()
        assert manager.recv(4096) == b"READY=1"


def test_silent_without_a_manager(short_dir: Path) -> None:
    """No variable, a socket that is gone, an address of an unknown kind: nothing is raised."""
    for address in (None, "", str(short_dir / "gone"), "vsock:2:1234"):
        notifier = Notifier(address)
        notifier.ready("x")
        notifier.stopping()
        notifier.watchdog()
    assert list(short_dir.iterdir()) == []


def test_environment_is_taken_and_removed() -> None:
    """The variables are gone, so children stay silent; the interval is half of what is allowed."""
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier.from_environment(environ)
    assert environ == {"A": "b"}
    assert notifier.watchdog_interval == 15.0


@pytest.mark.parametrize(
    "environ", [{}, {"WATCHDOG_USEC": "junk"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}]
)
def test_no_watchdog(environ: dict[str, str]) -> None:
    """Without a usable interval meant for this process there is none."""
    assert Notifier.from_environment(dict(environ)).watchdog_interval is None

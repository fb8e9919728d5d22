"""The socket itself, and the HTTP on it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from modeld.admin import app as admin
from modeld.admin.app import build_admin_app
from modeld.admin.client import AdminClient
from modeld.admin.listen import serve_admin
from modeld.admin.schemas import DaemonInfo
from modeld.errors import NotFound, StartupError
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import Status
from tests.component.admin.conftest import Daemon
from tests.component.admin.fake_supervisor import FakeControl, FakeSupervisor, model

LIMIT_S = 60
INFO = DaemonInfo("0.1.0", 1, 0.0, "http://127.0.0.1:8000")


def _app(supervisor: FakeSupervisor | None = None) -> web.Application:
    supervisor = supervisor or FakeSupervisor()
    return build_admin_app(supervisor, FakeControl(supervisor), lambda: INFO)


@pytest.fixture
async def http(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    """Give a plain HTTP client on the admin socket."""
    connector = aiohttp.UnixConnector(str(daemon.socket))
    async with aiohttp.ClientSession("http://modeld", connector=connector) as session:
        yield session


async def test_mode_from_the_first_moment(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is 0600 as soon as it exists, under any umask, and the umask is as it was afterwards."""
    path, seen = short_dir / "s", []
    bind = socket.socket.bind

    def watched(self: socket.socket, address: str) -> None:
        bind(self, address)
        seen.append(stat.S_IMODE(path.stat().st_mode))

    monkeypatch.setattr(socket.socket, "bind", watched)
    before = os.umask(0)
    try:
        async with serve_admin(_app(), path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert not path.exists()


async def test_stale_socket_is_replaced(short_dir: Path) -> None:
    """A socket that nobody answers on is what a killed daemon leaves; the next one takes its place."""
    path = short_dir / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serve_admin(_app(FakeSupervisor(model("m"))), path):
        reply = await asyncio.to_thread(AdminClient(path).status)
    assert [status.name for status in reply.models] == ["m"]


async def test_living_socket_is_left_alone(daemon: Daemon) -> None:
    """A socket that answers belongs to somebody: the second daemon refuses, the first goes on."""
    with pytest.raises(StartupError, match="is another modeld running"):
        async with serve_admin(_app(), daemon.socket):
            pytest.fail("took over a living socket")
    assert (await asyncio.to_thread(daemon.client.status)).pid == 42


async def test_file_in_the_way(short_dir: Path) -> None:
    """A plain file is never removed."""
    path = short_dir / "s"
    path.write_text("mine")
    with pytest.raises(StartupError, match="is not a socket"):
        async with serve_admin(_app(), path):
            pytest.fail("bound over a file")
    assert path.read_text() == "mine"


async def test_path_too_long(short_dir: Path) -> None:
    """A path that no socket can have is refused with its length."""
    path = short_dir / ("x" * 120)
    with pytest.raises(StartupError, match=f"{len(str(path))} bytes"):
        async with serve_admin(_app(), path):
            pytest.fail("bound an impossible path")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("DELETE", "/status", 405, "method_not_allowed"),
        ("GET", "/models/qwen/load", 405, "method_not_allowed"),
        ("POST", "/models/nope/load", 404, "model_not_found"),
        ("POST", "/models/qwen/explode", 404, "not_found"),
        ("GET", "/models/nope/logs?follow=1", 404, "model_not_found"),
        ("GET", "/events?follow=maybe", 400, "invalid_request"),
        ("POST", "/models/qwen/load?force=yes", 400, "invalid_request"),
        ("POST", "/models/qwen/unload?force=1", 400, "invalid_request"),
        ("GET", "/models/nope/estimate", 404, "model_not_found"),
        ("GET", "/changes", 405, "method_not_allowed"),
    ],
)
async def test_errors(http: aiohttp.ClientSession, method: str, path: str, status: int, code: str) -> None:
    """Every error has its true status and one body: message and code."""
    async with http.request(method, path) as response:
        body = await response.json()
    assert (response.status, body["error"]["code"]) == (status, code)
    assert body["error"]["message"]


async def test_defect_is_a_500_with_a_body(
    daemon: Daemon,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A defect answers 500 in the same shape, and the log has the traceback."""

    def broken() -> tuple[Status, ...]:
        raise KeyError("oops")

    monkeypatch.setattr(daemon.supervisor, "statuses", broken)
    async with http.get("/status") as response:
        assert response.status == 500
        assert (await response.json())["error"]["code"] == "internal_error"
    assert "KeyError: 'oops'" in caplog.text


async def test_move_streams_while_it_runs(daemon: Daemon) -> None:
    """Events arrive before the outcome is known; the outcome is the last item."""
    daemon.supervisor.go.clear()
    moves = daemon.client.move("whisper", "load")
    first = await asyncio.to_thread(next, moves)
    second = await asyncio.to_thread(next, moves)
    assert isinstance(first, FeedEvent)
    assert isinstance(second, FeedEvent)
    assert (first.state, second.progress) == ("loading", 0.5)
    daemon.supervisor.go.set()
    *_, end = await asyncio.to_thread(list, moves)
    assert isinstance(end, Status)
    assert end.state == "ready"


async def test_reader_leaves(daemon: Daemon) -> None:
    """Whoever stops following is forgotten: no subscription is left on the daemon's side."""
    ring = daemon.supervisor.rings["qwen"]
    ring.add("line")
    lines = daemon.client.logs("qwen", follow=True)
    assert (await asyncio.to_thread(next, lines)).text == "line"
    assert len(ring._followers) == 1
    await asyncio.to_thread(lines.close)  # type: ignore[attr-defined]
    async with asyncio.timeout(LIMIT_S):
        while ring._followers:
            await asyncio.sleep(0.01)


async def test_shutdown_ends_streams(short_dir: Path) -> None:
    """Closing the socket ends followers and waiting moves; both clients learn that modeld has stopped."""
    supervisor = FakeSupervisor(model("m"))
    supervisor.go.clear()
    path = short_dir / "s"
    client = AdminClient(path)
    async with serve_admin(_app(supervisor), path):
        move = client.move("m", "load")
        await asyncio.to_thread(next, move)
        events = client.events(follow=True)
        await asyncio.to_thread(next, events)
    await asyncio.to_thread(list, events)
    with pytest.raises(StartupError, match="stopped before load of m was over"):
        await asyncio.to_thread(list, move)
    assert supervisor.open_moves == 0


async def test_unknown_model_is_typed(daemon: Daemon) -> None:
    """The client raises NotFound, so that its caller can tell it from other failures."""
    with pytest.raises(NotFound, match="qwen, whisper"):
        await asyncio.to_thread(list, daemon.client.logs("nope"))


def _answer(path: Path, reply: bytes) -> threading.Thread:
    """Serve one canned answer."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(reply)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(4096)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"", "is not running"),
        (b"garbage\r\n\r\n", "is not running"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not this version of modeld"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 2\r\n\r\nno", "not this version of modeld"),
    ],
)
def test_foreign_answers(short_dir: Path, reply: bytes, words: str) -> None:
    """Whatever answers on the socket, the client raises its own error."""
    thread = _answer(short_dir / "s", reply)
    with pytest.raises(StartupError, match=words):
        AdminClient(short_dir / "s").status()
    thread.join()


def test_hung_daemon(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that takes the connection and says nothing is told apart from one that is gone."""
    monkeypatch.setattr("modeld.admin.client.ANSWER_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "s"))
        listener.listen()
        with pytest.raises(StartupError, match="does not answer"):
            AdminClient(short_dir / "s").status()


def test_statuses_cover_the_callers_faults() -> None:
    """Only defects and the machine's troubles may be 500."""
    assert {status for _, status in admin.STATUS} == {400, 404, 405, 413, 429, 503, 504}

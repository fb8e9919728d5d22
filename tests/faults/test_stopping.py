"""The daemon's end: drained, forced, refused, and told to the service manager."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from tests.harness.daemon import launch, running
from tests.harness.models import fake
from tests.harness.sse import Reader, chat
from tests.harness.workers import held


async def _open_stream(session: aiohttp.ClientSession, url: str) -> Reader:
    """Start a stream and read its first text."""
    body = {"model": "f", "messages": [{"role": "user", "content": "go"}], "stream": True}
    reader = Reader(await session.post(f"{url}/v1/chat/completions", json=body))
    await reader.until_text()
    return reader


async def test_sigterm_lets_open_streams_finish_and_takes_no_new_connections(short_dir: Path) -> None:
    """A stream under way at SIGTERM is delivered whole; the daemon then exits with 0."""
    config = {"models": [fake("f", tokens=60, token_delay=0.005)], "allow_fake": True, "drain_timeout": 600}
    async with running(short_dir, config) as daemon, aiohttp.ClientSession() as session:
        await daemon.until("f", "ready")
        opened = await _open_stream(session, daemon.url)
        with held(await daemon.pid_of("f")):
            daemon.signal(signal.SIGTERM)
            await daemon.until("f", "draining")
            with pytest.raises(aiohttp.ClientConnectorError):
                async with aiohttp.ClientSession() as other:
                    await other.get(f"{daemon.url}/health")
        answer = await opened.to_end()
        assert answer.done
        assert answer.text == "".join(f"tok{i} " for i in range(60))
        assert await daemon.ended() == 0


async def test_a_second_signal_forces_the_end(short_dir: Path) -> None:
    """A stream that would go on for minutes is ended with an error event by the second SIGINT."""
    config = {
        "models": [fake("f", tokens=100_000, token_delay=0.02)],
        "allow_fake": True,
        "drain_timeout": 600,
    }
    async with running(short_dir, config) as daemon, aiohttp.ClientSession() as session:
        await daemon.until("f", "ready")
        opened = await _open_stream(session, daemon.url)
        daemon.signal(signal.SIGINT)
        await daemon.until("f", "draining")
        daemon.signal(signal.SIGINT)
        answer = await opened.to_end()
        assert answer.error is not None
        assert not answer.done
        assert await daemon.ended() == 0


async def test_the_drain_has_a_limit(short_dir: Path) -> None:
    """After drain_timeout the stream ends with an error event, and the daemon with 0."""
    config = {
        "models": [fake("f", tokens=100_000, token_delay=0.02)],
        "allow_fake": True,
        "drain_timeout": 0.2,
    }
    async with running(short_dir, config) as daemon, aiohttp.ClientSession() as session:
        await daemon.until("f", "ready")
        opened = await _open_stream(session, daemon.url)
        daemon.signal(signal.SIGTERM)
        answer = await opened.to_end()
        assert answer.error is not None
        assert not answer.done
        assert await daemon.ended() == 0


async def test_a_taken_port_is_one_clear_line(short_dir: Path) -> None:
    """Port in use: exit code 1, one line that names the port, no traceback, no worker ever started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = short_dir / "c.yaml"
        file.write_text(
            f"allow_fake: true\nmodels: [{{name: f, loader: fake}}]\nstate_dir: {short_dir}/state\n"
        )
        daemon = await launch(short_dir, ["--config", str(file), "--port", str(port)])
        assert await daemon.ended() == 1
        assert len(daemon.lines) == 1
        assert f"port {port} on 127.0.0.1 is taken" in daemon.lines[0]


async def test_one_daemon_per_state_directory(short_dir: Path) -> None:
    """A second daemon on the same state directory says who holds it, and exits with 1."""
    async with running(short_dir, {"models": [fake("f")], "allow_fake": True}) as daemon:
        second = await launch(short_dir, ["--config", str(short_dir / "modeld.yaml")])
        assert await second.ended() == 1
        assert f"(pid {daemon.pid})" in second.lines[-1]
        async with aiohttp.ClientSession() as session:
            await daemon.until("f", "ready")
            assert (await chat(session, daemon.url, "f")).done


async def test_the_service_manager_is_told_ready_and_stopping(short_dir: Path) -> None:
    """READY=1 once it listens, then how many models are up, STOPPING=1 before it drains (sd_notify)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(short_dir / "notify"))
        manager.setblocking(False)
        loop = asyncio.get_running_loop()
        env = {"NOTIFY_SOCKET": str(short_dir / "notify")}
        async with running(short_dir, {"models": [fake("f")], "allow_fake": True}, env=env) as daemon:

            async def told(words: bytes) -> None:
                async with asyncio.timeout(180):
                    while words not in await loop.sock_recv(manager, 4096):
                        pass

            await told(b"READY=1")
            await told(b"; 1 of 1 models ready")
            daemon.signal(signal.SIGTERM)
            await told(b"STOPPING=1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: {host: 0.0.0.0}\n", "no API keys"),
        ("lissten: {host: 127.0.0.1}\n", "did you mean listen"),
        ("models: [{name: f, loader: fake}]\n", "allow_fake"),
    ],
)
async def test_a_bad_configuration_exits_with_2_and_says_what(short_dir: Path, text: str, words: str) -> None:
    """Exposure without keys, an unknown key, a fake model without leave: exit code 2 and the fix in the
    message.
    """
    file = short_dir / "c.yaml"
    file.write_text(text + f"state_dir: {short_dir}/state\n")
    daemon = await launch(short_dir, ["--config", str(file)])
    assert await daemon.ended() == 2
    assert words in "\n".join(daemon.lines)
    assert "Traceback" not in "\n".join(daemon.lines)

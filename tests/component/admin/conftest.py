from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from modeld.admin.app import build_admin_app
from modeld.admin.client import AdminClient
from modeld.admin.listen import serve_admin
from modeld.admin.schemas import DaemonInfo
from modeld.cli.main import modeld
from modeld.supervisor.states import State
from tests.component.admin.fake_supervisor import FakeControl, FakeSupervisor, model


@dataclass
class Daemon:
    """An admin socket over a fake supervisor."""

    supervisor: FakeSupervisor
    control: FakeControl
    state_dir: Path

    @property
    def socket(self) -> Path:
        return self.state_dir / "admin.sock"

    @property
    def client(self) -> AdminClient:
        return AdminClient(self.socket)

    async def ctl(self, *args: str) -> Result:
        """Run `modeld ctl` in this process, away from the loop."""
        line = ["ctl", "--state-dir", str(self.state_dir), *args]
        return await asyncio.to_thread(CliRunner().invoke, modeld, line)


@pytest.fixture
async def daemon(short_dir: Path) -> AsyncIterator[Daemon]:
    """Give a served admin socket with two models."""
    supervisor = FakeSupervisor(model("qwen", State.READY, bytes_used=2**30, in_flight=2), model("whisper"))
    control = FakeControl(supervisor)
    info = DaemonInfo("0.1.0", 42, 61.0, "http://127.0.0.1:8000")
    app = build_admin_app(supervisor, control, lambda: info)
    async with serve_admin(app, short_dir / "admin.sock"):
        yield Daemon(supervisor, control, short_dir)
    control.go.set()
    await asyncio.gather(*control.work, return_exceptions=True)


Spawn = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def spawn(daemon: Daemon) -> AsyncIterator[Spawn]:
    """Start `modeld ctl` as a process, for what goes on until interrupted."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*args: str) -> asyncio.subprocess.Process:
        line = ("-m", "modeld", "ctl", "--state-dir", str(daemon.state_dir), *args)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, *line, stdout=pipe, stderr=pipe)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()

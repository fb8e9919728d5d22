from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.fakes.worker_link import WAIT_S, WorkerLink


class WorkerProgram(WorkerLink):
    """`python -m modeld.worker` as a real process, its output in a file."""

    process: asyncio.subprocess.Process

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    async def start(self, parent: int | None = None) -> None:
        """Start the process, as the supervisor does."""
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "modeld.worker",
                "--fd",
                str(theirs.fileno()),
                "--parent",
                str(os.getpid() if parent is None else parent),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        await self.caller.attach(ours)

    async def exit_code(self) -> int:
        """Wait for the process's end."""
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()

    @property
    def output(self) -> bytes:
        """What the worker has written."""
        return self._log.read_bytes()

    async def end(self) -> None:
        """Leave nothing."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self.caller.close()
        await self.closed()


@pytest_asyncio.fixture
async def program(tmp_path: Path) -> AsyncIterator[WorkerProgram]:
    """Give a worker program that has just been started."""
    program = WorkerProgram(tmp_path / "log")
    await program.start()
    yield program
    await program.end()

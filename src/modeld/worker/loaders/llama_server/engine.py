"""The llama.cpp server as a child process: started on a Unix socket, watched, stopped.

It listens on a socket in the worker's private directory: no TCP port, no race, no impostor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modeld.errors import LoadFailed
from modeld.worker.exits import exit_words
from modeld.worker.lifeline import tied
from modeld.worker.loader import Report

POLL_S = 0.025
"""Seconds between two looks at an engine that is loading."""

TERM_S = 5.0
"""Seconds an engine gets between SIGTERM and SIGKILL."""

LAST_WORDS = 12
"""Lines of the engine's log that an error shows."""

NO_VIDEO = ("LLAMA_ARG_VIDEO_FFMPEG_DIR", "/nonexistent")
"""What the engine takes for no picture it would give to an ffprobe on PATH; it is to find none."""

NO_BACKTRACE = ("GGML_NO_BACKTRACE", "1")
"""An engine that fails an assertion says so last; the debugger that it would start takes ten seconds, and
leaves hundreds of lines in which the reason is lost.
"""

ACCELERATORS = "modeld: accelerators: "
"""How the line begins in which `xllama` tells what it computes on, as a JSON list of texts."""

GROWTH_STEP = 1 << 20
"""Bytes of new resident memory that count as progress."""


class Engine:
    """A running llama.cpp server. Made by `start`; `socket` is where it answers."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path, name: str) -> None:
        self.socket = socket
        self.name = name
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = process
        self._lines: deque[str] = deque(maxlen=200)
        self.last_sign = time.monotonic()
        self.accelerators: list[str] | None = None
        """What computes beside the CPU, as far as the engine has told."""
        self._stopping = False
        # These two live exactly as long as the process; `stop` awaits them.
        self._log = asyncio.ensure_future(self._read_log())
        self._exit = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(cls, argv: list[str], sock: Path, name: str) -> Engine:
        """Start the process; it is loading when this returns."""
        process = await asyncio.create_subprocess_exec(
            *tied(argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
            env={**os.environ, **dict((NO_VIDEO, NO_BACKTRACE))},
        )
        return cls(process, sock, name)

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def last_words(self) -> str:
        """Return the engine's last log lines, or a word that it said nothing."""
        return "\n".join(list(self._lines)[-LAST_WORDS:]) or "(the engine wrote nothing)"

    async def ready(self, probe: Callable[[], Any], report: Report, stall_s: float, size: int) -> None:
        """Wait until `probe()` is true. `size` is the model's in bytes, for the progress fraction.

        A log line or growing memory is progress; `stall_s` seconds without any, or the engine's end, raise
        LoadFailed with its last words.
        """
        resident = 0
        while not await probe():
            if self.died.done():
                raise LoadFailed(await self.died, permanent=self._process.returncode != -signal.SIGKILL)
            now = resident_bytes(self.pid)
            if now >= resident + GROWTH_STEP:
                resident = now
                self.last_sign = time.monotonic()
                report(f"loading {_mib(min(now, size))} of {_mib(size)}", min(now / max(size, 1), 0.99))
            if time.monotonic() - self.last_sign > stall_s:
                raise LoadFailed(
                    f"{self.name} made no progress for {stall_s:g} s while loading; its last words:\n"
                    + self.last_words()
                )
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL after TERM_S seconds; returns when it is reaped."""
        self._stopping = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            done, _ = await asyncio.wait({self._exit}, timeout=TERM_S)
            if not done:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        await asyncio.wait({self._exit, self._log})

    async def _read_log(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line over the limit; its start is lost, the stream goes on
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            if text.startswith(ACCELERATORS):
                self.accelerators = json.loads(text.removeprefix(ACCELERATORS))
            self._lines.append(text)
            self.last_sign = time.monotonic()
            print(text, flush=True)

    async def _wait(self) -> None:
        code = await self._process.wait()
        # A grandchild may hold the pipe open; the words that matter are there long before this limit.
        await asyncio.wait({self._log}, timeout=0.5)
        if not self.died.done():
            self.died.set_result(f"{self.name} {exit_words(code)}; its last words:\n{self.last_words()}")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory in bytes, 0 where the system does not tell cheaply."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0

"""One worker process: its own process group, its log, and the ladder that ends it.

The process is started from the event loop's thread, because the kernel's parent-death signal follows the
thread that forked. Its group is swept with SIGKILL after its end, so that no engine outlives its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import modeld
from modeld.hardware import host
from modeld.supervisor.log_ring import LogRing

TERM_S = 3.0
"""Seconds between SIGTERM and SIGKILL."""

PYTHON = "MODELD_WORKER_PYTHON"
"""Among a worker's variables: the interpreter that runs it, if that is not the daemon's own."""

UNFIT = 78
"""Exit code of an interpreter that cannot run a worker; its last line says what it lacks."""

ELSEWHERE = Path(modeld.__file__).parent / "worker" / "elsewhere.py"
"""The worker program for an interpreter that has no modeld of its own."""

_OF_ONE_PYTHON = frozenset({"PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__"})
"""Variables that say where an interpreter finds its libraries."""

SWEEP_S = 5.0
"""Seconds to wait for the members of a killed group to be gone; longer means the kernel holds them."""

_SWEEP_POLL_S = 0.02


class WorkerProcess:
    """A started worker. `exited` is done with its exit code (negative: the signal) once it is reaped."""

    def __init__(self, process: asyncio.subprocess.Process, ring: LogRing, record: Path) -> None:
        self._process = process
        self._ring = ring
        self._record = record
        self._log = asyncio.ensure_future(self._read_log())
        self.exited: asyncio.Future[int] = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(
        cls, sock: socket.socket, ring: LogRing, records: Path, env: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        """Start `python -m modeld.worker` with `sock` inherited, and close `sock` here.

        `env` goes on top of this process's environment; PYTHON in it names another interpreter.
        `records` is the folder in which a living worker's pid and start time stand, for `leftovers`.
        """
        with sock:
            spawning = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *program((env or {}).get(PYTHON)),
                    "--fd",
                    str(sock.fileno()),
                    "--parent",
                    str(os.getpid()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    pass_fds=(sock.fileno(),),
                    start_new_session=True,
                    env=None if env is None else {**variables(env.get(PYTHON)), **env},
                )
            )
            try:
                process = await asyncio.shield(spawning)
            except asyncio.CancelledError:
                # A spawn that is cancelled half-way leaves a child that nobody waits for.
                with contextlib.suppress(OSError):
                    process = await spawning
                    process.kill()
                    await process.wait()
                raise
        record = records / str(process.pid)
        started = host.started_at(process.pid)
        try:
            if started is not None:
                record.write_text(repr(started))
        except OSError:
            process.kill()
            await process.wait()
            raise
        return cls(process, ring, record)

    @property
    def pid(self) -> int:
        """The worker's process id, which is also its group's."""
        return self._process.pid

    async def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end; tell whether it came."""
        await asyncio.wait({self.exited}, timeout=timeout)
        return self.exited.done()

    async def kill(self) -> None:
        """End the whole group: SIGTERM, after TERM_S seconds SIGKILL; returns when the worker is reaped."""
        if not self.exited.done():
            self.signal_group(signal.SIGTERM)
            if not await self.wait(TERM_S):
                self._ring.add(f"modeld: the worker ignored SIGTERM for {TERM_S:g} s, sending SIGKILL")
                self.signal_group(signal.SIGKILL)
        await asyncio.wait({self.exited})

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to every process of the group; a group that is gone is no error."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _read_log(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while data := await stream.read(1 << 16):
            self._ring.feed(data)
        self._ring.flush()

    async def _wait(self) -> int:
        code = await self._process.wait()
        await sweep(self.pid)
        # With the group dead, the pipe has no writer left: the log ends by itself.
        await asyncio.wait({self._log}, timeout=1.0)
        self._log.cancel()
        self._record.unlink(missing_ok=True)
        return code


def program(python: str | None) -> tuple[str, ...]:
    """Return the command that runs the worker program, under an interpreter of the engine's own if given."""
    return (sys.executable, "-m", "modeld.worker") if python is None else (python, str(ELSEWHERE))


def variables(python: str | None) -> dict[str, str]:
    """Return the daemon's variables, as far as a program under that interpreter may have them: another than
    the daemon's own must not be led to the daemon's libraries.
    """
    return {key: value for key, value in os.environ.items() if python is None or key not in _OF_ONE_PYTHON}


async def sweep(group: int) -> list[int]:
    """Kill what is left of a process group and wait until it is gone.

    Returns the pids that are still there after SWEEP_S seconds: processes the kernel does not let go.
    """
    members: list[int] = []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for _ in range(int(SWEEP_S / _SWEEP_POLL_S)):
            os.killpg(group, signal.SIGKILL)
            # A dead member whose new parent has not reaped it still makes the group exist; it holds nothing.
            members = host.group_members(group)
            if not members:
                break
            await asyncio.sleep(_SWEEP_POLL_S)
        return members
    return []


def exit_words(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"

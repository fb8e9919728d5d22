"""The child as the worker sees it: started, loaded, asked for pictures, killed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
from collections import deque
from collections.abc import Callable

from modeld.errors import LoadFailed, WorkerDied
from modeld.protocol.framing import FrameDecoder, FrameEncoder
from modeld.worker import elsewhere
from modeld.worker.exits import exit_words
from modeld.worker.lifeline import tied
from modeld.worker.loaders.stable_diffusion_cpp import wire

MODULE = "modeld.worker.loaders.stable_diffusion_cpp.child"
NAME = "stable-diffusion.cpp"

LAST_WORDS = 12
"""Lines of the child's log that an error shows."""

CHUNK = 1 << 18
"""Bytes read from the child at once; what it sends is megabytes."""

LOOKS = 4
"""Looks at a silent child within the stall limit."""

AT_WORK = 0.02
"""Share of a core that a child uses when it is at work."""

PATIENCE = 10
"""A child that is at work may be silent for so many times the stall limit: large models on small processors
draw their first picture, and have nothing to say meanwhile.
"""

OUTPUT_S = 0.5
"""Seconds to wait for the last lines of a child that has ended."""


class Engine:
    """A running child. Made by `start`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process, self._reader, self._writer = process, reader, writer
        self._encoder = FrameEncoder(wire.LIMIT)
        self._decoder: FrameDecoder[wire.FromChild] = FrameDecoder(wire.FromChild, wire.LIMIT)
        self._inbox: deque[wire.FromChild] = deque()
        self._lines: deque[str] = deque(maxlen=200)
        self._killed = False
        # These two live exactly as long as the process; `gone` awaits them.
        self._log = asyncio.ensure_future(self._read_log())
        self._exit = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(cls) -> Engine:
        """Start a child; it has loaded nothing yet."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours, limit=CHUNK)
            try:
                process = await asyncio.create_subprocess_exec(
                    *tied([*elsewhere.command(MODULE), str(theirs.fileno())]),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    limit=1 << 20,
                )
            except BaseException:
                writer.close()
                raise
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def load(self, task: wire.Load, progress: Callable[[float], None], stall_s: float) -> wire.Ready:
        """Load the model. `progress` gets growing fractions.

        Raises LoadFailed: for good, unless the child was killed from outside, or was silent and idle for
        `stall_s` seconds.
        """
        most = 0.0
        await self.send(task)
        while True:
            try:
                frame = await self._heard(stall_s, functools.partial(progress, most))
            except TimeoutError:
                raise LoadFailed(
                    f"{NAME} made no progress for {stall_s:g} s while loading; its last words:\n"
                    + self._last_words()
                ) from None
            except WorkerDied as error:
                killed = self._process.returncode == -signal.SIGKILL
                raise LoadFailed(f"{error}", permanent=not killed) from None
            match frame:
                case wire.Progress():
                    most = max(most, frame.done / max(frame.total, 1))
                    progress(most)
                case wire.Ready():
                    return frame
                case wire.Refused():
                    raise LoadFailed(
                        f"{NAME} cannot load the model: {frame.message}; its last words:\n"
                        + self._last_words(),
                        permanent=True,
                    )
                case _:
                    pass

    async def _heard(self, stall_s: float, at_work: Callable[[], None]) -> wire.FromChild:
        """Return the next frame, and say meanwhile that the child is at work. Raises TimeoutError."""
        look_s, waited, idle, used = stall_s / LOOKS, 0.0, 0.0, cpu_seconds(self.pid)
        while True:
            try:
                return await asyncio.wait_for(self.receive(), look_s)
            except TimeoutError:
                now = cpu_seconds(self.pid)
                waited += look_s
                idle = 0.0 if now - used >= AT_WORK * look_s else idle + look_s
                used = now
                if idle >= stall_s or waited >= PATIENCE * stall_s:
                    raise
                if not idle:
                    at_work()

    async def send(self, frame: wire.ToChild) -> None:
        """Send a frame. Raises WorkerDied."""
        try:
            self._writer.write(self._encoder.encode(frame))
            await self._writer.drain()
        except OSError:
            raise WorkerDied(await asyncio.shield(self._words())) from None

    async def receive(self) -> wire.FromChild:
        """Return the next frame. Raises WorkerDied with the child's last words."""
        while not self._inbox:
            try:
                data = await self._reader.read(CHUNK)
            except OSError:
                data = b""
            if not data:
                raise WorkerDied(await asyncio.shield(self._words()))
            self._inbox.extend(frame for frame, _ in self._decoder.feed(data))
        return self._inbox.popleft()

    def kill(self) -> None:
        """End the child at once; this is not its death by itself."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def gone(self) -> None:
        """Wait until the child has ended and its memory is free again; any number of times."""
        await asyncio.wait({self._exit})
        self._log.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _words(self) -> str:
        return await self._exit

    def _last_words(self) -> str:
        return "\n".join(list(self._lines)[-LAST_WORDS:]) or "(it wrote nothing)"

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
            self._lines.append(text)
            print(text, flush=True)

    async def _wait(self) -> str:
        code = await self._process.wait()
        await asyncio.wait({self._log}, timeout=OUTPUT_S)
        words = f"{NAME} {exit_words(code)}; its last words:\n{self._last_words()}"
        if not self._killed and not self.died.done():
            self.died.set_result(words)
        return words


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, 0 where the system does not tell cheaply."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time
    except (OSError, IndexError, ValueError):
        return 0.0

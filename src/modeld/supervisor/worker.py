"""One life of one worker: started, greeted, loaded, called, ended.

Whoever starts a Worker must `stop` it; its end, wanted or not, is told by `ended`.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modeld.errors import LoadFailed, WorkerDied
from modeld.protocol import messages as m
from modeld.protocol.channel import Caller, OpenCall
from modeld.protocol.tasks import Task
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.process import PYTHON, UNFIT, WorkerProcess, exit_words

HELLO_S = 20.0
"""Seconds a worker has to say Hello: starting Python on a busy machine."""

CANCEL_S = 2.0
"""Seconds cancelled calls have to end before the process is told to."""

BYE_S = 3.0
"""Seconds a worker has to unload and exit by itself before it gets a signal."""

EXIT_S = 2.0
"""Seconds between a broken link, or a worker's last word, and the exit that must follow it."""

PING_S = 15.0
"""Seconds between two pings of a worker that serves; each must be answered before the next."""

MISSED = 4
"""Unanswered pings in a row after which a worker hangs. Counted, not timed: a daemon that was itself stopped
for an hour finds one ping late.
"""

LAST_WORDS = 12
"""Lines of the log that go into a message about a worker's death."""


RECENT_S = 30.0
"""Lines older than these seconds are no last words: an engine's start explains no end hours later."""


class Worker:
    """A worker process and the link to it."""

    def __init__(self, process: WorkerProcess, caller: Caller, ring: LogRing, runtime_dir: Path) -> None:
        self._process = process
        self._caller = caller
        self._ring = ring
        self._runtime_dir = runtime_dir
        self._control: asyncio.Queue[m.ToDaemon] = asyncio.Queue()
        self._dying: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._drained = asyncio.Event()
        self._ready = asyncio.Event()
        self._pong = asyncio.Event()
        self._stopping = False
        self._killed = False
        self.ended: asyncio.Future[str] = asyncio.ensure_future(self._watch())
        """Done when the process is reaped and every call has been failed; the result says why it ended."""

    @classmethod
    async def start(
        cls, ring: LogRing, runtime_dir: Path, records: Path, env: Mapping[str, str] | None = None
    ) -> Worker:
        """Start a worker process; `runtime_dir` is made (0700) for it, and removed after its end.

        `env` are variables that it gets beside the daemon's own; see `process.PYTHON`. Raises LoadFailed
        (permanent) for an interpreter that cannot be started.
        """
        runtime_dir.mkdir(mode=0o700, parents=True)
        ring.begin_life()
        ours, theirs = socket.socketpair()
        holder: list[Worker] = []
        caller = Caller(lambda message: holder[0]._on_control(message))
        try:
            process = await WorkerProcess.start(theirs, ring, records, env)
        except BaseException as error:
            ours.close()
            shutil.rmtree(runtime_dir, ignore_errors=True)
            if isinstance(error, OSError) and env is not None and PYTHON in env:
                raise LoadFailed(
                    f"the interpreter {env[PYTHON]} cannot be started: {error.strerror}; "
                    "correct `python` in the configuration, of the model or under `engines`",
                    permanent=True,
                ) from error
            raise
        holder.append(worker := cls(process, caller, ring, runtime_dir))
        try:
            await caller.attach(ours)
        except BaseException:
            ours.close()
            worker.abandon()
            await asyncio.wait({worker.ended})
            raise
        return worker

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended (negative: the signal), None while it runs."""
        return self._process.exited.result() if self._process.exited.done() else None

    @property
    def killed_by_us(self) -> bool:
        """Whether its end was asked for here."""
        return self._stopping or self._killed

    async def load(self, spec: m.LoadSpec, progress: Callable[[str, float | None], None]) -> m.Facts:
        """Greet, send the spec, and wait until the model is ready.

        Raises LoadFailed with the worker's reason; WorkerDied when the process ended; LoadFailed (not
        permanent) when nothing was heard for twice `spec.start_timeout_s` (the worker itself gives up after
        once).
        """
        hello = await self._next(HELLO_S, "did not start")
        if not isinstance(hello, m.Hello) or hello.version != m.PROTOCOL_VERSION:
            raise LoadFailed(
                f"the worker speaks another protocol ({hello!r}), this daemon version {m.PROTOCOL_VERSION}: "
                "the engine's environment holds another modeld",
                permanent=True,
            )
        self._caller.send(m.Load(spec))
        while True:
            match await self._next(2 * spec.start_timeout_s, "reported no progress"):
                case m.Progress(stage, fraction):
                    progress(stage, fraction)
                case m.Ready(facts):
                    self._ready.set()
                    return facts
                case m.LoadRefused(failure):
                    error = m.from_failure(failure)
                    if isinstance(error, LoadFailed):
                        raise error
                    raise LoadFailed(str(error), code=error.code)
                case _:
                    continue

    def call(self, task: Task, identity: str) -> OpenCall:
        """Start a call. Raises WorkerDied when the worker has ended."""
        return self._caller.call(task, identity)

    @property
    def alive(self) -> bool:
        """Whether calls may still go in: the link stands and the engine has not been reported dead."""
        return not self._dying.done() and not self._caller.closed.done()

    @property
    def open_calls(self) -> int:
        """Calls the worker has not finished with."""
        return self._caller.open_calls

    async def stop(self, drain_s: float) -> None:
        """Walk down the ladder: drain, cancel, bye, SIGTERM, SIGKILL of the group; until all are gone."""
        self._stopping = True
        if not self._process.exited.done():
            self._caller.send(m.Drain())
            if self._caller.open_calls and drain_s > 0:
                await self._until_drained(drain_s)
            if self._caller.open_calls:
                cut = WorkerDied("the model was stopped before the request had ended", code="model_stopped")
                for call in self._caller.calls():
                    call.abort(cut)
                await self._until_drained(CANCEL_S)
            self._caller.send(m.Bye())
            if not await self._process.wait(BYE_S):
                await self._process.kill()
        await asyncio.wait({self.ended})

    def abandon(self) -> None:
        """Kill the group at once, without asking; `ended` follows and open calls fail."""
        self._killed = True
        if not self._process.exited.done():  # afterwards the number may be somebody else's
            self._process.signal_group(signal.SIGKILL)

    async def _until_drained(self, timeout: float) -> None:
        waiting = asyncio.ensure_future(self._drained.wait())
        try:
            either: set[asyncio.Future[Any]] = {waiting, self._process.exited}
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def _next(self, timeout: float, failing: str) -> m.ToDaemon:
        getting = asyncio.ensure_future(self._control.get())
        try:
            either: set[asyncio.Future[Any]] = {getting, self.ended}
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            if self.exit_code == UNFIT:
                words = self._ring.tail(1)
                raise LoadFailed(f"the interpreter cannot run a worker: {words}", permanent=True)
            if self.ended.done():
                raise WorkerDied(self.ended.result())
            raise LoadFailed(
                f"the worker {failing} within {timeout:g} s; its last words:\n{self._ring.tail(LAST_WORDS)}"
            )
        finally:
            getting.cancel()

    async def _until_hung(self) -> None:
        """Return when a worker that serves has left MISSED pings in a row unanswered."""
        await self._ready.wait()
        missed = 0
        while missed < MISSED:
            self._pong.clear()
            self._caller.send(m.Ping())
            await asyncio.sleep(PING_S)
            missed = 0 if self._pong.is_set() else missed + 1

    def _on_control(self, message: m.ToDaemon) -> None:
        match message:
            case m.Dying(reason):
                if not self._dying.done():
                    self._dying.set_result(reason)
            case m.Drained():
                self._drained.set()
            case m.Pong():
                self._pong.set()
            case _:
                self._control.put_nowait(message)

    async def _watch(self) -> str:
        """Wait for the end of the link or the process, end the other, and tell every open call why.

        A worker whose engine is gone has no work left; one that says so and stays is ended too.
        """
        hung = asyncio.ensure_future(self._until_hung())
        either: set[asyncio.Future[Any]] = {self._caller.closed, self._process.exited, self._dying, hung}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        hangs = hung.done()
        hung.cancel()
        if hangs:
            self._killed = True
            await self._process.kill()
        if not self._process.exited.done() and not await self._process.wait(
            EXIT_S if not self._stopping else BYE_S
        ):
            await self._process.kill()
        if not self._caller.closed.done():
            # The process is gone; what it sent last is still in the socket, and ends with end-of-file.
            await asyncio.wait({self._caller.closed}, timeout=1.0)
        code = self._process.exited.result()
        broken = self._caller.closed.result() if self._caller.closed.done() else None
        if self._dying.done():
            reason = self._dying.result()
        elif hangs:
            silent = MISSED * PING_S
            reason = (
                f"the worker gave no sign of life for {silent:g} s (it hung, or was stopped) and was ended"
            )
            if words := self._ring.tail(LAST_WORDS, silent + RECENT_S):
                reason += f"; its last words:\n{words}"
        elif broken is not None:
            reason = f"the worker broke the protocol and was stopped: {broken}"
        else:
            reason = f"the worker {exit_words(code)}"
            if not self._stopping and (words := self._ring.tail(LAST_WORDS, RECENT_S)):
                reason += f"; its last words:\n{words}"
        self._caller.fail_all(WorkerDied(reason))
        self._caller.close()
        shutil.rmtree(self._runtime_dir, ignore_errors=True)
        return reason

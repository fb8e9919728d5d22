"""Workers without processes: `world.StartWorker` whose loads, calls and deaths a test decides.

A fake keeps the contract of `supervisor.worker.Worker` as replicas and streams use it: `ended` is done
exactly once and after every call is over, a call's `over` follows its end or its cancelling, `stop` drains
first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modeld.errors import ModeldError, WorkerDied
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import Event, Finish, Task, Text
from modeld.supervisor.log_ring import LogRing

_pids = itertools.count(900_000_000)
"""No process has such a number, so nothing real is ever measured or hit."""


class Call:
    """One call: waits until the test ends it (or at once, when its worker is `quick`)."""

    def __init__(self, task: Task, *, quick: bool) -> None:
        self.task = task
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: ModeldError | None = None
        self._events: list[Event] = []
        self._news = asyncio.Event()
        if quick:
            self.end("ok")

    def say(self, text: str = "…") -> None:
        """Give a first piece of the answer."""
        self._events.append(Text(text))
        self._news.set()

    def end(self, text: str = "ok") -> None:
        """Answer, and end."""
        if not self.over.done():
            self._events += [Text(text), Finish("stop")]
            self._done()

    def fail(self, error: ModeldError) -> None:
        """End with an error."""
        if not self.over.done():
            self._error = error
            self._done()

    def abort(self, error: ModeldError) -> None:
        """Cancel, and end the reader's events with an error."""
        self.fail(error)

    def cancel(self) -> None:
        """Cancel; the worker ends it at once."""
        if not self.over.done():
            self._done()

    def _done(self) -> None:
        self.over.set_result(None)
        self._news.set()

    async def take(self, timeout: float | None) -> list[Event] | None:
        """Return what there is of the answer, [] when nothing came in time, None at the end."""
        if not self._events and not self.over.done():
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait()
        events, self._events = self._events, []
        if events:
            return events
        if self._error is not None:
            raise self._error
        return None if self.over.done() else []


class FakeWorker:
    """One life of a worker."""

    def __init__(self, owner: Workers, ring: LogRing, env: Mapping[str, str] | None) -> None:
        self.pid = next(_pids)
        self.env = env
        self.spec: LoadSpec | None = None
        self.calls: list[Call] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.exit_code: int | None = None
        self.killed_by_us = False
        self._owner = owner
        self._ring = ring

    @property
    def alive(self) -> bool:
        """Whether calls may go in."""
        return not self.ended.done()

    @property
    def open_calls(self) -> int:
        """Calls not over."""
        return sum(not call.over.done() for call in self.calls)

    async def load(self, spec: LoadSpec, progress: Callable[[str, float | None], None]) -> Facts:
        """Load as the test says; a worker that dies meanwhile raises WorkerDied."""
        self.spec = spec
        self._owner.loading(self)
        gate = self._owner.gates.get(spec.name)
        if gate is not None:
            waiting = asyncio.ensure_future(gate.wait())
            try:
                either: set[asyncio.Future[Any]] = {waiting, self.ended}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        elif self._owner.load_steps:
            for _ in range(self._owner.load_steps):
                await asyncio.sleep(0)
        failures = self._owner.failures.get(spec.name)
        if failures:
            raise failures.pop(0)
        if self.ended.done():
            raise WorkerDied(self.ended.result())
        self._owner.loaded(self)
        return Facts(loader=spec.loader, device="fake", slots=self._owner.slots, bytes_used=1)

    def call(self, task: Task, identity: str) -> Call:
        """Start a call. Raises WorkerDied when the worker has ended."""
        if self.ended.done():
            raise WorkerDied(self.ended.result())
        call = Call(task, quick=self._owner.quick)
        self.calls.append(call)
        return call

    async def stop(self, drain_s: float) -> None:
        """Drain, cut off what is left, end."""
        self.killed_by_us = True
        if not self.ended.done():
            open_ = {call.over for call in self.calls if not call.over.done()}
            if open_ and drain_s > 0:
                await asyncio.wait(open_, timeout=drain_s)
            for call in self.calls:
                call.fail(WorkerDied("the model was stopped", code="model_stopped"))
        self.die("stopped", 0)

    def abandon(self) -> None:
        """Die at once."""
        self.killed_by_us = True
        self.die("was killed by signal 9 (SIGKILL)", -9)

    def die(self, reason: str = "the worker exited with code 1", code: int = 1) -> None:
        """End as a crash does."""
        if not self.ended.done():
            for call in self.calls:
                call.fail(WorkerDied(reason))
            self.exit_code = code
            self.ended.set_result(reason)
            self._owner.gone(self)


class Workers:
    """Starts fakes. `gates`: loads of a model wait for its event. `failures`: errors its next loads raise.

    `running` are those alive, by model name once they load. `most` is the largest number alive at once;
    `spawned` names the models loaded so far, in order.
    """

    def __init__(self, *, slots: int = 1, quick: bool = False, load_steps: int = 0) -> None:
        self.slots = slots
        self.quick = quick
        self.load_steps = load_steps
        self.gates: dict[str, asyncio.Event] = {}
        self.failures: dict[str, list[ModeldError]] = {}
        self.running: list[FakeWorker] = []
        self.spawned: list[str] = []
        self.most_loading = 0
        self.watch: Callable[[], None] = lambda: None
        self._loading: set[FakeWorker] = set()

    async def start(
        self, ring: LogRing, folder: Path, records: Path, env: Mapping[str, str] | None
    ) -> FakeWorker:
        """Start one."""
        ring.begin_life()
        worker = FakeWorker(self, ring, env)
        self.running.append(worker)
        self.watch()
        return worker

    def loading(self, worker: FakeWorker) -> None:
        """A load begins."""
        assert worker.spec is not None
        self.spawned.append(worker.spec.name)
        self._loading.add(worker)
        self.most_loading = max(self.most_loading, len(self._loading))
        self.watch()

    def loaded(self, worker: FakeWorker) -> None:
        """A load has ended well."""
        self._loading.discard(worker)

    def gone(self, worker: FakeWorker) -> None:
        """A worker has ended."""
        self._loading.discard(worker)
        self.running.remove(worker)

    def of(self, name: str) -> FakeWorker:
        """Return the one worker of a model."""
        (found,) = (worker for worker in self.running if worker.spec is not None and worker.spec.name == name)
        return found

    def names(self) -> list[str]:
        """Return the models that have a worker, sorted."""
        return sorted(worker.spec.name for worker in self.running if worker.spec is not None)

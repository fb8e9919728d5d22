"""The worker's main loop: one asyncio task per call, over one link.

Load once, then calls until Drain, Bye, end-of-file or the engine's death. A call's task is cancelled by
Cancel; whatever way it ends, exactly one Ended or Failed answers it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from typing import Any

from modeld.errors import EngineError, LoadFailed, ModeldError, ModelUnavailable, WorkerDied
from modeld.protocol import messages as m
from modeld.protocol.channel import Link
from modeld.protocol.tasks import Event
from modeld.worker import registry
from modeld.worker.loader import LoadedModel

LAST_WORD_S = 1.0
"""Seconds a call waits, after its connection to the engine broke, to learn how the engine died."""


class _Window:
    """How many bytes of one call may still be sent; `acquire` waits at zero."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._more = asyncio.Event()

    def add(self, size: int) -> None:
        self._left += size
        self._more.set()

    async def acquire(self) -> None:
        while self._left <= 0:
            self._more.clear()
            await self._more.wait()

    def spend(self, size: int) -> None:
        self._left -= size


class Server:
    """One worker's state: the link, the model and the open calls."""

    def __init__(self) -> None:
        self.link: Link[m.ToWorker] = Link(m.ToWorker, self._on_message)
        self._group: asyncio.TaskGroup
        self._load: asyncio.Future[m.LoadSpec] = asyncio.get_running_loop().create_future()
        self._bye = asyncio.Event()
        self._model: LoadedModel | None = None
        self._calls: dict[int, tuple[asyncio.Task[None], _Window]] = {}
        self._draining = False
        self._gone: WorkerDied | None = None

    async def run(self, sock: socket.socket) -> int:
        """Serve until the end and return the exit code: 0 after Bye or end-of-file, 1 after a failure."""
        await self.link.attach(sock)
        self.link.send(m.Hello(m.PROTOCOL_VERSION, os.getpid()))
        async with asyncio.TaskGroup() as self._group:
            ended = self._group.create_task(self._ended())
            code = await self._serve(ended)
            for task, _ in self._calls.values():
                task.cancel()
            ended.cancel()
        self.link.close()
        return code

    async def _ended(self) -> None:
        await self.link.closed

    async def _serve(self, ended: asyncio.Task[None]) -> int:
        loading = self._group.create_task(self._load_model())
        bye = self._group.create_task(self._wait_bye())
        try:
            first: set[asyncio.Future[Any]] = {loading, ended, bye}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                return 0
            model = loading.result()
            if model is None:
                return 1
            died = asyncio.ensure_future(asyncio.shield(model.died))
            try:
                either: set[asyncio.Future[Any]] = {ended, bye, died}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if died.done() and not died.cancelled() and not ended.done() and not bye.done():
                    await self._last_word(died.result())
                    return 1
                return 0
            finally:
                died.cancel()
                await self._end_calls()
                await model.close()
        finally:
            bye.cancel()

    async def _wait_bye(self) -> None:
        await self._bye.wait()

    async def _end_calls(self) -> None:
        tasks = [task for task, _ in self._calls.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _last_word(self, reason: str) -> None:
        """Fail the open calls with the engine's last words before anything else ends them."""
        self._gone = WorkerDied(reason)
        for call, (task, _) in list(self._calls.items()):
            self._fail(call, self._gone)
            task.cancel()
        self.link.send(m.Dying(reason))
        await self.link.drain()

    async def _load_model(self) -> LoadedModel | None:
        spec = await self._load
        try:
            self._model = await registry.find(spec.loader).load(spec, self._report)
        except ModeldError as error:
            self.link.send(m.LoadRefused(m.to_failure(error)))
            return None
        except Exception as error:
            traceback.print_exc()
            words = f"loading failed inside modeld: {type(error).__name__}: {error}"
            refused = LoadFailed(words, permanent=True)
            self.link.send(m.LoadRefused(m.to_failure(refused)))
            return None
        self.link.send(m.Ready(self._model.facts))
        return self._model

    def _report(self, stage: str, fraction: float | None = None) -> None:
        self.link.send(m.Progress(stage, fraction))

    # messages in

    def _on_message(self, message: m.ToWorker, size: int) -> None:
        match message:
            case m.Call():
                self._start(message)
            case m.Credit():
                if message.call in self._calls:
                    self._calls[message.call][1].add(message.size)
            case m.Cancel():
                if message.call in self._calls:
                    self._calls[message.call][0].cancel()
            case m.Load():
                if not self._load.done():
                    self._load.set_result(message.spec)
            case m.Drain():
                self._draining = True
                self._check_drained()
            case m.Ping():
                self.link.send(m.Pong())
            case m.Bye():
                self._bye.set()

    def _start(self, call: m.Call) -> None:
        if self._gone is not None:
            # Crossed with our Dying on the wire: nothing was lost, so the request may try another worker.
            self.link.send(m.Failed(call.call, m.to_failure(self._gone)))
            return
        if self._model is None or self._draining:
            refusal = ModelUnavailable("the model is not serving: it is loading or being stopped")
            self.link.send(m.Failed(call.call, m.to_failure(refusal)))
            return
        window = _Window(call.window)
        task = self._group.create_task(self._run(self._model, call, window))
        self._calls[call.call] = (task, window)
        task.add_done_callback(lambda _: self._forget(call.call))

    async def _run(self, model: LoadedModel, call: m.Call, window: _Window) -> None:
        link = self.link

        async def emit(event: Event) -> None:
            await window.acquire()
            window.spend(link.send(m.Emit(call.call, event)))

        try:
            await model.run(call.task, emit, call.identity)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._end(call.call)
                raise
            # Nobody asked for it: something below gave up, and what came so far is not an answer.
            self._fail(call.call, EngineError("the engine's work on this request was cancelled from inside"))
        except ModeldError as error:
            if isinstance(error, WorkerDied):
                # An engine's death is first felt as a broken connection; how it died is known a moment later.
                await asyncio.wait({model.died}, timeout=LAST_WORD_S)
                if model.died.done():
                    error = WorkerDied(model.died.result())
            self._fail(call.call, error)
        except Exception as error:
            traceback.print_exc()
            self._fail(call.call, error)
        else:
            self._end(call.call)

    def _end(self, call: int) -> None:
        if self._calls.pop(call, None) is not None:
            self.link.send(m.Ended(call))

    def _fail(self, call: int, error: BaseException) -> None:
        if self._calls.pop(call, None) is not None:
            self.link.send(m.Failed(call, m.to_failure(error)))

    def _forget(self, call: int) -> None:
        self._end(call)
        self._check_drained()

    def _check_drained(self) -> None:
        if self._draining and not self._calls:
            self.link.send(m.Drained())


async def serve(sock: socket.socket) -> int:
    """Serve one model over `sock` until told to stop; return the process's exit code."""
    return await Server().run(sock)

"""The worker's main loop in this process, with models that a test writes on the spot."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from modeld.errors import EngineError, ModeldError, ModelUnavailable, WorkerDied
from modeld.protocol import messages as m
from modeld.protocol.channel import CREDIT_STEP, WINDOW, OpenCall
from modeld.protocol.tasks import ChatTask, CompletionTask, Task, Text
from modeld.worker import registry
from modeld.worker.loader import Emit, Report
from modeld.worker.serve import serve
from tests.fakes.worker_link import WAIT_S, WorkerLink, chat, rest

Run = Callable[[Task, Emit], Awaitable[None]]


class Model:
    """A `LoadedModel` whose calls are the function a test gives; also its own loader."""

    def __init__(self, run: Run) -> None:
        self.facts = m.Facts("written", "none")
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closed = 0
        self._run = run

    async def load(self, spec: m.LoadSpec, report: Report) -> Model:
        return self

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        await self._run(task, emit)

    async def close(self) -> None:
        self.closed += 1


class Served(WorkerLink):
    """The main loop over a socket pair, with its exit code."""

    serving: asyncio.Task[int]
    model: Model

    async def start(self, model: Model) -> None:
        ours, theirs = socket.socketpair()
        self.model = model
        self.serving = asyncio.ensure_future(serve(theirs))
        await self.caller.attach(ours)
        await self.loaded("written")

    async def exit_code(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.serving


Start = Callable[[Run], Awaitable[Served]]


@pytest_asyncio.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Give a function that serves a model whose calls run the given function."""
    started: list[Served] = []

    async def start(run: Run) -> Served:
        model = Model(run)
        monkeypatch.setattr(registry, "find", lambda name: model)
        served = Served()
        started.append(served)
        await served.start(model)
        return served

    yield start
    for served in started:
        served.caller.close()
        await served.exit_code()
        await served.closed()


async def test_the_worker_waits_for_a_reader_that_is_far_behind(start: Start) -> None:
    """50 MB to a slow reader: never more than WINDOW (and one frame) is under way, and every byte arrives."""
    piece, count = "0123456789abcdef" * 64, 50_000
    sent = 0
    digest = hashlib.sha256()

    async def run(task: Task, emit: Emit) -> None:
        nonlocal sent
        if task == chat("short"):
            await emit(Text("ok"))
            return
        for number in range(count):
            text = f"{number}:{piece}"
            digest.update(text.encode())
            await emit(Text(text))
            sent += len(text)

    served = await start(run)
    long = served.caller.call(chat(), "local")
    # A call that comes after is served whole, so the first one has come to its halt.
    assert await rest(served.caller.call(chat("short"), "local")) == [Text("ok")]
    assert 0.95 * WINDOW <= sent <= WINDOW
    read = hashlib.sha256()
    taken = 0
    async with asyncio.timeout(WAIT_S * 3):
        while (events := await long.take(None)) is not None:
            for event in events:
                assert isinstance(event, Text)
                read.update(event.text.encode())
                taken += len(event.text)
            # What was taken and not yet credited counts as under way: the worker cannot know.
            assert sent - taken <= WINDOW + len(piece)
    assert taken == sent > 50_000_000
    assert read.digest() == digest.digest()


async def test_a_reader_who_does_not_read_holds_up_nobody_else(start: Start) -> None:
    """Windows are per call: while one is used up, another call carries any amount."""
    size = 3 * WINDOW

    async def run(task: Task, emit: Emit) -> None:
        for _ in range(size // 1000):
            await emit(Text("x" * 1000))

    served = await start(run)
    unread = served.caller.call(chat(), "local")
    events = await rest(served.caller.call(chat(), "local"))
    assert sum(len(event.text) for event in events if isinstance(event, Text)) == size // 1000 * 1000
    assert not unread.over.done()
    unread.cancel()
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait({unread.over})


async def test_one_event_larger_than_the_window_passes(start: Start) -> None:
    """The window delays what comes after a huge event, never the event itself."""

    async def run(task: Task, emit: Emit) -> None:
        for number in range(3):
            await emit(Text(str(number) * (2 * WINDOW)))

    served = await start(run)
    events = await rest(served.caller.call(chat(), "local"))
    assert [event.text for event in events if isinstance(event, Text)] == [
        str(number) * (2 * WINDOW) for number in range(3)
    ]


@pytest.mark.parametrize("behind", [0, CREDIT_STEP - 1, CREDIT_STEP, WINDOW])
async def test_a_reader_never_waits_for_a_worker_that_waits_for_credit(start: Start, behind: int) -> None:
    """Whatever sizes the events have, both ends never wait for each other."""

    async def run(task: Task, emit: Emit) -> None:
        await emit(Text("x" * behind))
        for size in (1, CREDIT_STEP - 50, 1, WINDOW - CREDIT_STEP, 1, CREDIT_STEP, WINDOW, 1):
            await emit(Text("y" * size))

    served = await start(run)
    events = await rest(served.caller.call(chat(), "local"))
    assert sum(len(event.text) for event in events if isinstance(event, Text)) > behind + 2 * WINDOW


async def test_every_call_is_answered_exactly_once_however_cancel_and_end_cross(start: Start) -> None:
    """A cancel before the first step, at any step, or at the end: exactly one Ended or Failed."""

    async def run(task: Task, emit: Emit) -> None:
        assert isinstance(task, ChatTask | CompletionTask)
        assert task.sampling.max_tokens is not None
        for _ in range(task.sampling.max_tokens):
            await asyncio.sleep(0)
        if task.n == 2:
            raise EngineError("scripted")

    served = await start(run)
    calls: list[OpenCall] = []
    for steps in range(8):
        for turns in range(8):
            for n in (1, 2):
                call = served.caller.call(chat(max_tokens=steps, n=n), "local")
                calls.append(call)
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait({call.over for call in calls})
    # Drained comes after every answer on the same link: whatever was said twice would have been said by now.
    served.caller.send(m.Drain())
    await served.said(m.Drained)
    answered = [it.call for it in served.answers if isinstance(it, m.Ended | m.Failed)]
    assert sorted(answered) == [call.id for call in calls]


async def test_cancel_reaches_the_running_call_and_no_other(start: Start) -> None:
    """Cancel stops the engine's work on that call; the neighbour and the worker go on."""
    stopped: list[Task] = []

    async def run(task: Task, emit: Emit) -> None:
        await emit(Text("begun"))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(task)
            raise

    served = await start(run)
    first, second = served.caller.call(chat("1"), "local"), served.caller.call(chat("2"), "local")
    async with asyncio.timeout(WAIT_S):
        assert await first.take(None) == [Text("begun")]
        assert await second.take(None) == [Text("begun")]
        first.cancel()
        assert await first.take(None) is None
    assert stopped == [chat("1")]
    assert not second.over.done()


async def test_an_exception_that_is_not_ours_fails_the_call_only(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """A defect in a loader is that call's internal error, its traceback in the log; the worker goes on."""

    async def run(task: Task, emit: Emit) -> None:
        raise ZeroDivisionError("in the loader")

    served = await start(run)
    for _ in range(2):
        with pytest.raises(ModeldError, match="ZeroDivisionError: in the loader") as caught:
            await rest(served.caller.call(chat(), "local"))
        assert caught.value.code == "internal_error"
    assert "Traceback" in capsys.readouterr().err


async def test_a_cancellation_nobody_asked_for_is_a_failure(start: Start) -> None:
    """A call that ends in CancelledError by itself has no complete answer: it fails, it does not end."""

    async def run(task: Task, emit: Emit) -> None:
        await emit(Text("half"))
        raise asyncio.CancelledError

    served = await start(run)
    with pytest.raises(EngineError, match="cancelled from inside"):
        await rest(served.caller.call(chat(), "local"))


async def test_an_engines_death_fails_the_open_calls_with_its_last_words(start: Start) -> None:
    """When the engine dies, open calls get its last words, then Dying, then the end with exit code 1."""

    async def run(task: Task, emit: Emit) -> None:
        await emit(Text("begun"))
        await asyncio.Event().wait()

    served = await start(run)
    calls = [served.caller.call(chat(), "local") for _ in range(2)]
    for call in calls:
        assert await call.take(WAIT_S) == [Text("begun")]
    served.model.died.set_result("killed by signal 9; last words: out of memory")
    for call in calls:
        with pytest.raises(WorkerDied, match="out of memory"):
            await rest(call)
    assert (await served.said(m.Dying)).reason == "killed by signal 9; last words: out of memory"
    assert await served.exit_code() == 1
    assert served.model.closed == 1


async def test_a_call_that_feels_the_death_first_still_tells_how_it_came(start: Start) -> None:
    """A broken connection to the engine is reported with the engine's last words when they follow."""

    async def run(task: Task, emit: Emit) -> None:
        asyncio.get_running_loop().call_later(0.01, served.model.died.set_result, "killed by signal 9")
        raise WorkerDied("connection reset")

    served = await start(run)
    with pytest.raises(WorkerDied, match="killed by signal 9"):
        await rest(served.caller.call(chat(), "local"))
    assert await served.exit_code() == 1
    assert [type(it) for it in served.answers] == [m.Failed]


async def test_a_call_that_crosses_with_the_death_may_be_tried_elsewhere(start: Start) -> None:
    """A call that arrives after the engine's death fails with WorkerDied, not as if it were unloaded."""
    closing = asyncio.Event()

    async def run(task: Task, emit: Emit) -> None:
        raise AssertionError("no call may reach a dead engine")

    served = await start(run)

    async def close() -> None:
        await closing.wait()

    served.model.close = close  # type: ignore[method-assign]
    served.model.died.set_result("killed by signal 9")
    await served.said(m.Dying)
    call = served.caller.call(chat(), "local")
    with pytest.raises(WorkerDied, match="signal 9"):
        await rest(call)
    closing.set()
    assert await served.exit_code() == 1


@pytest.mark.parametrize("how", ["bye", "end-of-file"])
async def test_the_model_is_closed_after_its_calls_have_ended(start: Start, how: str) -> None:
    """Whatever ends a worker, calls are stopped first, then the model is closed, once."""
    order: list[str] = []

    async def run(task: Task, emit: Emit) -> None:
        await emit(Text("begun"))
        try:
            await asyncio.Event().wait()
        finally:
            order.append("call ended")

    served = await start(run)

    async def close() -> None:
        order.append("closed")

    served.model.close = close  # type: ignore[method-assign]
    call = served.caller.call(chat(), "local")
    assert await call.take(WAIT_S) == [Text("begun")]
    if how == "bye":
        served.caller.send(m.Bye())
    else:
        served.caller.close()
    assert await served.exit_code() == 0
    assert order == ["call ended", "closed"]


async def test_calls_after_drain_are_refused_for_now(start: Start) -> None:
    """A draining worker refuses with ModelUnavailable and never runs the call."""
    ran: list[Any] = []

    async def run(task: Task, emit: Emit) -> None:
        ran.append(task)

    served = await start(run)
    served.caller.send(m.Drain())
    with pytest.raises(ModelUnavailable):
        await rest(served.caller.call(chat(), "local"))
    assert ran == []

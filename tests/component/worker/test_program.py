from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import EngineError, LoadFailed, ModelUnavailable
from modeld.protocol import messages as m
from modeld.protocol.channel import OpenCall
from modeld.protocol.framing import HEADER
from modeld.protocol.tasks import Event, Finish, Usage
from tests.component.worker.conftest import WorkerProgram
from tests.fakes.worker_link import WAIT_S, chat, rest, text_of


async def test_a_worker_greets_loads_and_answers(program: WorkerProgram) -> None:
    """Hello with version and pid, Progress, Ready with facts, a call's events to Usage, Bye, exit code 0."""
    hello = await program.said(m.Hello)
    assert hello == m.Hello(m.PROTOCOL_VERSION, program.process.pid)
    facts = await program.loaded(reply="all is well", slots=3, load_steps=2)
    assert facts.loader == "fake"
    assert facts.slots == 3
    stages = [it for it in program.control if isinstance(it, m.Progress)]
    assert [it.fraction for it in stages] == [0.5, 1.0]
    events = await rest(program.caller.call(chat("how are you"), "local"))
    assert text_of(events) == "all is well"
    assert events[-2:] == [Finish("stop"), Usage(3, 3)]
    program.caller.send(m.Bye())
    assert await program.exit_code() == 0
    assert await program.closed() is None


async def test_an_unknown_loader_is_refused_for_good(program: WorkerProgram) -> None:
    """A loader this version lacks is a permanent refusal that names those it has; the worker exits with 1."""
    program.load("no_such_engine")
    error = m.from_failure((await program.said(m.LoadRefused)).failure)
    assert isinstance(error, LoadFailed)
    assert error.permanent
    assert "no_such_engine" in str(error)
    assert "llama_server" in str(error)
    assert await program.exit_code() == 1


@pytest.mark.parametrize("permanent", [True, False])
async def test_a_load_error_is_told_with_its_permanence(program: WorkerProgram, permanent: bool) -> None:
    """The loader's own words reach the daemon, and whether trying again is pointless."""
    program.load(load_error="the file is cut short", load_error_permanent=permanent)
    error = m.from_failure((await program.said(m.LoadRefused)).failure)
    assert isinstance(error, LoadFailed)
    assert (str(error), error.permanent) == ("the file is cut short", permanent)
    assert await program.exit_code() == 1


async def test_options_the_loader_cannot_read_are_a_permanent_refusal(program: WorkerProgram) -> None:
    """A loader that trips over its options refuses for good, and the traceback is in the log only."""
    program.load(tokens="many")
    error = m.from_failure((await program.said(m.LoadRefused)).failure)
    assert isinstance(error, LoadFailed)
    assert error.permanent
    assert "Traceback" not in str(error)
    assert await program.exit_code() == 1
    assert b"Traceback" in program.output


async def test_calls_run_at_once(program: WorkerProgram) -> None:
    """A second call is answered while the first is still open."""
    await program.loaded(token_delay=0.01, tokens=100_000)
    long = program.caller.call(chat(), "local")
    async with asyncio.timeout(WAIT_S):
        assert await long.take(None)
    short = await rest(program.caller.call(chat(max_tokens=2), "local"))
    assert text_of(short) == "tok0 tok1 "
    assert short[-2] == Finish("length")
    assert not long.over.done()
    long.cancel()
    await rest(long)
    assert program.answers == [m.Ended(2), m.Ended(1)]


async def test_a_failure_is_the_calls_own(program: WorkerProgram) -> None:
    """An engine error fails its call after the events before it; the worker serves on."""
    await program.loaded(fail_after=2)
    call = program.caller.call(chat(), "local")
    got: list[Event] = []
    with pytest.raises(EngineError, match="scripted failure after 2 tokens"):
        await _read_into(got, call)
    assert text_of(got) == "tok0 tok1 "
    assert [type(it) for it in program.answers] == [m.Failed]
    call = program.caller.call(chat(max_tokens=1), "local")
    assert text_of(await rest(call)) == "tok0 "


async def _read_into(got: list[Event], call: OpenCall) -> None:
    while (events := await call.take(WAIT_S)) is not None:
        got += events


async def test_a_call_before_ready_is_refused(program: WorkerProgram) -> None:
    """A call that comes too early fails with ModelUnavailable, and the load goes on."""
    program.load(load_seconds=0.05)
    call = program.caller.call(chat(), "local")
    with pytest.raises(ModelUnavailable):
        await rest(call)
    await program.said(m.Ready)


async def test_drain_lets_calls_finish_and_takes_no_more(program: WorkerProgram) -> None:
    """After Drain an open call completes, a new one is refused, and Drained comes when none is left."""
    await program.loaded(token_delay=0.005, tokens=30)
    open_call = program.caller.call(chat(), "local")
    async with asyncio.timeout(WAIT_S):
        first = await open_call.take(None)
    assert first
    program.caller.send(m.Drain())
    with pytest.raises(ModelUnavailable):
        await rest(program.caller.call(chat(), "local"))
    assert not [it for it in program.control if isinstance(it, m.Drained)]
    assert isinstance((await rest(open_call))[-1], Usage)
    await program.said(m.Drained)
    program.caller.send(m.Bye())
    assert await program.exit_code() == 0


async def test_drain_without_calls_is_answered_at_once(program: WorkerProgram) -> None:
    """Nothing open: Drained, exactly once."""
    await program.loaded()
    program.caller.send(m.Drain())
    await program.said(m.Drained)
    program.caller.send(m.Bye())
    assert await program.exit_code() == 0
    await program.closed()
    assert [it for it in program.control if isinstance(it, m.Drained)] == [m.Drained()]


@pytest.mark.parametrize("options", [{}, {"load_hang": True}], ids=["serving", "loading"])
async def test_bye_ends_it_with_open_calls_and_during_a_load(
    program: WorkerProgram, options: dict[str, Any]
) -> None:
    """Bye is obeyed at any time: the exit code is 0."""
    if options:
        program.load(**options)
        await program.said(m.Progress)
    else:
        await program.loaded(hang_after=1)
        call = program.caller.call(chat(), "local")
        async with asyncio.timeout(WAIT_S):
            assert await call.take(None)
    program.caller.send(m.Bye())
    assert await program.exit_code() == 0


@pytest.mark.parametrize("stage", ["greeting", "loading", "serving", "calling"])
async def test_end_of_file_ends_it_at_any_stage(program: WorkerProgram, stage: str) -> None:
    """A worker whose daemon closed the link exits by itself, whatever it is doing."""
    await program.said(m.Hello)
    if stage == "loading":
        program.load(load_hang=True)
        await program.said(m.Progress)
    elif stage in ("serving", "calling"):
        await program.loaded(hang_after=1)
    if stage == "calling":
        async with asyncio.timeout(WAIT_S):
            assert await program.caller.call(chat(), "local").take(None)
    program.caller.close()
    assert await program.exit_code() == 0


async def test_garbage_from_the_daemon_ends_it(program: WorkerProgram) -> None:
    """Bytes that are not the protocol are not guessed at: the worker closes the link and exits."""
    await program.loaded()
    assert program.caller._transport is not None
    program.caller._transport.write(HEADER.pack(4) + b"junk")
    assert await program.closed() is None
    await program.exit_code()


async def test_a_worker_whose_parent_is_not_there_exits_at_once(tmp_path: Path) -> None:
    """Started with another parent's pid, it says nothing and exits with 1."""
    program = WorkerProgram(tmp_path / "log")
    await program.start(parent=os.getpid() + 1)
    assert await program.exit_code() == 1
    assert await program.closed() is None
    assert program.control == []
    await program.end()


async def test_junk_on_standard_output_does_no_harm(program: WorkerProgram) -> None:
    """What an engine writes to its standard output goes to the log, never into the protocol."""
    await program.loaded(junk_stdout=True, tokens=3)
    assert text_of(await rest(program.caller.call(chat(), "local"))) == "tok0 tok1 tok2 "
    assert b"\xff\xfe\x00 not text" in program.output
    assert not program.caller.closed.done()


async def test_a_crash_is_an_end_of_file_after_what_was_said(program: WorkerProgram) -> None:
    """SIGKILL in the middle: the events before it arrive, then end-of-file and no last message."""
    await program.loaded(crash_after=3)
    call = program.caller.call(chat(), "local")
    assert await program.closed() is None
    assert await program.exit_code() == -signal.SIGKILL
    assert text_of(await call.take(0) or []) == "tok0 tok1 tok2 "
    assert program.answers == []


async def test_ctrl_c_in_the_terminal_does_not_reach_it(program: WorkerProgram) -> None:
    """SIGINT is the daemon's business: the worker serves on."""
    await program.loaded(tokens=1)
    program.process.send_signal(signal.SIGINT)
    assert text_of(await rest(program.caller.call(chat(), "local"))) == "tok0 "

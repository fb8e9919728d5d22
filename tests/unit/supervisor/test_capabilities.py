from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import UsageError
from modeld.protocol.capabilities import Capability
from modeld.supervisor import capabilities
from modeld.supervisor.capabilities import LOADERS, RECHECK_S, Capabilities, override_from
from tests.fakes.clock import FakeClock

THERE = Capability(True, "x 1")
GONE = Capability(False, "x is not there", "pip install x")


class Program:
    """A check of our own: it notes every start with its pid, runs `code`, and prints `answer`."""

    def __init__(self, folder: Path, code: str = "") -> None:
        self._log, self._answer, script = folder / "log", folder / "answer", folder / "check.py"
        self.go = folder / "go"
        self._log.touch()
        script.write_text(
            "import os, sys, time\n"
            f"with open({str(self._log)!r}, 'a') as log:\n"
            "    print(os.getpid(), *sys.argv[1:], file=log)\n"
            f"{code}\n"
            f"print(open({str(self._answer)!r}).read())\n"
        )
        self.command = [sys.executable, "-S", str(script)]
        self.answers()

    def answers(self, **found: Capability) -> None:
        """Set what the next run prints; every other loader is there."""
        whole = {**dict.fromkeys(LOADERS, THERE), **found}
        self._answer.write_bytes(msgspec.json.encode(whole))

    @property
    def runs(self) -> list[list[str]]:
        """The arguments of every start so far, the pid first."""
        return [line.split() for line in self._log.read_text().splitlines()]

    async def started(self, count: int = 1) -> None:
        """Wait until that many runs have begun."""
        async with asyncio.timeout(60):
            while len(self.runs) < count:
                await asyncio.sleep(0.01)


WAIT = "while not os.path.exists(os.path.join(os.path.dirname(__file__), 'go')): time.sleep(0.01)"


async def _gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)


async def test_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    """A missing loader is its capability with the fix; one run answers for all."""
    program = Program(tmp_path)
    program.answers(vllm=GONE)
    found = Capabilities(clock=FakeClock(), command=program.command)
    assert (await found.find("llama_server")).available
    assert await found.find("vllm") == GONE
    everything = await found.all()
    assert set(everything) == set(LOADERS)
    assert everything["vllm"] == GONE
    assert len(program.runs) == 1


async def test_the_fake_needs_no_run(tmp_path: Path) -> None:
    """The fake is always there, and asking for it starts nothing."""
    program = Program(tmp_path)
    found = Capabilities(clock=FakeClock(), command=program.command)
    assert (await found.find("fake")).available
    assert program.runs == []
    assert (await found.all())["fake"].available


async def test_a_missing_one_is_looked_for_again(tmp_path: Path) -> None:
    """Installing an engine is noticed without a restart, and nobody asks more often than every RECHECK_S."""
    clock = FakeClock()
    program = Program(tmp_path)
    program.answers(vllm=GONE)
    found = Capabilities(clock=clock, command=program.command)
    for _ in range(3):
        assert await found.find("vllm") == GONE
    program.answers()
    clock.advance(RECHECK_S - 1)
    assert await found.find("vllm") == GONE
    assert len(program.runs) == 1
    clock.advance(1)
    assert (await found.find("vllm")).available
    clock.advance(10 * RECHECK_S)
    assert (await found.find("vllm")).available
    assert await found.all()
    assert len(program.runs) == 2


async def test_an_available_one_stays_until_it_is_forgotten(tmp_path: Path) -> None:
    """What is there is not asked for again because something else is missing, until `forget` or `fresh`."""
    clock = FakeClock()
    program = Program(tmp_path)
    program.answers(vllm=GONE)
    found = Capabilities(clock=clock, command=program.command)
    await found.all()
    program.answers(llama_server=GONE, vllm=GONE)
    clock.advance(RECHECK_S)
    assert (await found.find("llama_server")).available
    assert len(program.runs) == 1
    assert await found.find("vllm") == GONE
    assert len(program.runs) == 2
    assert (await found.find("llama_server")).available
    found.forget()
    assert await found.find("llama_server") == GONE
    assert len(program.runs) == 3
    program.answers()
    assert (await found.all(fresh=True))["llama_server"] == THERE
    program.answers(llama_server=GONE)
    assert (await found.all())["llama_server"] == THERE
    assert (await found.all(fresh=True))["llama_server"] == GONE
    assert len(program.runs) == 5


async def test_many_questions_are_one_run(tmp_path: Path) -> None:
    """Everybody who asks while a run is under way gets its answer."""
    program = Program(tmp_path, WAIT)
    program.answers(vllm=GONE)
    found = Capabilities(clock=FakeClock(), command=program.command)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(found.find("vllm")) for _ in range(20)]
        await program.started()
        program.go.touch()
    assert {task.result() for task in asked} == {GONE}
    assert len(program.runs) == 1


async def test_fresh_is_a_run_that_begins_after_the_question(tmp_path: Path) -> None:
    """Two who want it fresh while a run is under way share one new run, not the old one."""
    program = Program(tmp_path, WAIT)
    found = Capabilities(clock=FakeClock(), command=program.command)
    async with asyncio.TaskGroup() as group:
        group.create_task(found.all())
        await program.started()
        fresh = [group.create_task(found.all(fresh=True)) for _ in range(2)]
        await asyncio.sleep(0)
        program.answers(vllm=GONE)
        program.go.touch()
    assert [task.result()["vllm"] for task in fresh] == [GONE, GONE]
    assert len(program.runs) == 2


async def test_what_is_forgotten_under_way_is_not_believed(tmp_path: Path) -> None:
    """A run that began before `forget` answers who waited for it, and nobody after."""
    program = Program(tmp_path, WAIT)
    found = Capabilities(clock=FakeClock(), command=program.command)
    async with asyncio.TaskGroup() as group:
        group.create_task(found.all())
        await program.started()
        found.forget()
        program.go.touch()
    assert (await found.find("vllm")).available
    assert len(program.runs) == 2


async def test_a_models_own_binary_is_asked_for_by_itself(tmp_path: Path) -> None:
    """A model with its own llama-server has it looked at; answers for different binaries do not mix."""
    program = Program(tmp_path)
    found = Capabilities(clock=FakeClock(), command=program.command)
    assert (await found.find("llama_server")).available
    program.answers(llama_server=GONE)
    assert await found.find("llama_server", binary="/opt/llama-server") == GONE
    assert (await found.find("llama_server")).available
    assert [run[1:] for run in program.runs] == [[], ["--binary", "/opt/llama-server"]]


# --- environments that modeld has made ----------------------------------------------------------------------


def _interpreter(folder: Path, **found: Capability) -> str:
    """Write an interpreter under which the worker program prints this, every other loader being there."""
    folder.mkdir()
    answer = folder / "answer"
    answer.write_bytes(msgspec.json.encode({**dict.fromkeys(LOADERS, THERE), **found}))
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho $$ >> {folder}/runs\ncat {answer}\n")
    python.chmod(0o755)
    return str(python)


def _runs(python: str) -> int:
    runs = Path(python).with_name("runs")
    return len(runs.read_text().splitlines()) if runs.exists() else 0


async def test_the_own_environment_goes_before_a_made_one(tmp_path: Path) -> None:
    """A made environment is asked only for what the daemon's own lacks; the answer says whose it is."""
    program = Program(tmp_path)
    program.answers(vllm=GONE)
    python = _interpreter(tmp_path / "made")
    found = Capabilities(clock=FakeClock(), command=program.command, managed=lambda loader: python)
    assert await found.find("diffusers") == THERE
    assert _runs(python) == 0
    assert await found.find("vllm") == Capability(True, "x 1", python=python)
    everything = await found.all()
    assert (everything["vllm"].python, everything["diffusers"].python) == (python, "")
    assert _runs(python) == 1


async def test_a_named_interpreter_is_the_only_one_that_is_asked(tmp_path: Path) -> None:
    """Neither the own environment nor a made one stands in for the interpreter that is named."""
    program = Program(tmp_path)
    named = _interpreter(tmp_path / "named", vllm=GONE)
    made = _interpreter(tmp_path / "made")
    found = Capabilities(clock=FakeClock(), command=program.command, managed=lambda loader: made)
    assert await found.find("vllm", python=named) == msgspec.structs.replace(GONE, python=named)
    assert not (await found.all(pythons={"vllm": named}))["vllm"].available
    assert _runs(made) == 0
    assert (await found.find("diffusers", python=named)).available


async def test_an_environment_is_found_as_soon_as_it_is_there(tmp_path: Path) -> None:
    """One that is made, replaced or removed counts from the next question on, without any waiting."""
    program = Program(tmp_path)
    program.answers(vllm=GONE)
    made: list[str] = []
    found = Capabilities(
        clock=FakeClock(), command=program.command, managed=lambda loader: made[-1] if made else None
    )
    assert await found.find("vllm") == GONE
    made.append(_interpreter(tmp_path / "one"))
    assert (await found.find("vllm")).python == made[-1]
    made.append(_interpreter(tmp_path / "two"))
    assert (await found.find("vllm")).python == made[-1]
    made.clear()
    assert await found.find("vllm") == GONE
    assert len(program.runs) == 1


@pytest.mark.parametrize("broken", ["empty", "gone"])
async def test_a_made_environment_that_is_broken(tmp_path: Path, broken: str) -> None:
    """What is wrong with it is told, and the command that makes it anew."""
    program = Program(tmp_path)
    program.answers(vllm=GONE)
    python = _interpreter(tmp_path / "made", vllm=Capability(False, "torch is not installed", "x"))
    if broken == "gone":
        Path(python).unlink()
    found = await Capabilities(
        clock=FakeClock(), command=program.command, managed=lambda loader: python
    ).find("vllm")
    assert not found.available
    assert ("torch is not installed" if broken == "empty" else f"{python} cannot be started") in found.detail
    assert (found.fix, found.python) == ("modeld engines install vllm", python)


# --- overrides ----------------------------------------------------------------------------------------------


async def test_an_override_is_believed_without_a_run(tmp_path: Path) -> None:
    """What is declared wins over what would be found, and nothing is started for it."""
    program = Program(tmp_path)
    program.answers(diffusers=GONE)
    found = Capabilities(
        clock=FakeClock(), override={"vllm": False, "diffusers": True}, command=program.command
    )
    missing = await found.find("vllm")
    assert not missing.available
    assert "MODELD_CAPABILITIES" in missing.detail
    assert (await found.find("diffusers")).available
    assert program.runs == []
    everything = await found.all()
    assert (everything["vllm"].available, everything["diffusers"].available) == (False, True)
    assert len(program.runs) == 1


async def test_overrides_for_all_need_no_run_at_all(tmp_path: Path) -> None:
    """With every engine declared even the whole report starts nothing."""
    program = Program(tmp_path)
    override = {name: name != "vllm" for name in LOADERS if name != "fake"}
    everything = await Capabilities(clock=FakeClock(), override=override, command=program.command).all()
    assert [name for name, found in everything.items() if not found.available] == ["vllm"]
    assert program.runs == []


@pytest.mark.parametrize(
    ("text", "override"),
    [
        (None, None),
        ("", None),
        ("vllm=yes", {"vllm": True}),
        (" vllm = yes , diffusers=no ", {"vllm": True, "diffusers": False}),
        ("vllm=yes,vllm=no", {"vllm": False}),
    ],
)
def test_overrides_from_the_environment(text: str | None, override: dict[str, bool] | None) -> None:
    """The variable is a list of LOADER=yes and LOADER=no; unset or empty declares nothing."""
    assert override_from({} if text is None else {"MODELD_CAPABILITIES": text}) == override


@pytest.mark.parametrize("text", ["vllm", "vllm=maybe", "=yes", "vllm=yes,", "nope=yes", "vllm=YES"])
def test_a_bad_override_is_refused_by_name(text: str) -> None:
    """The message names the variable and the part that is wrong."""
    with pytest.raises(UsageError, match="MODELD_CAPABILITIES"):
        override_from({"MODELD_CAPABILITIES": text})


@given(st.dictionaries(st.sampled_from(LOADERS), st.booleans(), min_size=1))
def test_an_override_that_is_written_is_read(override: dict[str, bool]) -> None:
    """Every combination can be written and is read back as it was."""
    text = ",".join(f"{name}={'yes' if there else 'no'}" for name, there in override.items())
    assert override_from({"MODELD_CAPABILITIES": text}) == override


# --- when the check itself fails ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('ImportError: no msgspec')", "ended with code 1: ImportError: no msgspec"),
        ("os.kill(os.getpid(), 9)", "ended with code -9"),
        ("print('rubbish'); sys.exit()", "printed something else"),
        ("print('{\"vllm\": 1}'); sys.exit()", "printed something else"),
        ("os.write(1, b'x' * (4 << 20)); sys.exit()", "printed more than"),
        ("os.write(2, b'x' * (4 << 20)); sys.exit(3)", "ended with code 3: xxx"),
    ],
)
async def test_a_broken_check_stops_no_model(tmp_path: Path, code: str, words: str) -> None:
    """When the program fails or prints rubbish every loader counts as there, and the report says why; the
    check is tried again later.
    """
    clock = FakeClock()
    program = Program(tmp_path, code)
    found = Capabilities(clock=clock, command=program.command)
    everything = await found.all()
    assert all(entry.available for entry in everything.values())
    assert words in everything["vllm"].detail
    assert (await found.find("vllm")).available
    assert len(program.runs) == 1
    clock.advance(RECHECK_S)
    assert (await found.find("vllm")).available
    assert len(program.runs) == 2


async def test_a_check_that_cannot_be_started(tmp_path: Path) -> None:
    """A program that is not there is a broken check."""
    found = Capabilities(clock=FakeClock(), command=[str(tmp_path / "none")])
    assert (await found.find("vllm")).available
    assert "cannot be started: No such file" in (await found.all())["vllm"].detail


async def test_a_check_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A check that does not end is killed with whatever it started."""
    monkeypatch.setattr(capabilities, "RUN_S", 2.0)
    program = Program(tmp_path, FAMILY)
    found = Capabilities(clock=FakeClock(), command=program.command)
    assert "did not end within 2 s" in (await found.all())["vllm"].detail
    for pid, *_ in program.runs:
        await _gone(int(pid))


FAMILY = """
import subprocess
inner = subprocess.Popen(['/bin/sleep', '600'])
with open(os.path.join(os.path.dirname(__file__), 'log'), 'a') as log:
    print(inner.pid, file=log)
inner.wait()
"""


async def test_nothing_is_left_when_the_question_is_cancelled(tmp_path: Path) -> None:
    """Whoever asks may leave: the program and its children are ended, and the next question is answered."""
    program = Program(tmp_path, FAMILY)
    found = Capabilities(clock=FakeClock(), command=program.command)
    asking = asyncio.ensure_future(found.find("vllm"))
    await program.started(2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    for pid, *_ in program.runs:
        await _gone(int(pid))


async def test_a_cancelled_question_hands_over_to_the_next(tmp_path: Path) -> None:
    """When the one whose run it was leaves, those who wait are answered by a run of their own."""
    program = Program(tmp_path, WAIT)
    program.answers(vllm=GONE)
    found = Capabilities(clock=FakeClock(), command=program.command)
    first = asyncio.ensure_future(found.find("vllm"))
    await program.started()
    async with asyncio.TaskGroup() as group:
        second = group.create_task(found.find("vllm"))
        await asyncio.sleep(0)
        first.cancel()
        await program.started(2)
        program.go.touch()
    assert second.result() == GONE
    assert first.cancelled()


@pytest.mark.parametrize("turns", range(4))
async def test_a_question_cancelled_at_its_start_leaves_nothing(tmp_path: Path, turns: int) -> None:
    """Leaving while the program is being started leaves no process either; the test run watches for them."""
    program = Program(tmp_path, "time.sleep(600)")
    asking = asyncio.ensure_future(Capabilities(clock=FakeClock(), command=program.command).all())
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert psutil.Process().children() == []


async def test_the_real_program() -> None:
    """The worker program of this installation answers, and knows every loader."""
    everything = await Capabilities(clock=FakeClock()).all()
    assert set(everything) == set(LOADERS)
    assert not any("could not be checked" in found.detail for found in everything.values())

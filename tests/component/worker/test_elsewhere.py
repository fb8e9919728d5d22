"""Workers under an interpreter of the engine's own, which has neither modeld nor its libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from modeld.clock import SystemClock
from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.protocol.tasks import ChatTask, Event, Message, Text
from modeld.supervisor.capabilities import Capabilities
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.process import PYTHON, UNFIT
from modeld.supervisor.worker import Worker
from modeld.worker import elsewhere


def interpreter(folder: Path, *packages: Path) -> Path:
    """Write an interpreter that has no site-packages, only these packages."""
    library = folder / "library"
    library.mkdir()
    for package in packages:
        (library / package.name).symlink_to(package)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={library} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


MSGSPEC = Path(msgspec.__file__).parent


@asynccontextmanager
async def started(folder: Path, python: Path) -> AsyncIterator[Worker]:
    """Start a worker under an interpreter."""
    (folder / "workers").mkdir()
    env = {PYTHON: str(python)}
    worker = await Worker.start(LogRing(SystemClock()), folder / "w1", folder / "workers", env)
    try:
        yield worker
    finally:
        await worker.stop(0.0)


def spec(folder: Path, loader: str = "fake", path: str = "x") -> LoadSpec:
    """Return what to load."""
    options = {"reply": "hello there"}
    return LoadSpec(
        name="m",
        loader=loader,
        usecase="generate",
        path=path,
        runtime_dir=str(folder / "w1"),
        options=options,
    )


async def test_msgspec_is_all_that_a_worker_needs(short_dir: Path) -> None:
    """Under an interpreter with msgspec alone a model loads and answers."""
    async with started(short_dir, interpreter(short_dir, MSGSPEC)) as worker:
        facts = await worker.load(spec(short_dir), lambda stage, fraction: None)
        assert facts.loader == "fake"
        call = worker.call(ChatTask(messages=(Message(role="user", content="hi"),)), "local")
        events: list[Event] = []
        while (batch := await call.take(60)) is not None:
            events += batch
        assert "".join(event.text for event in events if isinstance(event, Text)) == "hello there"


async def test_a_missing_engine_is_told_by_that_interpreter(short_dir: Path) -> None:
    """Whether an engine is there is a question to the interpreter that will run it."""
    python = str(interpreter(short_dir, MSGSPEC))
    engines = Capabilities(clock=SystemClock())
    missing = await engines.find("diffusers", python=python)
    assert not missing.available
    assert "not installed" in missing.detail
    (short_dir / "library" / "diffusers").mkdir()
    (short_dir / "library" / "torch").mkdir()
    engines.forget()
    assert (await engines.find("diffusers", python=python)).available


async def test_an_unfit_interpreter_says_what_it_lacks(short_dir: Path) -> None:
    """Without msgspec it is a permanent refusal that names the command which helps."""
    python = interpreter(short_dir)
    words = rf"lacks the package msgspec.* install it with: {sys.executable} -m pip install 'msgspec>=0\.23'"
    async with started(short_dir, python) as worker:
        with pytest.raises(LoadFailed, match=words) as caught:
            await worker.load(spec(short_dir), lambda stage, fraction: None)
    assert caught.value.permanent
    missing = await Capabilities(clock=SystemClock()).find("diffusers", python=str(python))
    assert not missing.available
    assert "lacks the package msgspec" in missing.detail
    assert elsewhere.UNFIT == UNFIT


async def test_an_old_msgspec_is_told_with_both_versions(short_dir: Path) -> None:
    """A msgspec from before what a worker is written for is refused in words, not by a traceback later."""
    python = interpreter(short_dir)
    (short_dir / "library" / "msgspec.py").write_text("__version__ = '0.18.6'")
    found = await Capabilities(clock=SystemClock()).find("diffusers", python=str(python))
    assert not found.available
    assert f"{sys.executable} has msgspec 0.18.6, and a worker needs 0.23 or later" in found.detail
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    oldest = ".".join(map(str, elsewhere.MSGSPEC))
    assert any(wanted.startswith(f"msgspec>={oldest},") for wanted in project["dependencies"])


async def test_the_daemon_s_own_libraries_are_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, short_dir: Path
) -> None:
    """What PYTHONPATH gives the daemon is not given to another interpreter, by the check or by a worker."""
    python = short_dir / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(MSGSPEC.parent))
    found = await Capabilities(clock=SystemClock()).find("diffusers", python=str(python))
    assert "lacks the package msgspec" in found.detail
    async with started(short_dir, python) as worker:
        with pytest.raises(LoadFailed, match="lacks the package msgspec"):
            await worker.load(spec(short_dir), lambda stage, fraction: None)


def test_an_old_python_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Python from before 3.11 ends with the code for it and says which it is."""
    monkeypatch.setattr(sys, "version_info", (3, 9))
    with pytest.raises(SystemExit) as caught:
        elsewhere._check()
    assert caught.value.code == UNFIT
    assert f"{sys.executable} is Python 3.9; a worker needs 3.11 or later" in capsys.readouterr().err


async def test_an_interpreter_that_is_not_there_is_named(short_dir: Path) -> None:
    """A wrong path is a permanent refusal, and leaves nothing behind."""
    python = short_dir / "nowhere" / "python"
    with pytest.raises(LoadFailed, match=rf"{python} cannot be started: No such file") as caught:
        async with started(short_dir, python):
            pass
    assert caught.value.permanent
    assert not os.path.exists(short_dir / "w1")
    missing = await Capabilities(clock=SystemClock()).find("vllm", python=str(python))
    assert not missing.available
    assert "cannot be started" in missing.detail


def test_a_worker_s_own_programs_are_found_there_too(short_dir: Path) -> None:
    """A module of modeld that a worker runs as a child is run in the same way, with its arguments."""
    python = interpreter(short_dir, MSGSPEC)
    (short_dir / "library" / "shows.py").write_text(
        "import sys, modeld.worker.elsewhere as e\nprint(sys.argv[1:], e.command('x'))"
    )
    file = elsewhere.__file__
    done = subprocess.run(
        [python, file, "--module", "shows", "a", "b"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"['a', 'b'] ['{sys.executable}', '{file}', '--module', 'x']")
    assert elsewhere.command("x") == [sys.executable, "-m", "x"]

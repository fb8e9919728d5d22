"""Installing a tiny engine with the real command, pip and interpreters, and everything that ends it early."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from modeld.engines import pip
from modeld.engines.install import install
from modeld.engines.pins import Variant
from modeld.errors import ModeldError
from modeld.supervisor.process import program
from tests.component.engines.conftest import PATIENCE_S, Engines
from tests.harness import tiny_engine
from tests.harness.daemon import family
from tests.harness.tiny_engine import NAME

STAGES = ("making the environment", "looking for packages", "installing", "trying it out")


def test_an_installed_engine_is_there_with_its_version(engines: Engines) -> None:
    """Lines tell the stages in their order; afterwards the environment has the engine and its manifest."""
    code, out, err = engines.do("install", NAME)
    assert code == 0, err
    assert f"{NAME} 1.0 (cpu) is installed" in out
    places = [err.index(stage) for stage in STAGES]
    assert places == sorted(places)
    assert engines.installed() == "1.0"
    about = engines.place.installed(NAME)
    assert about is not None
    assert (about.version, about.variant) == ("1.0", "cpu")
    assert "pywhispercpp==1.0" in about.packages
    assert about.size > 100_000
    home = engines.place.home(NAME)
    assert home is not None
    assert engines.folders() == [home.name]
    assert not list(engines.state.rglob("scratch"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_leaves_nothing_that_counts(engines: Engines, stage: str) -> None:
    """After `kill -9` at any stage nothing is installed and no process of it lives on."""
    run = engines.start("install", NAME, version="4.0")  # which never gets to its end
    if stage == STAGES[-1]:
        run.until_imported()
    else:
        run.until(stage)
    assert run.kill(signal.SIGKILL)[0] == -signal.SIGKILL
    assert engines.place.python(NAME) is None


def test_a_kill_ends_compilers_too(engines: Engines) -> None:
    """What pip's build has started, three processes down, ends with the command that is killed."""
    run = engines.start("install", NAME, version="5.0")
    run.until_imported("preparing the build")
    assert len(family(run.mark)) >= 4
    assert run.kill(signal.SIGKILL)[0] == -signal.SIGKILL  # sees that nothing is left
    assert engines.place.python(NAME) is None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_good_order(engines: Engines, number: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM end pip, remove what was made, say so, and exit as programs do."""
    run = engines.start("install", NAME, version="4.0")
    run.until_imported()
    ended, out, err = run.kill(number)
    assert (ended, out) == (code, "")
    assert f"{NAME}: interrupted; nothing is installed" in err
    assert "Traceback" not in err
    assert engines.folders() == []


def test_a_replacement_takes_over_in_one_moment_or_not_at_all(engines: Engines) -> None:
    """The old engine stays through a killed, a failed and an interrupted replacement, with the engine's own
    words for the failure; the next installation clears up and replaces it.
    """
    assert engines.do("install", NAME)[0] == 0
    old = engines.place.home(NAME)
    run = engines.start("install", NAME, version="4.0")
    run.until_imported()
    run.kill(signal.SIGKILL)
    assert engines.place.home(NAME) == old
    assert len(engines.folders()) == 2
    code, _, err = engines.do("install", NAME, version="3.0")
    assert code == 1
    assert "the engine's import exited with code 1" in err
    assert "libcuda.so.1: cannot open shared object file" in err
    assert engines.installed() == "1.0"
    assert len(engines.folders()) == 1, "the killed one's folder is cleared up, and so is the failed one's"
    assert engines.do("install", NAME, version="2.0")[0] == 0
    assert engines.installed() == "2.0"
    assert len(engines.folders()) == 1


def test_two_at_once(engines: Engines) -> None:
    """The second installation of an engine is refused, naming the first; so is a removal."""
    first = engines.start("install", NAME, version="4.0")
    first.until_imported()
    for words in (["install", NAME], ["remove", NAME, "--force"]):
        code, _, err = engines.do(*words)
        assert code == 2
        assert f"{NAME} is being installed by another modeld (pid {first.process.pid})" in err
    first.kill(signal.SIGINT)


def test_a_version_that_is_not_there(engines: Engines) -> None:
    """pip's own words come through, in one sentence, and nothing is left."""
    code, _, err = engines.do("install", NAME, version="7.7")
    assert code == 1
    assert "the package index has no such version" in err
    assert "pywhispercpp==7.7" in err
    assert "Traceback" not in err
    assert engines.folders() == []


def test_a_bar_on_a_terminal(engines: Engines) -> None:
    """On a terminal the stages are one line that is drawn again, and the result is what stays."""
    ours, theirs = pty.openpty()
    command = [*tiny_engine.command(engines.packages, "1.0"), "install", NAME]
    with subprocess.Popen(
        [*command, "--state-dir", str(engines.state)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how a terminal ends when nobody writes to it any more
            while piece := os.read(ours, 1 << 16):
                shown += piece
        os.close(ours)
    assert process.returncode == 0, shown
    text = shown.decode()
    assert all(stage in text for stage in (STAGES[0], STAGES[-1]))
    assert "\x1b[2K" in text, "lines are drawn over"
    assert f"{NAME} 1.0 (cpu) is installed" in text.splitlines()[-1]


def test_without_pip_of_its_own(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where modeld's own environment has no pip, the new one gets one and uses it."""
    monkeypatch.setattr(pip, "here", lambda: False)
    recipe = tiny_engine.recipe(engines.packages, "1.0")
    install(engines.place, NAME, Variant.CPU, recipe, lambda beat: None)
    assert engines.installed() == "1.0"


def test_a_disk_that_is_too_small(engines: Engines) -> None:
    """Without the room nothing is begun, and both figures are told."""
    free = shutil.disk_usage(engines.folder).free
    recipe = tiny_engine.recipe(engines.packages, "1.0", disk=2 * free)
    with pytest.raises(ModeldError, match=rf"needs about {2 * free / 1e9:.1f} GB .* GB free; make room"):
        install(engines.place, NAME, Variant.CPU, recipe, lambda beat: None)
    assert engines.folders() == []


def test_an_environment_in_use_stays_for_its_workers(engines: Engines) -> None:
    """While a worker runs there, an environment is not removed: a removal is refused, with --force it counts
    no more and its folder stays; a replacement takes over, and the folder goes when nobody uses it.
    """
    assert engines.do("install", NAME)[0] == 0
    home = engines.place.home(NAME)
    assert home is not None
    with worker(home):
        code, _, err = engines.do("remove", NAME)
        assert code == 2
        assert f"a worker runs in {home}; stop it, or give --force" in err
        assert engines.installed() == "1.0"
        assert engines.do("install", NAME, version="2.0")[0] == 0
        assert engines.installed() == "2.0"
        assert home.name in engines.folders()
    new = engines.place.home(NAME)
    assert new is not None
    with worker(new):
        code, out, err = engines.do("remove", NAME, "--force")
        assert code == 0, err
        assert f"{new} is in use still" in out
        assert engines.place.python(NAME) is None
        assert engines.folders() == [new.name], "the older one had no user left"
    assert engines.do("remove", NAME)[0] == 0
    assert engines.folders() == []


@contextmanager
def worker(home: Path) -> Iterator[None]:
    """Run a worker in an environment."""
    ours, theirs = socket.socketpair()
    command = [*program(str(home / "bin" / "python")), "--fd", str(theirs.fileno()), "--parent"]
    with ours, subprocess.Popen([*command, str(os.getpid())], pass_fds=(theirs.fileno(),)) as process:
        theirs.close()
        ours.settimeout(PATIENCE_S)
        assert ours.recv(1)  # its greeting
        yield
        process.kill()


def test_removing(engines: Engines) -> None:
    """A removed engine is gone with its folder; removing it again says that there is nothing."""
    code, _, err = engines.do("remove", NAME)
    assert (code, "there is nothing to remove" in err) == (2, True)
    assert engines.do("install", NAME)[0] == 0
    code, out, err = engines.do("remove", NAME)
    assert (code, out) == (0, f"{NAME} is removed\n"), err
    assert engines.place.python(NAME) is None
    assert engines.folders() == []

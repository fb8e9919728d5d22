from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from modeld.engines.place import MANIFEST, Installed, Place, in_use
from modeld.errors import StartupError, UsageError

NAME = "vllm"


def about(version: int) -> Installed:
    """Return what is told about an environment."""
    return Installed(NAME, "cpu", str(version), (f"vllm=={version}",), "3.11", 1, 0.0)


class Environments(RuleBasedStateMachine):
    """Installations that end well, badly or not at all, removals, and workers that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="md")
        self.place = Place(Path(self.folder.name))
        self.version = 0
        self.counts: int | None = None
        self.workers: list[tuple[int, Path]] = []

    def teardown(self) -> None:
        for handle, _ in self.workers:
            os.close(handle)
        self.folder.cleanup()

    @rule(end=st.sampled_from(["well", "killed empty", "killed whole"]))
    def install(self, end: str) -> None:
        """Make an environment; a killed installation stops anywhere before the link."""
        self.version += 1
        with self.place.locked(NAME, "installed"):
            home = self.place.fresh(NAME)
            assert not home.exists()
            (home / "bin").mkdir(parents=True)
            if end != "killed empty":
                (home / "bin" / "python").write_text(str(self.version))
            if end == "killed whole":
                (home / MANIFEST).write_text("{}")
            if end == "well":
                self.place.accept(NAME, home, about(self.version))
                self.counts = self.version
                self.place.clear(NAME)

    @rule()
    def remove(self) -> None:
        """Remove it, as `--force` does."""
        with self.place.locked(NAME, "removed"):
            self.place.forget(NAME)
            self.counts = None
            used = self.place.clear(NAME)
        assert set(used) == {home for _, home in self.workers}

    @precondition(lambda self: self.counts is not None)
    @rule()
    def worker_starts(self) -> None:
        """A worker holds what counts."""
        home = self.place.home(NAME)
        assert home is not None
        handle = os.open(home / MANIFEST, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self.workers.append((handle, home))

    @precondition(lambda self: self.workers)
    @rule()
    def worker_ends(self) -> None:
        """The worker that has run longest ends, in whatever way."""
        os.close(self.workers.pop(0)[0])

    @invariant()
    def what_counts_is_whole(self) -> None:
        """The last good one counts, whole, and nothing else does."""
        python = self.place.python(NAME)
        assert (python is not None) == (self.counts is not None)
        if python is not None:
            assert Path(python).read_text() == str(self.counts)
            assert self.place.installed(NAME) == about(self.counts or 0)

    @invariant()
    def what_is_used_is_there(self) -> None:
        """No worker's environment is taken away; it is known to be in use."""
        for _, home in self.workers:
            assert (home / "bin" / "python").exists()
            assert in_use(home)


Environments.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestEnvironments = Environments.TestCase


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sync", "fsync"):  # the machine's disk is not what is tested
        monkeypatch.setattr(os, name, lambda *_: None)


def test_one_at_a_time(tmp_path: Path) -> None:
    """Who comes second hears who is at it and with what; afterwards the way is free."""
    place = Place(tmp_path)
    with place.locked(NAME, "installed"):
        words = rf"{NAME} is being installed by another modeld \(pid {os.getpid()}\)"
        with pytest.raises(UsageError, match=words), place.locked(NAME, "removed"):
            pass
    with place.locked(NAME, "removed"):
        pass


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    """A file in the way is told with its path and what to do."""
    (tmp_path / "engines").write_text("")
    words = r"cannot write .*engines/vllm: .*--state-dir"
    with pytest.raises(StartupError, match=words), Place(tmp_path).locked(NAME, "installed"):
        pass


def test_looking_makes_nothing(tmp_path: Path) -> None:
    """Whether there is an environment can be asked of a state directory that does not exist."""
    place = Place(tmp_path / "state")
    assert (place.python(NAME), place.home(NAME), place.installed(NAME)) == (None, None, None)
    assert list(tmp_path.iterdir()) == []

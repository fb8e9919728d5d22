from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from modeld.engines.place import Place
from tests.harness import tiny_engine
from tests.harness.daemon import MARK, family

PATIENCE_S = 120.0
"""Seconds for one step of an installation; a busy machine takes ten times as long as a quiet one."""


COMPILES = """
import os, subprocess
open(os.environ['IMPORTED'], 'w').close()
subprocess.run(['sleep', '600'])
"""


class Run:
    """A running `modeld engines …` and what it has said on standard error so far."""

    def __init__(self, arguments: list[str], packages: Path, version: str, imported: Path) -> None:
        self.mark = mark = secrets.token_hex(8)
        self.imported = imported
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [*tiny_engine.command(packages, version), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: mark, "IMPORTED": str(imported)},
        )

    def until(self, words: str) -> str:
        """Read to the line with these words; when it does not come in time, the run is ended."""
        assert self.process.stderr is not None
        late = threading.Timer(PATIENCE_S, self.process.kill)
        late.start()
        try:
            for line in self.process.stderr:
                self.said.append(line.rstrip())
                if words in line:
                    return line
        finally:
            late.cancel()
        raise AssertionError(f"no line with {words!r}: {self.said}")

    def until_imported(self, stage: str = "trying it out") -> None:
        """Wait until version 4.0 is being imported, or 5.0 compiled."""
        self.until(stage)
        end = time.monotonic() + PATIENCE_S
        while not self.imported.exists():
            assert time.monotonic() < end
            time.sleep(0.02)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code, standard output and all of standard error."""
        out, rest = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, "\n".join([*self.said, *rest.splitlines()])

    def kill(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal to this process alone, wait for its end, and see that nothing of it is left."""
        self.process.send_signal(number)
        ended = self.end()
        _, left = psutil.wait_procs(family(self.mark), timeout=60)
        assert left == []
        return ended


@dataclass
class Engines:
    """A state directory, a package index, and commands on them."""

    folder: Path
    packages: Path
    runs: list[Run] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def place(self) -> Place:
        return Place(self.state)

    def start(self, *arguments: str, version: str = "1.0") -> Run:
        """Start `modeld engines …`."""
        imported = self.folder / f"imported-{len(self.runs)}"
        run = Run([*arguments, "--state-dir", str(self.state)], self.packages, version, imported)
        self.runs.append(run)
        return run

    def do(self, *arguments: str, version: str = "1.0") -> tuple[int, str, str]:
        """Run it to its end."""
        return self.start(*arguments, version=version).end()

    def installed(self) -> str | None:
        """Return the version that counts, as its own interpreter says."""
        python = self.place.python(tiny_engine.NAME)
        if python is None:
            return None
        code = "import importlib.metadata as m; print(m.version('pywhispercpp'))"
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def listed(self) -> dict[str, object]:
        """Return what `modeld engines list` says of it."""
        code, out, err = self.do("list", "--json")
        assert code == 0, err
        (one,) = (each for each in json.loads(out)["engines"] if each["name"] == tiny_engine.NAME)
        found: dict[str, object] = one
        return found

    def folders(self) -> list[str]:
        """Return the environments that lie there, whole or not."""
        inside = (self.state / "engines" / tiny_engine.NAME).iterdir()
        return sorted(path.name for path in inside if path.is_dir() and not path.is_symlink())


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a package index with engines: 1.0 and 2.0 work, 3.0 breaks at its import, 4.0 waits there,
    and 5.0 is compiled without end.
    """
    folder = tiny_engine.index(tmp_path_factory.mktemp("index") / "wheels")
    tiny_engine.engine(folder, "1.0")
    tiny_engine.engine(folder, "2.0")
    tiny_engine.engine(folder, "3.0", "raise OSError('libcuda.so.1: cannot open shared object file')")
    tiny_engine.engine(
        folder, "4.0", "import os, time\nopen(os.environ['IMPORTED'], 'w').close()\ntime.sleep(600)"
    )
    tiny_engine.source(folder, "5.0", COMPILES)
    return folder


@pytest.fixture
def engines(tmp_path: Path, packages: Path) -> Iterator[Engines]:
    """Give an empty state directory."""
    made = Engines(tmp_path, packages)
    yield made
    for run in made.runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()

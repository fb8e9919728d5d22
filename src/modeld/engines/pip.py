"""Running pip in an environment, and how far it is.

pip tells what it works on and how large a download is, but most versions do not tell how much of it is there;
so that is read off the growing file, and the number of installed packages off the environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from modeld.engines.guard import guarded
from modeld.errors import ModeldError
from modeld.library.fetch import megabytes, without_credentials

TICK_S = 0.25
"""Seconds between looks at a download."""

KEPT = 1 << 16
"""Characters of pip's output that are kept for its last words."""

_UNSET = frozenset(
    {"PIP_LOG", "PIP_PREFIX", "PIP_QUIET", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PIP_USER"}
    | {"PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__"}
)
"""Variables that would send packages, or the interpreter, elsewhere."""

_COLLECTING = re.compile(r"\s*Collecting (\S+)")
_LOADING = re.compile(r"\s*(?:Downloading|Using cached) (\S+) \(([\d.]+) ([kMG]?B|bytes)\)")
_BUILDING = re.compile(r"\s*Building wheel for (\S+) \([^)]*\): (started|still running)")
_PREPARING = re.compile(r"\s*(Installing build dependencies|Getting requirements to build wheel)")
_INSTALLING = re.compile(r"\s*Installing collected packages: (.+)")
_UNITS = {"bytes": 1, "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
_NETWORK = re.compile(
    r"Retrying \(Retry|ConnectionError|NewConnection|ConnectTimeout|ReadTimeout|timed out|SSLError|ProxyError"
    r"|Temporary failure|Name or service|IncompleteRead|ProtocolError"
)


@dataclass(frozen=True)
class Beat:
    """How far an installation is: its stage, what is worked on, and a share from 0 to 1 where it is known."""

    stage: str
    words: str = ""
    done: float | None = None


Tell: TypeAlias = Callable[[Beat], None]


class Reading:
    """What pip's output, line by line, says about how far it is. Pure."""

    def __init__(self) -> None:
        self.stage, self.words = "looking for packages", ""
        self.size = 0
        """Bytes of the file that is being downloaded, as pip rounded them; 0 when it is not said."""
        self.packages = 0
        """How many packages are being installed; 0 before that."""
        self._collected = 0

    def feed(self, line: str) -> None:
        """Take in a line."""
        if found := _LOADING.match(line):
            self.stage = "downloading"
            self.size = int(float(found[2]) * _UNITS[found[3]])
            self.words = f"{_short(found[1])}, {megabytes(self.size)}"
        elif found := _COLLECTING.match(line):
            self._collected += 1
            self.stage, self.size = "looking for packages", 0
            self.words = f"{found[1]} ({self._collected})"
        elif found := _BUILDING.match(line):
            self.stage, self.words, self.size = "building", found[1], 0
        elif _PREPARING.match(line):
            self.stage, self.size = "preparing the build", 0
        elif found := _INSTALLING.match(line):
            self.packages = len(found[1].split(","))
            self.stage, self.words, self.size = "installing", "", 0

    def beat(self, downloaded: int, installed: int) -> Beat:
        """Return how far it is, with `downloaded` bytes of the present file and `installed` new packages."""
        if self.packages:
            there = min(installed, self.packages)
            return Beat(self.stage, f"{there} of {self.packages} packages", there / self.packages)
        share = min(downloaded / self.size, 1.0) if self.size else None
        return Beat(self.stage, self.words, share)


def _short(file: str) -> str:
    """Return the name and version in a wheel's file name, or URL."""
    return "-".join(file.rpartition("/")[2].split("-")[:2]).removesuffix(".tar.gz")


def here() -> bool:
    """Say whether this program's own environment has pip, which then works for all others."""
    return importlib.util.find_spec("pip") is not None


def command_for(python: Path) -> list[str]:
    """Return the command of a pip that works on the environment of `python`."""
    if here():
        return [sys.executable, "-P", "-m", "pip", "--python", str(python)]
    return [str(python), "-P", "-m", "pip"]


def install(
    python: Path,
    packages: Sequence[str],
    options: Sequence[str],
    environment: Mapping[str, str],
    scratch: Path,
    tell: Tell,
) -> None:
    """Install packages into the environment of `python`. Raises ModeldError with pip's own last words.

    `scratch` is an empty folder for what pip unpacks. Whatever ends this ends pip and its compilers.
    """
    command = [*command_for(python), "install", "--no-input", "--progress-bar", "off"]
    command += [*options, *packages]
    reading, output, line = Reading(), "", ""
    before = _packages_in(python)
    most, file_of = 0, ""
    with guarded(command, {**environment, "TMPDIR": str(scratch)}) as process:
        for piece in _pieces(process):
            output = (output + piece)[-KEPT:]
            *lines, line = (line + piece).split("\n")
            for each in lines:
                reading.feed(each)
            if reading.words != file_of:
                most, file_of = 0, reading.words
            if reading.size:
                most = max(most, _largest(scratch))
            installed = _packages_in(python) - before if reading.packages else 0
            tell(reading.beat(most, installed))
        code = process.wait()
    if code != 0:
        raise ModeldError(explained(output, code), code="engine_install")


def explained(output: str, code: int) -> str:
    """Return why pip failed, in one sentence with its own last words, and what to do."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if re.match(r"(ERROR|error):", line)]
    words = without_credentials(errors[0] if errors else lines[-1] if lines else f"exit code {code}")[:600]
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return f"the disk is full; make room, or choose another --state-dir (pip says: {words})"
    missing = "No matching distribution found" in output or "Could not find a version" in output
    if missing and not _NETWORK.search(output):
        return f"the package index has no such version for this machine and its Python; pip says: {words}"
    if _NETWORK.search(output):
        return f"the package index does not answer; try again, or see `pip config list`; pip says: {words}"
    return f"pip says: {words}"


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables under which pip and a new interpreter run: the owner's, but for what misleads."""
    kept = {key: value for key, value in env.items() if key not in _UNSET}
    return kept | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
    }


def has_own_index(python: Path, env: Mapping[str, str]) -> bool:
    """Say whether the owner has pip look elsewhere than in the public index."""
    asked = subprocess.run(
        [*command_for(python), "config", "list"],
        env=dict(env),
        capture_output=True,
        text=True,
        check=False,
    )
    return bool(re.search(r"^(?:global|install|:env:)\.(?:index-url|no-index)=", asked.stdout, re.MULTILINE))


def _pieces(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield output as it comes, and "" when a tick passes without any."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        last = time.monotonic()
        while True:
            if selector.select(TICK_S):
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    return
                yield piece.decode("utf-8", "replace")
            elif time.monotonic() - last >= TICK_S:
                yield ""
            last = time.monotonic()


def _largest(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes)


def _packages_in(python: Path) -> int:
    """Return how many packages the environment holds."""
    return sum(1 for _ in python.parents[1].glob("lib/python*/site-packages/*.dist-info"))

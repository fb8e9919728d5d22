"""Running a program of which nothing is left, however this program ends (`warden`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

WARDEN = Path(__file__).with_name("warden.py")


@contextmanager
def guarded(
    command: Sequence[str], environment: Mapping[str, str], *, apart: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program under a warden; at the end it and all that it has started are killed.

    Its errors are in the same pipe as its output, or `apart`. A program that cannot be started ends with the
    code 127 and says why.
    """
    reader, writer = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", str(WARDEN), *command],
            stdin=reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if apart else subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is for this program, which then ends that one
        ) as process:
            os.close(reader)
            reader = -1
            try:
                yield process
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        os.close(writer)
        if reader >= 0:
            os.close(reader)


def signalled(code: int) -> int:
    """Return a warden's exit code as that of its program: negative for the signal that killed it."""
    return 128 - code if 128 < code < 128 + signal.NSIG else code

"""Dying with one's parent, and making a child do so.

On Linux the kernel sends SIGKILL when the thread that forked us ends (PR_SET_PDEATHSIG). Whoever starts a
process that must not outlive it therefore starts it from its main thread. The parent may already be gone when
the call is made, so its pid is checked afterwards.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Arrange to be killed when process `parent` ends; exit at once if it already has."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def tied(command: list[str]) -> list[str]:
    """Return a command that runs `command` as a child that dies with this process.

    A program we did not write cannot make the call itself, so this file is run first and then executes it:
    the signal survives exec.
    """
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), *command]


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"cannot start {sys.argv[2]}: {error.strerror}\n")
        sys.exit(127)

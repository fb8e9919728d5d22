"""Run by each process that vLLM spawns, before anything else: it dies with the process that spawned it.

`multiprocessing` runs a program's main file again in its children; `build` names this one in its place. It
stands alone, since a child may have no modeld to import.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == 1:  # it has died already
            os._exit(1)


if __name__ == "__mp_main__":
    _die_with_parent()

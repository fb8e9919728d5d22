from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from modeld.worker import lifeline

CHAIN = """
import subprocess, sys
from modeld.worker.lifeline import tied
command = tied([sys.executable, "-c", "print('up', flush=True); input()"])
child = subprocess.Popen(command, stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_tied_child_dies_with_its_parent() -> None:
    """SIGKILL to the parent ends the tied child at once, although nobody told it anything."""
    with subprocess.Popen(
        [sys.executable, "-c", CHAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        (child_pid,) = (int(line) for line in lines if line != "up")
        assert "up" in lines
        child = psutil.Process(child_pid)
        parent.kill()
        parent.wait()
        # Its new parent reaps it, or nobody does: dead is dead.
        _, alive = psutil.wait_procs([child], timeout=60)
        assert not [it for it in alive if it.status() != psutil.STATUS_ZOMBIE]


def test_a_program_that_cannot_be_started_says_why() -> None:
    """A missing program is one line with its name and exit code 127, not a traceback."""
    done = subprocess.run(lifeline.tied(["/no/such/program"]), capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr == "cannot start /no/such/program: No such file or directory\n"


def test_a_child_whose_parent_has_gone_does_not_begin() -> None:
    """Tied to a pid that is not its parent, the command never runs."""
    here = Path(lifeline.__file__)
    command = [
        sys.executable,
        "-I",
        "-S",
        str(here),
        str(os.getpid() + 1),
        sys.executable,
        "-c",
        "print('ran')",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")

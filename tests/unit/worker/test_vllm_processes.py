"""Processes of the vllm loader: none outlives who started it, none holds the daemon's link open."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from modeld.worker.loaders.vllm.processes import family, memory, processor_time

GONE_S = 60.0
"""Seconds in which an orphan must be gone, also on a busy machine."""

SPAWNING = """
import multiprocessing, time
from modeld.worker.loaders.vllm.build import guard_spawned
if __name__ == "__main__":
    guard_spawned()
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    child.start()
    print(child.pid, flush=True)
    time.sleep(600)
else:
    raise SystemExit("a child ran the worker's program")
"""

FORKING = """
import os, sys, time
from modeld.worker.loaders.vllm.build import guard_children
guard_children()
pid = os.fork()
if pid == 0:
    try:
        os.fstat(int(sys.argv[1]))
    except OSError:
        print(os.getpid(), flush=True)
    else:
        print("the link is open", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
@pytest.mark.parametrize("program", [SPAWNING, FORKING], ids=["spawned", "forked"])
def test_a_child_dies_with_its_parent_and_holds_nothing_of_its(program: str, tmp_path: Path) -> None:
    """A worker that is killed takes vLLM's processes with it; a forked one has closed the daemon's socket."""
    file = tmp_path / "program.py"
    file.write_text(program)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent = subprocess.Popen(
            [sys.executable, str(file), str(theirs.fileno())],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[theirs.fileno()],
        )
        assert parent.stdout is not None
        try:
            child = psutil.Process(int(parent.stdout.readline()))
            assert child.ppid() == parent.pid
        finally:
            parent.kill()
            parent.wait()
            parent.stdout.close()
    end = time.monotonic() + GONE_S
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_familys_memory_and_time_are_counted() -> None:
    """A child belongs to the family, and what it holds counts; who is gone holds nothing."""
    alone = memory(os.getpid())
    assert alone > 1 << 20
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(b'x' * (64 << 20)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in family(os.getpid())
        assert memory(os.getpid()) > alone + (60 << 20)
        assert processor_time() > 0
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert memory(child.pid) == 0

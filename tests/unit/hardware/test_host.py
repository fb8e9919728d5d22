from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from modeld.hardware import host

MIB = 1 << 20


@contextmanager
def _child(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a process group of its own; it says "ready" and waits for its input's end."""
    whole = code + "\nprint('ready', flush=True)\nimport sys\nsys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", whole],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            os.killpg(child.pid, signal.SIGKILL)


FORK = (
    "import subprocess, sys\n"
    "code = \"block = b'x' * (64 << 20); print(flush=True); input()\"\n"
    "inner = subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
    "inner.stdout.readline()\n"
)


def test_tree_memory_counts_descendants() -> None:
    """The memory of a process is that of its whole family: a child's 64 MiB show in the parent's figure."""
    with _child(FORK) as child:
        alone = psutil.Process(child.pid).memory_info().rss
        assert host.tree_memory(child.pid) >= alone + 64 * MIB


def test_what_is_gone_is_an_answer() -> None:
    """A process that has ended has no memory, no start time and no group members."""
    with _child("") as child:
        assert host.tree_memory(child.pid) > MIB
    assert host.tree_memory(child.pid) == 0
    assert host.started_at(child.pid) is None
    assert host.group_members(child.pid) == []


def test_started_at_is_the_time_of_the_start() -> None:
    """A start time is on the epoch's clock, the same at each reading, and tells two processes apart."""
    before = time.time()
    with _child("") as child:
        started = host.started_at(child.pid)
        assert started is not None
        # The kernel counts in ticks of 10 ms from a boot time in whole seconds.
        assert before - 1.5 <= started <= time.time() + 1.5
        assert host.started_at(child.pid) == started


def test_group_members_are_the_living_of_that_group() -> None:
    """A group's members are the leader and its children; other groups are not among them."""
    with _child(FORK) as child:
        family = [child.pid, *(inner.pid for inner in psutil.Process(child.pid).children())]
        assert len(family) == 2
        assert sorted(host.group_members(child.pid)) == sorted(family)
        assert os.getpid() not in host.group_members(child.pid)


def test_a_dead_member_that_nobody_has_reaped_does_not_count() -> None:
    """A zombie holds nothing: a group that consists of one has no members."""
    with _child("") as child:
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still not reaped
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert host.group_members(child.pid) == []


def _cgroups(monkeypatch: pytest.MonkeyPatch, folder: Path, own: str, files: dict[str, str]) -> None:
    (folder / "own").write_text(own)
    for name, text in files.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(host, "_OWN_CGROUP", folder / "own")
    monkeypatch.setattr(host, "_CGROUPS", folder / "cgroup")


@pytest.mark.parametrize(
    ("own", "files"),
    [
        pytest.param("0::/\n", {"memory.max": f"{200 * MIB}\n"}, id="container"),
        pytest.param(
            "0::/system.slice/modeld.service\n",
            {"system.slice/memory.max": "max\n", "system.slice/modeld.service/memory.max": f"{200 * MIB}\n"},
            id="service",
        ),
        pytest.param(
            "0::/user.slice/session\n",
            {"user.slice/memory.max": f"{200 * MIB}\n", "user.slice/session/memory.max": f"{300 * MIB}\n"},
            id="a group above is tighter",
        ),
        pytest.param(
            "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": f"{200 * MIB}\n"},
            id="version 1",
        ),
    ],
)
def test_a_cgroups_limit_below_the_ram_is_what_may_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, files: dict[str, str]
) -> None:
    """Under memory limits the daemon may use the lowest: its own cgroup's or one above it."""
    _cgroups(monkeypatch, tmp_path, own, files)
    assert host.total_memory() == 200 * MIB


@pytest.mark.parametrize("text", ["max\n", str(1 << 63), "", "nonsense"])
def test_without_a_limit_the_ram_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """No limit, one above the RAM, or a file that cannot be read as one: the machine's RAM."""
    _cgroups(monkeypatch, tmp_path, "0::/a\n", {"a/memory.max": text, "b/memory.max": "1"})
    assert host.total_memory() == psutil.virtual_memory().total


def test_without_cgroups_the_ram_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a system that knows no cgroups the machine's RAM is the answer."""
    monkeypatch.setattr(host, "_OWN_CGROUP", tmp_path / "missing")
    assert host.total_memory() == psutil.virtual_memory().total

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
from hypothesis import given
from hypothesis import strategies as st

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


# --- what is left, and cores --------------------------------------------------------------------------------


def test_tree_pids_are_the_process_and_its_descendants() -> None:
    """The tree begins with the process itself and holds its child; of one that is gone it is empty."""
    with _child(FORK) as child:
        inner = [process.pid for process in psutil.Process(child.pid).children()]
        assert host.tree_pids(child.pid) == (child.pid, *inner)
        assert len(inner) == 1
    assert host.tree_pids(child.pid) == ()


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        pytest.param(
            "0::/\n",
            {
                "memory.max": f"{64 * MIB}\n",
                "memory.current": f"{40 * MIB}\n",
                "memory.stat": f"anon {30 * MIB}\nfile {10 * MIB}\nactive_file 0\ninactive_file {8 * MIB}\n",
            },
            32,
            id="container, version 2",
        ),
        pytest.param(
            "0::/system.slice/modeld.service\n",
            {
                "system.slice/memory.max": f"{50 * MIB}\n",
                "system.slice/memory.current": f"{45 * MIB}\n",
                "system.slice/modeld.service/memory.max": f"{64 * MIB}\n",
                "system.slice/modeld.service/memory.current": f"{10 * MIB}\n",
            },
            5,
            id="a neighbour has used up what the group above may",
        ),
        pytest.param(
            "9:memory:/docker/abc\n0::/\n",
            {
                "memory/docker/abc/memory.limit_in_bytes": f"{64 * MIB}\n",
                "memory/docker/abc/memory.usage_in_bytes": f"{60 * MIB}\n",
                "memory/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {20 * MIB}\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": f"{900 * MIB}\n",
            },
            24,
            id="version 1",
        ),
        pytest.param(
            "0::/\n",
            {"memory.max": f"{64 * MIB}\n", "memory.current": f"{70 * MIB}\n", "memory.stat": "broken\n"},
            0,
            id="over its limit",
        ),
    ],
)
def test_what_a_cgroup_still_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, files: dict[str, str], left: int
) -> None:
    """A limit less the usage, cached files that may be dropped not counted, at the tightest level; MiB."""
    _cgroups(monkeypatch, tmp_path, own, files)
    assert host.available_memory() == left * MIB


@pytest.mark.parametrize(
    "files", [{}, {"memory.max": "max\n", "memory.current": "5\n"}, {"memory.max": "5\n"}, {"memory.max": ""}]
)
def test_without_a_limit_the_machine_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str]
) -> None:
    """Where no cgroup limits, or does not tell its usage, what the machine has available counts."""

    class Memory:
        available = 123 * MIB

    _cgroups(monkeypatch, tmp_path, "0::/\n", files)
    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    assert host.available_memory() == 123 * MIB


SIZES = st.integers(0, 1 << 50)


@given(SIZES, SIZES, SIZES)
def test_room_is_within_the_limit(limit: int, usage: int, reclaimable: int) -> None:
    """A cgroup gives from nothing to its limit, less for more usage, more for more that can be dropped."""
    room = host.room(limit, usage, reclaimable)
    assert 0 <= room <= limit
    assert host.room(limit, usage + 1, reclaimable) <= room <= host.room(limit, usage, reclaimable + 1)
    assert host.room(limit, usage, usage) == limit


@given(st.integers(1, 512), st.integers(-1, 1 << 40), st.integers(0, 1 << 20))
def test_a_quota_gives_whole_cores(count: int, quota: int, period: int) -> None:
    """A quota never gives more cores than there are, nor none, nor more time than it has beyond the first."""
    cores = host.whole_cores(count, quota, period)
    assert 1 <= cores <= count
    if quota < 0 or period == 0:
        assert cores == count
    else:
        assert cores == 1 or cores * period <= quota


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, 8, id="no quota"),
        pytest.param("0::/\n", {"cpu.max": "250000 100000\n"}, 2, id="two and a half"),
        pytest.param("0::/\n", {"cpu.max": "50000 100000\n"}, 1, id="half a core"),
        pytest.param(
            "0::/a/b\n",
            {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"},
            3,
            id="the group above",
        ),
        pytest.param(
            "4:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "400000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            4,
            id="version 1",
        ),
        pytest.param(
            "4:cpu:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            8,
            id="version 1, no quota",
        ),
        pytest.param("0::/\n", {"cpu.max": "nonsense"}, 8, id="nonsense"),
    ],
)
def test_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, files: dict[str, str], expected: int
) -> None:
    """Of eight cores as many count as the tightest quota keeps busy."""
    _cgroups(monkeypatch, tmp_path, own, files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert host.cores() == expected


def test_cores_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a system without affinity and cgroups the machine's cores count, and one when it does not tell."""
    monkeypatch.setattr(host, "_OWN_CGROUP", tmp_path / "missing")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for told, expected in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda told=told: told)
        assert host.cores() == expected

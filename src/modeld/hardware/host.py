"""Host memory and cores, as far as this process's cgroups let them be used, and processes by pid."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


class _Files(NamedTuple):
    """The names of a cgroup's memory files, and of the line of its statistics that can be given back."""

    limit: str
    usage: str
    reclaimable: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def total_memory() -> int:
    """Return the bytes of RAM this process may use: the machine's, or the lowest limit of its cgroups."""
    total = int(psutil.virtual_memory().total)
    for folder, files in _memory_groups():
        limit = _number(folder / files.limit)
        if limit is not None:
            total = min(total, limit)
    return total


def available_memory() -> int:
    """Return the bytes of RAM that can be had without anything being swapped out or killed.

    The least of what the machine has available and what each cgroup of this process still allows.
    """
    available = int(psutil.virtual_memory().available)
    for folder, files in _memory_groups():
        limit = _number(folder / files.limit)
        usage = _number(folder / files.usage)
        if limit is not None and usage is not None:
            available = min(available, room(limit, usage, _statistic(folder, files.reclaimable)))
    return available


def room(limit: int, usage: int, reclaimable: int) -> int:
    """Return the bytes a cgroup still gives, at least 0.

    Its usage counts cached files; those not used lately (`reclaimable`) are dropped before anything fails.
    """
    return max(limit - max(usage - reclaimable, 0), 0)


def cores() -> int:
    """Return how many CPU cores this process may keep busy: affinity and cgroup quotas, at least 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        count = os.cpu_count() or 1
    for folder in _cgroups("cpu"):
        try:
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            count = whole_cores(count, int(quota), int(period))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return count


def whole_cores(count: int, quota: int, period: int) -> int:
    """Return how many of `count` cores a quota keeps busy, at least 1; below 0 is no quota (version 1)."""
    if quota < 0 or period <= 0:
        return count
    return max(min(count, quota // period), 1)


def _memory_groups() -> Iterator[tuple[Path, _Files]]:
    for folder in _cgroups("memory"):
        yield folder, _V2 if (folder / _V2.usage).exists() or (folder / _V2.limit).exists() else _V1


def _cgroups(controller: str) -> Iterator[Path]:
    """Name the cgroups that may limit this process: its own and every one above it.

    A service's limit (systemd's MemoryMax) stands in its own cgroup; in a container that is the root. See
    cgroups(7): a line of /proc/self/cgroup is "0::PATH" in version 2, "N:CONTROLLERS:PATH" in version 1.
    """
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = _CGROUPS
        elif controller in controllers.split(","):
            root = _CGROUPS / controller
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for folder in (own, *own.parents):
            yield root / folder


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _statistic(folder: Path, name: str) -> int:
    """Return a line of memory.stat in bytes, 0 when it is not there."""
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def tree_memory(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; 0 when it is gone."""
    total = 0
    for process in _family(pid):
        try:
            total += int(process.memory_info().rss)
        except psutil.Error:
            continue
    return total


def tree_pids(pid: int) -> tuple[int, ...]:
    """Return the pids of a process and its descendants, itself first; () when it is gone."""
    return tuple(process.pid for process in _family(pid))


def _family(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def started_at(pid: int) -> float | None:
    """Return when a process started, in seconds since the epoch, or None when there is no such process."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def group_members(group: int) -> list[int]:
    """Return the pids in a process group that are alive (zombies are not)."""
    members = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
        except (OSError, psutil.Error):
            continue
    return members

"""Host memory, as far as this process's cgroup lets it be used, and processes by pid."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def total_memory() -> int:
    """Return the bytes of RAM this process may use: the machine's, or the lowest limit of its cgroups."""
    total = int(psutil.virtual_memory().total)
    for file in _limit_files():
        try:
            limit = int(file.read_text())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        total = min(total, limit)
    return total


def _limit_files() -> Iterator[Path]:
    """Name the files that may limit this process: its cgroup's and those of every cgroup above it.

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
            root, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for folder in (own, *own.parents):
            yield root / folder / name


def tree_memory(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; 0 when it is gone."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in family:
        try:
            total += int(process.memory_info().rss)
        except psutil.Error:
            continue
    return total


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

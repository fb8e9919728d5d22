"""Host memory, as far as this process's cgroup lets it be used, and processes by pid."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def total_memory() -> int:
    """Return the bytes of RAM this process may use: the machine's, or its cgroup's limit when lower."""
    total = int(psutil.virtual_memory().total)
    for file in _CGROUP_LIMITS:
        try:
            limit = int(file.read_text())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        total = min(total, limit)
    return total


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

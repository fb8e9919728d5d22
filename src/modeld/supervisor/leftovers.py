"""Ending what an earlier life of the daemon left running, without touching a reused pid.

Every living worker has a record: a file named by its pid (and process group) that holds its start time. On
Linux the kernel has ended them already; elsewhere this is what does.
"""

from __future__ import annotations

import logging
from pathlib import Path

from modeld.hardware import host
from modeld.supervisor.process import sweep

_log = logging.getLogger("modeld.supervisor")

SAME_START_S = 0.5
"""Two readings of one process's start time may differ by this much."""


async def reap(records: Path) -> list[int]:
    """End every recorded group that is still ours, remove the records, and return the groups ended."""
    ended = []
    for record in sorted(records.glob("*")):
        try:
            group, started = int(record.name), float(record.read_text())
        except ValueError:
            group, started = 0, 0.0
        now = host.started_at(group) if group > 1 else None
        ours = group > 1 and (abs(now - started) < SAME_START_S if now is not None else True)
        if ours and (members := host.group_members(group)):
            _log.warning("ending worker group %d left by an earlier run (processes %s)", group, members)
            await sweep(group)
            ended.append(group)
        record.unlink(missing_ok=True)
    return ended

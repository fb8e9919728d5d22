"""What this process and those below it take, as Linux tells; nothing where the system tells nothing."""

from __future__ import annotations

import os


def processor_time() -> float:
    """Return the seconds of processor time that this process and its children have used."""
    total, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for pid in family(os.getpid()):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def family(pid: int) -> list[int]:
    """Return a process and all below it, as far as the system tells: /proc of Linux."""
    found = [pid]
    for one in found:
        try:
            threads = os.listdir(f"/proc/{one}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{one}/task/{thread}/children") as file:
                    found += [int(child) for child in file.read().split()]
            except OSError:
                continue
    return found


def memory(pid: int) -> int:
    """Return the bytes of memory that a process and those below it hold.

    What forked processes share is counted once, in equal parts.
    """
    return sum(_held(one) for one in family(pid))


def _held(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0

"""Apple silicon: the GPU works in the host's RAM, so the machine is one device (`probe.UnifiedProbe`)."""

from __future__ import annotations

import platform
import subprocess
import sys

_SYSCTL_S = 2.0


def is_apple_silicon() -> bool:
    """Tell whether this is a Mac with unified memory. A Python run by Rosetta says x86_64, and is not one."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def chip() -> str:
    """Return the chip's name, e.g. "Apple M3 Max"."""
    try:
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=_SYSCTL_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "Apple silicon"
    return asked.stdout.strip() or "Apple silicon"

"""How much callers may leave here, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileLimits:
    """`largest`: bytes of one file. `together`: bytes of all files of one caller that new ones may add up to.

    `keep_s`: seconds for which a batch's input and output and the batch itself are kept, None for ever.
    """

    largest: int = 512 * 1024**2
    together: int = 10 * 1024**3
    keep_s: float | None = 30 * 86_400.0

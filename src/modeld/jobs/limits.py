"""How much of everything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobLimits:
    """Times in seconds, None for ever.

    `keep_s`: how long a job that is over is kept. `patience_s`: how long one may take from its submission.
    `most`: jobs that may be unfinished. `wait_s`: how long a caller may wait for a job's end in one request.
    """

    keep_s: float | None = 86_400.0
    patience_s: float | None = 7 * 86_400.0
    most: int = 100_000
    wait_s: float = 60.0

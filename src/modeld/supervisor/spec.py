"""What the supervisor needs to know of a model; the daemon makes it from the configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Resolve: TypeAlias = Callable[[str, Callable[[str, float | None], None]], Awaitable[Path]]
"""Turn a model reference into a file or folder on this disk, reporting progress. Raises LoadFailed."""


@dataclass(frozen=True)
class ModelSpec:
    """One model, as the owner configured it.

    `reference` is None for a loader that reads no file. `footprint` is the owner's own figure in bytes, None
    to estimate. `start_timeout_s`: how long a load may go without progress. `max_queue` requests may wait,
    and `max_ongoing` run at once (None: as many as the engine has slots).
    """

    name: str
    usecase: str
    loader: str
    reference: str | None
    options: dict[str, Any] = field(default_factory=dict)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    footprint: int | None = None
    start_timeout_s: float = 120.0
    max_queue: int = 128
    max_ongoing: int | None = None

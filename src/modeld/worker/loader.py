"""What a loader is: a module with one function, `load`, that gives back a `LoadedModel`.

A loader imports its engine inside `load`, so that listing loaders costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import Event, Task

Emit: TypeAlias = Callable[[Event], Awaitable[None]]
"""Send one event of the running call; waits while the daemon's reader is too far behind."""

Report: TypeAlias = Callable[[str, float | None], None]
"""Report progress: a stage in a few words and a fraction 0..1 or None. Restarts the stall limit."""


class LoadedModel(Protocol):
    """A model that serves."""

    facts: Facts

    @property
    def died(self) -> asyncio.Future[str]:
        """Done when the engine is gone by itself; the result is its last words."""
        ...

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Work one call to its end: every choice's Finish, then Usage. Raises ModeldError.

        Cancellation of the calling asyncio task must stop the engine's work on this call.
        """
        ...

    async def close(self) -> None:
        """Unload; safe to call after the engine's death."""
        ...


class Loader(Protocol):
    """The module itself."""

    async def load(self, spec: LoadSpec, report: Report) -> LoadedModel:
        """Load the model. Raises LoadFailed (permanent when trying again is pointless)."""
        ...

"""What every model of a pool shares: the clock, the ledger, the ways to files, sizes and processes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from modeld.clock import Clock
from modeld.protocol.capabilities import Capability
from modeld.supervisor.events import EventFeed
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.memory import Memory
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.sizing import Sizing
from modeld.supervisor.spec import Resolve
from modeld.supervisor.worker import Worker
from modeld.telemetry.metrics import EvictionReason, LoadOutcome

StartWorker: TypeAlias = Callable[[LogRing, Path, Path, Mapping[str, str] | None], Awaitable[Worker]]
"""`Worker.start`: the log, the worker's private folder, the records' folder, variables of its environment."""


class Engines(Protocol):
    """Which loaders have their engine on this machine."""

    async def find(self, loader: str, *, binary: str | None = None, python: str | None = None) -> Capability:
        """Return whether a loader can load, and the interpreter that its workers are run by.

        `binary` is the model's own program, `python` the interpreter that the configuration names for it.
        """
        ...


class Observer(Protocol):
    """Who counts what happens; the daemon's metrics are one."""

    def model_loaded(self, model: str, loader: str, seconds: float, outcome: LoadOutcome) -> None:
        """A load ended."""
        ...

    def evicted(self, model: str, reason: EvictionReason) -> None:
        """A model was unloaded by modeld itself."""
        ...

    def queue_waited(self, model: str, seconds: float) -> None:
        """A request that had to wait got its slot."""
        ...

    def footprint_measured(self, model: str, expected: int, measured: int) -> None:
        """A load took `measured` bytes where `expected` were promised."""
        ...

    def overtaken(self, model: str) -> None:
        """A request went before one that waits for this model and had come first."""
        ...


@dataclass
class World:
    """Handed to every deployment and replica. `spawn` makes a task with the pool as its parent."""

    resolve: Resolve
    sizing: Sizing
    memory: Memory
    engines: Engines
    feed: EventFeed
    clock: Clock
    runtime_dir: Path
    policy: RestartPolicy
    drain_s: float
    observer: Observer
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    start_worker: StartWorker = Worker.start
    tick: Callable[[], None] = lambda: None
    """Ask for housekeeping soon: a deadline has come nearer."""
    queue_timeout_s: float | None = None
    chance: Callable[[], float] = random.random
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    """Sequence numbers of requests and of the owner's orders, pool-wide."""

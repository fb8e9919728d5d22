"""A model in a real worker process, without a daemon around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeld.clock import SystemClock
from modeld.hardware import host
from modeld.protocol.channel import OpenCall
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import Event, Task
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.worker import Worker

PATIENCE_S = 600.0
"""Seconds for one answer: a busy machine takes ten times as long as a quiet one."""


@dataclass
class Loaded:
    """A worker with its model, what it said while loading, and its log."""

    worker: Worker
    facts: Facts
    stages: list[tuple[str, float | None]]
    ring: LogRing

    async def ask(self, task: Task) -> list[Event]:
        """Run a task to its end and return its events."""
        call = self.worker.call(task, "local")
        events: list[Event] = []
        while (batch := await call.take(PATIENCE_S)) is not None:
            events += batch
        return events

    async def begun(self, task: Task) -> OpenCall:
        """Start a task and wait for its first events: the engine is at work on it."""
        call = self.worker.call(task, "local")
        while not await call.take(PATIENCE_S):
            pass
        return call

    @property
    def log(self) -> str:
        """All that the worker and its engine have written."""
        return text_of(self.ring)

    async def logged(self, words: str) -> None:
        """Wait until the log holds these words."""
        await logged(self.ring, words)


def text_of(ring: LogRing) -> str:
    """Return a log as one text."""
    return "\n".join(line.text for line in ring.lines())


async def logged(ring: LogRing, words: str) -> None:
    """Wait until a log holds these words; it comes by another way than the answers."""
    async with asyncio.timeout(PATIENCE_S):
        while words not in text_of(ring):
            await asyncio.sleep(0.02)


async def rest(call: OpenCall) -> None:
    """Read a call to its end."""
    while await call.take(PATIENCE_S) is not None:
        pass


@asynccontextmanager
async def loaded(
    folder: Path, model: Path, loader: str, usecase: str, **options: Any
) -> AsyncIterator[Loaded]:
    """Load a model in a worker; `folder` has a short path. At the end nothing of the worker is left."""
    ring, run = LogRing(SystemClock()), folder / "w1"
    (folder / "workers").mkdir(exist_ok=True)
    worker = await Worker.start(ring, run, folder / "workers")
    try:
        stages: list[tuple[str, float | None]] = []
        spec = LoadSpec(
            name="m",
            loader=loader,
            usecase=usecase,
            path=str(model),
            runtime_dir=str(run),
            options=options,
        )
        facts = await worker.load(spec, lambda stage, fraction: stages.append((stage, fraction)))
        yield Loaded(worker, facts, stages, ring)
    finally:
        await worker.stop(0.0)
        assert host.group_members(worker.pid) == []
        assert not run.exists()

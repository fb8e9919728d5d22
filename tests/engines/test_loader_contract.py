"""What every loader owes, shown on its real engine, through a real worker process.

A new loader adds a `Case` to CASES and passes all of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from modeld.clock import SystemClock
from modeld.errors import BadRequest, LoadFailed, WorkerDied
from modeld.hardware import host
from modeld.protocol.channel import OpenCall
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import ChatTask, Event, Finish, Message, Sampling, Task, Text, TextFormat, Usage
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.worker import Worker

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Case:
    """One loader with a model of its own and the tasks it is tried with."""

    loader: str
    options: dict[str, Any]
    short: Task
    long: Task
    bad: Task
    capabilities: frozenset[str] = field(default_factory=frozenset)


def _chat(prompt: str, tokens: int, **more: Any) -> ChatTask:
    sampling = Sampling(max_tokens=tokens, temperature=0.0)
    return ChatTask(messages=(Message(role="user", content=prompt),), sampling=sampling, **more)


CASES = [
    Case(
        loader="llama_server",
        options={"n_ctx": 1024, "parallel": 2, "threads": 1},
        short=_chat("Say hello", 8),
        long=_chat("Tell me a long story", 900),
        bad=_chat("x", 8, format=TextFormat(kind="json_schema", name="x", schema={"type": "bogus"})),
        capabilities=frozenset({"chat", "completion", "tools", "json_schema", "logprobs"}),
    ),
]


@dataclass
class Loaded:
    """A worker with its model, and what it said while loading."""

    worker: Worker
    facts: Facts
    stages: list[tuple[str, float | None]]
    ring: LogRing


@asynccontextmanager
async def started(case: Case, model: Path, folder: Path) -> AsyncIterator[Loaded]:
    """Load the case's model in a worker; the worker is stopped at the end, and nothing of it is left."""
    ring = LogRing(SystemClock())
    (folder / "workers").mkdir(exist_ok=True)
    run = folder / "w1"
    worker = await Worker.start(ring, run, folder / "workers")
    try:
        stages: list[tuple[str, float | None]] = []
        spec = LoadSpec(
            name="m",
            loader=case.loader,
            usecase="generate",
            path=str(model),
            runtime_dir=str(run),
            options=case.options,
        )
        facts = await worker.load(spec, lambda stage, fraction: stages.append((stage, fraction)))
        yield Loaded(worker, facts, stages, ring)
    finally:
        await worker.stop(0.0)
        assert host.group_members(worker.pid) == []
        assert not run.exists()


async def collect(worker: Worker, task: Task) -> list[Event]:
    """Run a task to its end."""
    call = worker.call(task, "local")
    events: list[Event] = []
    while (batch := await call.take(120)) is not None:
        events += batch
    return events


async def rest(call: OpenCall) -> None:
    """Read a call to its end."""
    while await call.take(120) is not None:
        pass


@pytest.fixture(params=CASES, ids=lambda case: case.loader)
def case(request: pytest.FixtureRequest) -> Case:
    """Give each loader in turn."""
    found: Case = request.param
    return found


async def test_it_loads_with_progress_and_tells_the_truth_about_itself(
    case: Case, demo_gguf: Path, short_dir: Path
) -> None:
    """Loading reports stages and growing fractions; the facts name loader, memory and what it can do."""
    async with started(case, demo_gguf, short_dir) as loaded:
        fractions = [fraction for _, fraction in loaded.stages if fraction is not None]
        assert loaded.stages
        assert fractions == sorted(fractions)
        assert all(0 <= fraction <= 1 for fraction in fractions)
        assert loaded.facts.loader == case.loader
        assert loaded.facts.slots == 2
        assert loaded.facts.bytes_used > 50 << 20
        assert case.capabilities <= set(loaded.facts.capabilities)


async def test_it_serves_and_streams_and_ends_in_order(case: Case, demo_gguf: Path, short_dir: Path) -> None:
    """A call's events are pieces, then one Finish per choice, then one Usage; two calls run at once."""
    async with started(case, demo_gguf, short_dir) as loaded:
        for events in await asyncio.gather(*(collect(loaded.worker, case.short) for _ in range(2))):
            assert [type(event) for event in events[-2:]] == [Finish, Usage]
            assert all(isinstance(event, Text) for event in events[:-2])
            assert len(events) > 4


async def test_cancel_stops_the_engine_within_a_few_steps(
    case: Case, demo_gguf: Path, short_dir: Path
) -> None:
    """After a cancel the call ends at once, and the slot is free long before the answer would end."""
    async with started(case, demo_gguf, short_dir) as loaded:
        call = loaded.worker.call(case.long, "local")
        while not await call.take(120):
            pass
        call.cancel()
        await asyncio.wait_for(call.over, 5)
        # Both slots serve again: had the engine gone on, a second and third call would wait for it.
        first, second = await asyncio.gather(*(collect(loaded.worker, case.short) for _ in range(2)))
        assert first
        assert second
        assert loaded.worker.open_calls == 0


async def test_a_bad_task_is_the_callers_fault_and_harms_nobody(
    case: Case, demo_gguf: Path, short_dir: Path
) -> None:
    """What the engine cannot do is BadRequest; calls beside and after it are answered."""
    async with started(case, demo_gguf, short_dir) as loaded:
        beside = asyncio.ensure_future(collect(loaded.worker, case.short))
        with pytest.raises(BadRequest):
            await collect(loaded.worker, case.bad)
        assert await beside
        assert await collect(loaded.worker, case.short)


async def test_unloading_gives_the_memory_back(case: Case, demo_gguf: Path, short_dir: Path) -> None:
    """After stop the worker's group is gone, and all its memory with it."""
    async with started(case, demo_gguf, short_dir) as loaded:
        pid = loaded.worker.pid
        assert host.tree_memory(pid) > 50 << 20
        await loaded.worker.stop(0.0)
        assert host.tree_memory(pid) == 0


async def test_the_engines_crash_is_told_with_its_last_words(
    case: Case, demo_gguf: Path, short_dir: Path
) -> None:
    """When the engine is killed, its call fails with how it died, and the worker ends by itself."""
    async with started(case, demo_gguf, short_dir) as loaded:
        call = loaded.worker.call(case.long, "local")
        while not await call.take(120):
            pass
        engines = [pid for pid in host.group_members(loaded.worker.pid) if pid != loaded.worker.pid]
        assert engines
        for pid in engines:
            os.kill(pid, 9)
        with pytest.raises(WorkerDied, match=r"killed by signal 9 \(SIGKILL\); its last words:"):
            await rest(call)
        assert "SIGKILL" in await asyncio.wait_for(asyncio.shield(loaded.worker.ended), 10)


async def test_a_broken_model_is_refused_for_good_with_the_engines_words(
    case: Case, demo_gguf: Path, short_dir: Path
) -> None:
    """A truncated file is a permanent LoadFailed that carries the engine's own message."""
    broken = short_dir / f"broken{demo_gguf.suffix}"
    with demo_gguf.open("rb") as file:
        broken.write_bytes(file.read(1 << 20))
    with pytest.raises(LoadFailed, match=r"(?s)its last words:\n.*failed to load") as caught:
        async with started(case, broken, short_dir):
            pass
    assert caught.value.permanent


async def test_the_engines_output_is_the_log_and_never_the_protocol(
    case: Case, demo_gguf: Path, short_dir: Path
) -> None:
    """What the engine writes can be read in the log, while calls run undisturbed."""
    async with started(case, demo_gguf, short_dir) as loaded:
        assert await collect(loaded.worker, case.short)
        assert "model loaded" in "\n".join(line.text for line in loaded.ring.lines())

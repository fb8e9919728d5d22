"""A pool with real workers and the fake loader, and a check that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import uvloop

from modeld.clock import Clock, SystemClock
from modeld.hardware import host
from modeld.hardware.machine import HOST
from modeld.ids import LOCAL
from modeld.protocol.tasks import Event
from modeld.supervisor import process, stream
from modeld.supervisor import worker as worker_module
from modeld.supervisor.admission import Priority
from modeld.supervisor.deployment import Deployment
from modeld.supervisor.events import EventFeed
from modeld.supervisor.observation import Limits
from modeld.supervisor.pool import Pool
from modeld.supervisor.replica import Replica
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.sizing import Sizing
from modeld.supervisor.spec import ModelSpec, Resolve, Resources
from modeld.supervisor.states import State, Status
from modeld.supervisor.stream import Stream
from modeld.supervisor.worker import Worker
from modeld.supervisor.world import StartWorker
from tests.fakes.machine import FakeProbe
from tests.fakes.supervision import Engines, MemoryOfRuns, Recorder, estimate
from tests.fakes.worker_link import WAIT_S, chat
from tests.fakes.workers import Workers
from tests.harness.virtual_time import VirtualTimeLoop

CAPACITY = 10 << 30
QUICK = RestartPolicy(budget=2, base_s=0.01, cap_s=0.02)
"""Two crashes are forgiven, with next to no delay."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of this folder on uvloop, those of whole lives on asyncio's loop too."""
    # What is drawn from a seed, or counts turns of the loop, has to go the same way each time.
    if "test_traffic" in item.nodeid or "test_moments" in item.nodeid:
        return {"virtual": VirtualTimeLoop}
    # The daemon runs on uvloop. What starts and ends processes is tried on asyncio's own loop too.
    both = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return both if "test_life" in item.nodeid else {"uvloop": uvloop.new_event_loop}


def spec(name: str = "m", *, footprint: int | None = 0, **fields: Any) -> ModelSpec:
    """Return a model of the fake loader: fields of ModelSpec by name, all others are the script."""
    known = {field.name for field in dataclasses.fields(ModelSpec)}
    own: dict[str, Any] = {"reference": None, "resources": Resources(ram=footprint)}
    own |= {key: value for key, value in fields.items() if key in known}
    script = {key: value for key, value in fields.items() if key not in known}
    return ModelSpec(name, "generate", "fake", options=script, **own)


def deployment(pool: Pool, name: str = "m") -> Deployment:
    """Return a model's deployment."""
    return pool.roster[name]


def replica(pool: Pool, name: str = "m", index: int = 0) -> Replica:
    """Return one of a model's replicas."""
    return deployment(pool, name).replicas[index]


def worker(pool: Pool, name: str = "m", index: int = 0) -> Worker:
    """Return the worker that serves now."""
    return replica(pool, name, index).worker()


def held(pool: Pool) -> dict[str, int]:
    """Return the bytes of RAM promised to each model's first replica."""
    return {key.partition("#")[0]: size for key, size in pool.memory.held(HOST).items()}


async def until(pool: Pool, state: State, name: str = "m", *, now: bool = True) -> Status:
    """Wait until a model is in a state."""
    async with asyncio.timeout(WAIT_S):
        return await deployment(pool, name).until(lambda status: status.state is state, now=now)


async def until_restarted(pool: Pool, count: int, name: str = "m") -> Status:
    """Wait until a model is READY again after its crash number `count`."""
    async with asyncio.timeout(WAIT_S):
        return await deployment(pool, name).until(
            lambda status: status.state is State.READY and status.restarts == count
        )


def states(pool: Pool, name: str = "m") -> list[str]:
    """Return the states a model has moved to so far, in order."""
    return [str(event.state) for event in pool.feed.recent() if event.kind == "state" and event.model == name]


def ask(
    pool: Pool, name: str = "m", *, priority: Priority = Priority.INTERACTIVE, max_tokens: int | None = None
) -> Stream:
    """Open a request."""
    return pool.open(name, chat(max_tokens=max_tokens), LOCAL, priority)


async def first(stream: Stream) -> list[Event]:
    """Read a request until something comes."""
    async with asyncio.timeout(WAIT_S):
        while True:
            events = await stream.take(None)
            assert events is not None
            if events:
                return events


async def read(stream: Stream) -> list[Event]:
    """Read a request to its end."""
    got: list[Event] = []
    async with asyncio.timeout(WAIT_S):
        while (events := await stream.take(None)) is not None:
            got += events
    return got


async def answer(stream: Stream) -> list[Event]:
    """Do a whole request: enter, read to the end, leave."""
    with stream:
        return await read(stream)


async def read_until_error(stream: Stream, got: list[Event]) -> None:
    """Read a request into `got`; ends with the request's error."""
    async with asyncio.timeout(WAIT_S):
        while (events := await stream.take(None)) is not None:
            got += events


async def no_resolve(reference: str, report: Callable[[str, float | None], None]) -> Path:
    """Fail: for models that have no reference."""
    raise AssertionError("this model reads no file")


def our_workers() -> list[psutil.Process]:
    """Return the worker processes of this test process, dead or alive."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "modeld.worker" in child.cmdline() or child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def make_pool(
    specs: Iterable[ModelSpec] | ModelSpec,
    runtime_dir: Path,
    *,
    workers: Workers | None = None,
    resolve: Resolve = no_resolve,
    policy: RestartPolicy = QUICK,
    drain_s: float = WAIT_S,
    capacity: int = CAPACITY,
    probe: FakeProbe | None = None,
    engines: Engines | None = None,
    learned: MemoryOfRuns | None = None,
    observer: Recorder | None = None,
    queue_timeout_s: float | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
) -> Pool:
    """Return a pool on a machine of `capacity` bytes of RAM; with `workers` no process is started."""
    loop = asyncio.get_running_loop()
    clock = clock or (loop if isinstance(loop, VirtualTimeLoop) else SystemClock())
    start: StartWorker = Worker.start if workers is None else cast(StartWorker, workers.start)
    return Pool(
        [specs] if isinstance(specs, ModelSpec) else specs,
        resolve=resolve,
        sizing=Sizing(estimate, learned or MemoryOfRuns()),
        probe=probe or FakeProbe(capacity),
        engines=engines or Engines(),
        observer=observer or Recorder(),
        feed=EventFeed(clock),
        clock=clock,
        runtime_dir=runtime_dir,
        drain_s=drain_s,
        limits=limits or Limits(headroom=0.0),
        cores=4,
        policy=policy,
        queue_timeout_s=queue_timeout_s,
        start_worker=start,
    )


Pools = Callable[..., AbstractAsyncContextManager[Pool]]


@pytest.fixture
def pools(short_dir: Path) -> Pools:
    """Give a function that runs a pool and, after its end, finds nothing of it left."""
    (short_dir / "workers").mkdir()

    @asynccontextmanager
    async def run(
        specs: Iterable[ModelSpec] | ModelSpec, *, workers: Workers | None = None, **options: Any
    ) -> AsyncIterator[Pool]:
        groups: set[int] = set()
        pool = make_pool(specs, short_dir, workers=workers, **options)
        try:
            async with pool:
                yield pool
                groups |= {status.pid for status in pool.statuses() if status.pid is not None}
        finally:
            assert [(child.pid, child.status()) for child in our_workers()] == []
            assert {group: host.group_members(group) for group in groups} == {group: [] for group in groups}
            assert [path.name for path in short_dir.rglob("*") if path.name != "workers"] == []

    return run


@pytest.fixture
def quick_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every limit of the stopping ladder short."""
    monkeypatch.setattr(worker_module, "CANCEL_S", 0.1)
    monkeypatch.setattr(worker_module, "BYE_S", 0.1)
    monkeypatch.setattr(worker_module, "EXIT_S", 0.1)
    monkeypatch.setattr(process, "TERM_S", 0.1)
    monkeypatch.setattr(stream, "CANCEL_LIMIT_S", 0.1)

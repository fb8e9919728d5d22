"""A pool with real workers and the fake loader, and a check that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from modeld.clock import SystemClock
from modeld.hardware import host
from modeld.ids import LOCAL
from modeld.protocol.tasks import Event
from modeld.supervisor import process, stream, worker
from modeld.supervisor.actor import Actor
from modeld.supervisor.admission import Priority
from modeld.supervisor.events import EventFeed
from modeld.supervisor.pool import Pool
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.spec import ModelSpec, Resolve, Resources
from modeld.supervisor.states import State, Status
from modeld.supervisor.stream import Stream
from tests.fakes.worker_link import WAIT_S, chat

CAPACITY = 10 << 30
QUICK = RestartPolicy(budget=2, base_s=0.01, cap_s=0.02)
"""Two crashes are forgiven, with next to no delay."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of this folder on uvloop, those of whole lives on asyncio's loop too."""
    # The daemon runs on uvloop. What starts and ends processes is tried on asyncio's own loop too.
    both = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return both if "test_life" in item.nodeid else {"uvloop": uvloop.new_event_loop}


def spec(name: str = "m", *, footprint: int | None = 0, **fields: Any) -> ModelSpec:
    """Return a model of the fake loader: fields of ModelSpec by name, all others are the script."""
    known = {"reference", "start_timeout_s", "max_queue", "max_ongoing"}
    own = {key: value for key, value in fields.items() if key in known}
    script = {key: value for key, value in fields.items() if key not in known}
    return ModelSpec(name, "generate", "fake", own.pop("reference", None), script, resources=Resources(ram=footprint), **own)


def actor(pool: Pool, name: str = "m") -> Actor:
    """Return a model's actor."""
    return pool._actors[name]


async def until(pool: Pool, state: State, name: str = "m", *, now: bool = True) -> Status:
    """Wait until a model is in a state."""
    async with asyncio.timeout(WAIT_S):
        return await actor(pool, name).until(lambda status: status.state is state, now=now)


async def until_restarted(pool: Pool, count: int, name: str = "m") -> Status:
    """Wait until a model is READY again after its crash number `count`."""
    async with asyncio.timeout(WAIT_S):
        return await actor(pool, name).until(
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


Pools = Callable[..., AbstractAsyncContextManager[Pool]]


@pytest.fixture
def pools(short_dir: Path) -> Pools:
    """Give a function that runs a pool and, after its end, finds nothing of it left."""
    (short_dir / "workers").mkdir()

    @asynccontextmanager
    async def run(
        specs: Iterable[ModelSpec] | ModelSpec,
        *,
        resolve: Resolve = no_resolve,
        policy: RestartPolicy = QUICK,
        drain_s: float = WAIT_S,
        capacity: int = CAPACITY,
    ) -> AsyncIterator[Pool]:
        clock = SystemClock()
        feed = EventFeed(clock)
        groups: set[int] = set()
        pool = Pool(
            [specs] if isinstance(specs, ModelSpec) else specs,
            resolve=resolve,
            feed=feed,
            clock=clock,
            runtime_dir=short_dir,
            capacity=capacity,
            drain_s=drain_s,
            policy=policy,
        )
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
    monkeypatch.setattr(worker, "CANCEL_S", 0.1)
    monkeypatch.setattr(worker, "BYE_S", 0.1)
    monkeypatch.setattr(worker, "EXIT_S", 0.1)
    monkeypatch.setattr(process, "TERM_S", 0.1)
    monkeypatch.setattr(stream, "CANCEL_LIMIT_S", 0.1)

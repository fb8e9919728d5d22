"""Jobs over HTTP, with a scripted pool and a real store, in the test's own process."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse, ClientSession, web

from modeld.clock import Clock, SystemClock
from modeld.errors import ModeldError
from modeld.gateway import ports as gateway_ports
from modeld.gateway.app import GatewayRunner, build_app
from modeld.gateway.settings import GatewaySettings
from modeld.ids import Identity, new_id
from modeld.jobs.app import Room, serving_jobs
from modeld.jobs.limits import JobLimits
from modeld.jobs.ports import Kind
from modeld.protocol.tasks import Event, Task
from modeld.store.db import Database
from modeld.store.jobs import Jobs
from modeld.supervisor.admission import GaveWay, Priority
from modeld.telemetry.metrics import Metrics
from tests.fakes.pool import Answer, FakePool, FakeStream, said

WAIT_S = 60.0
"""Seconds of patience with a slow machine."""
PREFIX = "/mass.llama-cpp.v1"
USER = {"role": "user", "content": "hi"}


class JobStream(FakeStream):
    """A call of a job: `wanted` is its task."""

    def __init__(self, pool: JobPool, task: Task, script: list[Answer], yields: bool) -> None:
        super().__init__(script)
        self.task = task
        self.yields = yields
        self._pool = pool
        self.holds = False

    async def admitted(self) -> None:
        """Wait for a slot."""
        async with self._pool.changed:
            await self._pool.changed.wait_for(lambda: self._pool.free > 0)
            self._pool.free -= 1
            self.holds = True
            self._pool.begun.append(self)
            self._pool.most = max(self._pool.most, sum(stream.holds for stream in self._pool.begun))
            self._pool.changed.notify_all()

    def give_way(self) -> None:
        """Cut the call off, for an interactive request."""
        self.feed(GaveWay("somebody needs it"))


@dataclass
class JobPool(FakePool):
    """A pool with `free` slots. `begun` are the calls that got one, in that order; `open_calls` counts those
    that are open, with a slot or without.
    """

    free: int = 4
    begun: list[JobStream] = field(default_factory=list)
    open_calls: int = 0
    most: int = 0
    refusals: list[ModeldError] = field(default_factory=list)
    identities: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @asynccontextmanager
    async def open(
        self,
        model: str,
        task: Task,
        identity: Identity,
        *,
        priority: Priority = Priority.INTERACTIVE,
        keep_alive: float | None = None,
        yields: bool = False,
    ) -> AsyncIterator[JobStream]:
        """Play the script in a slot; `refusals` come first."""
        assert priority is Priority.BACKGROUND
        if self.refusals:
            raise self.refusals.pop(0)
        script = said() if self.answer is None else self.answer(model, task)
        if isinstance(script, ModeldError):
            raise script
        stream = JobStream(self, task, script, yields)
        self.identities.append(identity)
        self.open_calls += 1
        self.streams.append(stream)
        try:
            async with self.changed:
                self.changed.notify_all()
            yield stream
        finally:
            self.open_calls -= 1
            stream.cancelled = not stream.over
            if stream.holds:
                stream.holds = False
                self.free += 1
            stream.closed.set()
            async with self.changed:
                self.changed.notify_all()

    async def until(self, test: Callable[[], bool]) -> None:
        """Wait until something holds that changes as calls come and go."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(test)


_: type[gateway_ports.Pool] = JobPool


@dataclass
class Api:
    """A daemon's worth of jobs, on a loopback port."""

    url: str
    http: ClientSession
    pool: JobPool
    room: Room
    database: Database
    metrics: Metrics
    key: str | None

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str
    ) -> tuple[ClientResponse, Any]:
        """Send a request below the prefix; return the response and its decoded JSON (None without one)."""
        key = key or self.key
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key:
            named["authorization"] = f"Bearer {key}"
        if body is not None:
            named["content-type"] = "application/json"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        async with self.http.request(
            method, f"{self.url}{PREFIX}/{path}", data=data, headers=named
        ) as response:
            raw = await response.read()
            return response, json.loads(raw) if raw else None

    async def submit(self, method: str, key: str | None = None, **body: Any) -> str:
        """Submit what must be taken, and return its id."""
        response, answer = await self.ask("POST", method, {"model": "tiny", **body}, key=key)
        assert response.status == 200, answer
        assert set(answer) == {"job_id"}
        assert response.headers["X-Mass-Job-Id"] == answer["job_id"]
        return str(answer["job_id"])

    async def chat(self, **body: Any) -> str:
        """Submit a chat."""
        return await self.submit("Chat", messages=[USER], **body)

    async def batch(self, count: int, key: str | None = None) -> str:
        """Submit a batch of chats that say their number."""
        items = [{"messages": [{"role": "user", "content": str(at)}]} for at in range(count)]
        return await self.submit("BatchChat", key, items=items)

    async def over(self, id: str, key: str | None = None) -> dict[str, Any]:
        """Wait for a job's end and return what is told of it."""
        async with asyncio.timeout(WAIT_S):
            while True:
                response, answer = await self.ask("GET", f"Jobs/{id}?wait=1", key=key)
                assert response.status in (200, 202), answer
                if response.status == 200:
                    found: dict[str, Any] = answer
                    return found

    async def status(self, id: str) -> str:
        """Return how a job stands."""
        _, answer = await self.ask("GET", f"Jobs/{id}")
        return str(answer["status"])

    async def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        ((count,),) = await self.database.fetch(f"SELECT count(*) FROM {table}")
        return int(count)


@asynccontextmanager
async def serving(
    folder: Path,
    pool: JobPool | None = None,
    *,
    clock: Clock | None = None,
    limits: JobLimits | None = None,
    kinds: Mapping[str, Kind] | None = None,
    keys: Sequence[str] = (),
) -> AsyncIterator[Api]:
    """Serve jobs with their store in `folder`; coming back with the same folder is a later life."""
    clock, pool = clock or SystemClock(), pool or JobPool()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database.open(folder / "modeld.sqlite3", clock))
        metrics = Metrics()
        app = build_app(pool, GatewaySettings(api_keys=tuple(keys)), metrics, clock)
        room = await stack.enter_async_context(
            serving_jobs(app, Jobs(database, new_id("life_")), pool, limits or JobLimits(), clock, kinds)
        )
        runner = GatewayRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = await stack.enter_async_context(ClientSession())
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield Api(url, http, pool, room, database, metrics, keys[0] if keys else None)


def number_of(task: Task) -> int:
    """Return the number that a batch's chat says."""
    return int(task.messages[0].content)  # type: ignore[union-attr,arg-type]


def echo(model: str, task: Task) -> list[Answer]:
    """Answer a chat with its own words."""
    return said(str(task.messages[0].content))  # type: ignore[union-attr]


def texts(told: Mapping[str, Any]) -> list[str]:
    """Return what the responses of a batch say."""
    return [response["message"]["content"] for response in told["result"]["responses"]]


def counted(pool: JobPool) -> Counter[int]:
    """Return how often each item of a batch got a slot."""
    return Counter(number_of(stream.task) for stream in pool.begun)


__all__ = ["Api", "Event", "JobPool", "JobStream", "counted", "echo", "number_of", "serving", "texts"]

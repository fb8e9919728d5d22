"""The control room over a real pool and a real store, with workers that are no processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from modeld.admin.schemas import Change, ChangePlan, ChangeResult, Outcome
from modeld.clock import SystemClock
from modeld.config.diff import Wanted
from modeld.config.load import load
from modeld.config.schema import Config
from modeld.control import Control, restored, specs_of, starting_models
from modeld.protocol.capabilities import Capability
from modeld.store.db import Database
from modeld.store.effective import EffectiveConfig, StoredModel
from modeld.supervisor.pool import Pool
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State, Status
from tests.component.supervisor.conftest import CAPACITY, make_pool
from tests.fakes.worker_link import WAIT_S
from tests.fakes.workers import Workers


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of this folder on uvloop, as the daemon does."""
    return {"uvloop": uvloop.new_event_loop}


def fake(name: str, script: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a model as it is written. Another `script` is another fingerprint."""
    written = {"name": name, "loader": "fake", "ram": 1 << 20, **fields}
    return written | ({"fake_config": dict(script)} if script else {})


def document(*models: Mapping[str, Any], **rest: Any) -> dict[str, Any]:
    """Return a configuration as it is written."""
    return {"models": [dict(model) for model in models], **rest}


class NoLoaders:
    """`control.Loaders`: nothing is asked of it."""

    async def all(
        self, *, fresh: bool = False, binary: str | None = None, pythons: Mapping[str, str] | None = None
    ) -> dict[str, Capability]:
        """Return none."""
        return {}

    async def find(self, loader: str, *, binary: str | None = None, python: str | None = None) -> Capability:
        """Return that it is there."""
        return Capability(True, "there", python=python or "")


class Room:
    """A control room, and what it changes."""

    def __init__(
        self,
        folder: Path,
        file: Path | None,
        config: Config,
        wanted: tuple[Wanted, ...],
        pool: Pool,
        workers: Workers,
        store: EffectiveConfig,
    ) -> None:
        self.folder = folder
        self.file = file
        self.config = config
        self.pool = pool
        self.workers = workers
        self.store = store
        self.counted: list[tuple[str, str]] = []
        self.control = Control(
            pool,
            config=config,
            file=file,
            env={},
            wanted=wanted,
            store=store,
            loaders=NoLoaders(),
            counted=lambda kind, outcome: self.counted.append((kind, outcome)),
        )

    def write(self, *models: Mapping[str, Any], **rest: Any) -> None:
        """Put another text into the daemon's own file."""
        assert self.file is not None
        self.file.write_text(json.dumps(document(*models, **({"allow_fake": True} | rest))))

    def change(self, kind: Any, *models: Mapping[str, Any], **fields: Any) -> Change:
        """Return a change; models make its document."""
        if models and "document" not in fields:
            fields["document"] = document(*models)
        if "document" in fields:
            fields.setdefault("base", str(self.folder))
        return Change(kind, **fields)

    async def apply(self, change: Change) -> ChangeResult:
        """Carry a change out, and see that it did what its plan said and is recorded as the pool runs it."""
        planned = await self.control.plan(change)
        async with asyncio.timeout(WAIT_S):
            result = await self.control.apply(change)
        assert result.plan == planned
        await self.check()
        return result

    async def do(self, kind: Any, *models: Mapping[str, Any], **fields: Any) -> ChangeResult:
        """Carry a change out."""
        return await self.apply(self.change(kind, *models, **fields))

    async def stored(self) -> tuple[StoredModel, ...]:
        """Return the effective configuration."""
        found = await self.store.load()
        assert found is not None
        return found

    async def origins(self) -> dict[str, str]:
        """Return where each model comes from."""
        return {entry.key: entry.origin for entry in await self.stored()}

    async def check(self) -> None:
        """See that what is stored is what the pool runs."""
        config = self.control._config  # a reload takes over what its file says of engines
        recorded = [restored(entry, config) for entry in await self.stored()]
        assert specs_of(recorded, config) == self.pool.specs()

    async def facts(self) -> tuple[Any, ...]:
        """Return all that a refused change must leave alone."""
        pids = {status.name: (status.pid, status.state) for status in self.pool.statuses()}
        return self.pool.specs(), await self.stored(), pids, list(self.pool.feed.recent())

    def pids(self) -> dict[str, int | None]:
        """Return the models' workers."""
        return {status.name: status.pid for status in self.pool.statuses()}

    def spec(self, name: str) -> ModelSpec:
        """Return a model as the pool has it."""
        return self.pool.specs()[name]

    async def until(self, test: Callable[[Status], bool], name: str = "a") -> Status:
        """Wait until a model's status is as wanted."""
        async with asyncio.timeout(WAIT_S):
            return await self.pool.roster[name].until(test)

    async def state(self, state: State, name: str = "a") -> Status:
        """Wait until a model is in a state."""
        return await self.until(lambda status: status.state is state, name)


def told(outcomes: tuple[Outcome, ...]) -> dict[str, tuple[bool, str]]:
    """Return outcomes by model."""
    return {outcome.name: (outcome.ok, outcome.message) for outcome in outcomes}


def names(plan: ChangePlan) -> dict[str, list[str]]:
    """Return the kinds of a plan that have models."""
    kinds = {
        "adds": list(plan.adds),
        "removes": list(plan.removes),
        "replaces": [each.name for each in plan.replaces],
        "updates": [each.name for each in plan.updates],
        "unchanged": list(plan.unchanged),
    }
    return {kind: found for kind, found in kinds.items() if found}


@asynccontextmanager
async def running(
    folder: Path,
    *models: Mapping[str, Any],
    workers: Workers | None = None,
    capacity: int = CAPACITY,
    own_file: bool = True,
    **rest: Any,
) -> AsyncIterator[Room]:
    """Start as the daemon does, from a file of `models` and settings; at the end nothing is left."""
    file = folder / "modeld.yaml"
    written = document(*models, **({"allow_fake": True} | rest))
    file.write_text(json.dumps(written))
    config = load(file, {}).config
    (folder / "run").mkdir(exist_ok=True)
    workers = workers or Workers(quick=True)
    clock = SystemClock()
    async with Database.open(folder / "store.sqlite3", clock) as database:
        store = EffectiveConfig(database)
        wanted, _ = starting_models(config, folder, await store.load())
        specs = specs_of(wanted, config).values()
        pool = make_pool(specs, folder / "run", workers=workers, capacity=capacity, clock=clock)
        room = Room(folder, file if own_file else None, config, wanted, pool, workers, store)
        others = asyncio.all_tasks()
        async with asyncio.timeout(4 * WAIT_S), pool, room.control:
            async with asyncio.timeout(WAIT_S):
                await pool.settled()
            yield room
            async with asyncio.timeout(WAIT_S):
                await pool.stop(0.0)
        assert workers.running == []
        assert {task for task in asyncio.all_tasks() - others if not task.done()} == set()


Rooms = Callable[..., AbstractAsyncContextManager[Room]]


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    """Give `running` in one folder: a second use of it is the daemon's next start."""

    def start(*models: Mapping[str, Any], **options: Any) -> AbstractAsyncContextManager[Room]:
        return running(tmp_path, *models, **options)

    return start

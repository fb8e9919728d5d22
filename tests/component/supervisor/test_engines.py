"""Where a model's workers run, and what becomes of a model whose engine is taken away."""

from __future__ import annotations

import asyncio
from pathlib import Path

from modeld.errors import LoadFailed
from modeld.protocol.capabilities import Capability
from modeld.supervisor.process import PYTHON
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import Pools, answer, ask, spec, states, until
from tests.fakes.supervision import Engines
from tests.fakes.worker_link import text_of
from tests.fakes.workers import Workers


class Made(Engines):
    """The engine is in an environment that modeld has made, unless the model names another."""

    def __init__(self, python: str) -> None:
        super().__init__()
        self.python = python

    async def find(self, loader: str, *, binary: str | None = None, python: str | None = None) -> Capability:
        found = await super().find(loader, binary=binary, python=python)
        return found if python or not found.available else Capability(True, "made", python=self.python)


async def test_workers_run_where_the_engine_was_found(pools: Pools) -> None:
    """The interpreter that has the engine runs the worker; the one that a model names goes before it."""
    workers = Workers(quick=True)
    specs = [spec("m"), spec("own", python="/opt/own/python")]
    async with pools(specs, workers=workers, engines=Made("/state/engines/x/python")) as pool:
        for name in ("m", "own"):
            assert text_of(await answer(ask(pool, name))) == "ok"
        assert workers.of("m").env == {PYTHON: "/state/engines/x/python"}
        assert workers.of("own").env == {PYTHON: "/opt/own/python"}


async def test_an_environment_that_goes_between_look_and_start_is_waited_for(
    pools: Pools, tmp_path: Path
) -> None:
    """A worker whose interpreter has been removed since it was looked at is no lasting failure: the model
    looks again, and waits for its engine.
    """
    engines = Made(str(tmp_path / "gone"))
    async with pools(spec(), engines=engines) as pool:
        await until(pool, State.BACKOFF)
        engines.absent["fake"] = Capability(False, "gone", "modeld engines install fake")
        status = await until(pool, State.WAITING)
        assert status.cause == "engine"
        assert str(State.FAILED) not in states(pool)


async def test_an_interpreter_that_a_model_names_and_is_not_there_stays_a_failure(pools: Pools) -> None:
    """A wrong path in the configuration does not mend itself."""
    async with pools(spec(python="/nowhere/python")) as pool:
        status = await until(pool, State.FAILED)
        assert "/nowhere/python cannot be started" in status.message
        await asyncio.sleep(0)
        assert states(pool)[-1] == State.FAILED


async def test_an_engine_that_breaks_is_no_missing_one(pools: Pools, tmp_path: Path) -> None:
    """A refusal to load that comes from an environment that is there stays a failure."""
    python = tmp_path / "python"
    python.touch()
    workers = Workers(quick=True)
    workers.failures["m"] = [LoadFailed("no such model", permanent=True)]
    async with pools(spec(), workers=workers, engines=Made(str(python))) as pool:
        assert (await until(pool, State.FAILED)).message == "no such model"

"""Carrying out changes to the running daemon's models.

One change at a time, up to the point where its models are on their way: what a change adds may be fetched for
hours, and meanwhile it can be removed and others be changed. What a change has begun goes on when its caller
leaves. The effective configuration (the models there are, as they were written) is kept in the store with
each change, so that the next start and `reconcile` without a file know it. Models from the daemon's own file
and models added since are told apart: a reload, like a restart, gives the file's models and those that were
added.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from modeld.admin.schemas import (
    Change,
    ChangePlan,
    ChangeResult,
    DeviceReport,
    DevicesReply,
    EstimateReply,
    Outcome,
)
from modeld.config.diff import Wanted
from modeld.config.model import plain
from modeld.config.schema import Config
from modeld.control.goal import Goal, Present, in_words, kept, work_out
from modeld.control.specs import specs_of
from modeld.control.watch import Rest, mark_of, watch
from modeld.errors import ModeldError
from modeld.protocol.capabilities import Capability
from modeld.store.effective import EffectiveConfig, StoredModel
from modeld.supervisor.pool import Pool
from modeld.supervisor.states import State
from modeld.telemetry.metrics import ChangeKind, ChangeOutcome

_log = logging.getLogger("modeld.control")


class Loaders(Protocol):
    """Which engines this machine has."""

    async def all(
        self, *, fresh: bool = False, binary: str | None = None, pythons: Mapping[str, str] | None = None
    ) -> dict[str, Capability]:
        """Return what was found for each loader, with the llama-server and interpreters that are named."""
        ...

    async def find(self, loader: str, *, binary: str | None = None, python: str | None = None) -> Capability:
        """Return what was found for one model's loader, which may name its own."""
        ...


Counted = Callable[[ChangeKind, ChangeOutcome], None]
"""Told of each change: its kind, and how it ended."""


class Control:
    """The control room: `async with` it beside the pool it changes."""

    def __init__(
        self,
        pool: Pool,
        *,
        config: Config,
        file: Path | None,
        env: Mapping[str, str],
        wanted: Sequence[Wanted],
        store: EffectiveConfig,
        loaders: Loaders,
        counted: Counted = lambda kind, outcome: None,
    ) -> None:
        """`file` is the daemon's own configuration file, None when it has none (the demo)."""
        self._pool = pool
        self._config = config
        self._file = file
        self._env = env
        self._wanted = tuple(wanted)
        self._filed = frozenset(each.key for each in wanted if each.origin == "file")
        self._store = store
        self._loaders = loaders
        self._counted = counted
        self._turn = asyncio.Lock()
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Control:
        """Remember the effective configuration; watch the file if the configuration says so."""
        await self._group.__aenter__()
        await self._save()
        if self._config.watch and self._file is not None:
            cause = f"{self._file} has changed"
            rest = Rest(mark_of(self._file))
            self._begin(watch(self._file, rest, lambda: self._reload(cause)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up what is under way: the daemon ends. What it led to is in the store already."""
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    # --- the port -------------------------------------------------------------------------------------------

    async def plan(self, change: Change) -> ChangePlan:
        """Return what a change would do. Raises ConfigError or UsageError for one that cannot be."""
        return (await self._worked_out(change)).plan

    async def apply(self, change: Change) -> ChangeResult:
        """Carry a change out, after those under way; returns when what it adds is up, or will not be.

        Raises as `plan` does, and then nothing has changed.

        Cancelling the caller stops the waiting and never the change itself.
        """
        ended: asyncio.Future[ChangeResult] = asyncio.get_running_loop().create_future()
        self._begin(self._answer(change, ended))
        return await asyncio.shield(ended)

    def reload(self, cause: str) -> None:
        """Read the daemon's own file again, without waiting; a file that is wrong changes nothing."""
        self._begin(self._reload(cause))

    async def devices(self) -> DevicesReply:
        """Look at the machine now."""
        machine, spaces = await self._pool.devices()
        usable = {space.id: space for space in spaces}
        reports = tuple(
            DeviceReport(
                device,
                usable[device.id].usable,
                self._pool.memory.held(device.id),
                usable[device.id].others,
            )
            for device in machine.devices
        )
        return DevicesReply(reports, machine.message, await self._engines())

    async def _engines(self) -> dict[str, Capability]:
        """Look for every loader's engine where the configuration says it is, and where a model says it."""
        settings = self._config.engines
        binary = settings.llama_server.binary
        named = settings.named()
        found = await self._loaders.all(
            fresh=True, binary=None if binary is None else str(binary), pythons=named
        )
        for each in self._wanted:
            python = each.options.get("python")
            if python is not None and python != named.get(each.model.loader):
                found[f"{each.model.loader} of {each.key}"] = await self._loaders.find(
                    each.model.loader, binary=each.options.get("binary"), python=python
                )
        return found

    async def estimate(self, name: str) -> EstimateReply:
        """Return a model's footprint, line by line. Raises NotFound, LoadFailed (no file to look at)."""
        footprint, estimate, fits = await self._pool.estimate(name)
        return EstimateReply(name, footprint, estimate, fits)

    # --- one change after the other -------------------------------------------------------------------------

    async def _worked_out(self, change: Change) -> Goal:
        present = Present(self._wanted, self._config, self._file, self._filed, self._down())
        # In a thread: a large document takes a while to read and to check, and requests do not wait for that.
        return await asyncio.to_thread(work_out, change, present, self._env)

    async def _apply(self, change: Change) -> ChangeResult:
        async with self._turn:
            try:
                goal = await self._worked_out(change)
            except ModeldError:
                self._counted(change.kind, "refused")
                raise
            _log.info("%s: %s", change.kind, in_words(goal.plan))
            before = {each.key: each for each in self._wanted}
            self._wanted, self._config, self._filed = goal.wanted, goal.config, goal.filed
            await self._save()
            outcomes = await self._carry_out(goal, change.strategy or self._config.replace_strategy)
            await self._keep_old(goal, before)
        refused = {outcome.name for outcome in outcomes}
        begun = (name for name in (*goal.plan.adds, *goal.wakes) if name not in refused)
        outcomes = (*outcomes, *await _each(self._come_up, begun))
        done = all(outcome.ok for outcome in outcomes)
        self._counted(change.kind, "ok" if done else "partial")
        return ChangeResult(goal.plan, outcomes)

    async def _keep_old(self, goal: Goal, before: Mapping[str, Wanted]) -> None:
        """Record the old models that serve on because the new ones did not come up."""
        running, specs = self._pool.specs(), specs_of(goal.wanted, goal.config)
        replaced = (replacement.name for replacement in goal.plan.replaces)
        old = {name: kept(before[name], goal.wanted) for name in replaced if running[name] != specs[name]}
        if old:
            for spec in specs_of(old.values(), goal.config).values():
                self._pool.update(spec)
            self._wanted = tuple(old.get(each.key, each) for each in goal.wanted)
            await self._save()

    async def _carry_out(
        self, goal: Goal, strategy: Literal["blue_green", "stop_start"]
    ) -> tuple[Outcome, ...]:
        """Do what is planned; models that are added or woken are on their way then.

        Returns what became of the others, and of those that cannot be begun. Models that are replaced come
        after those removed, whose room they find, and before those added, which take none that lets an old
        worker serve until the new one is ready. Where nothing is replaced, added models need not wait for the
        open requests of removed ones: one of them may be the other, renamed.
        """
        specs = specs_of(goal.wanted, goal.config)
        pool = self._pool
        for update in goal.plan.updates:
            pool.update(specs[update.name])

        async def remove(name: str) -> Outcome:
            await pool.remove(name)
            return Outcome(name, True, "removed")

        async def replace(name: str) -> Outcome:
            words = await pool.replace(specs[name], beside=strategy == "blue_green")
            _log.info("replaced: %s", words, extra={"model": name})
            return Outcome(name, True, f"replaced: {words}")

        async def add(name: str) -> Outcome:
            pool.add(specs[name])
            return Outcome(name, True, "")

        async def wake(name: str) -> Outcome:
            pool.wake(name)
            return Outcome(name, True, "")

        replaces = [replacement.name for replacement in goal.plan.replaces]
        adds = goal.plan.adds
        early, late = ((), adds) if replaces else (adds, ())
        async with asyncio.TaskGroup() as group:
            removing = group.create_task(_each(remove, goal.plan.removes))
            adding = group.create_task(_each(add, early))
        replaced = await _each(replace, replaces)
        begun = adding.result() + await _each(add, late) + await _each(wake, goal.wakes)
        return (*removing.result(), *replaced, *(outcome for outcome in begun if not outcome.ok))

    async def _come_up(self, name: str) -> Outcome:
        status = await self._pool.came_up(name)
        words = f"{status.state}: {status.message}" if status.message else str(status.state)
        # Another change may have taken it out again.
        return Outcome(name, status.state is not State.FAILED and status.cause != "removed", words)

    def _down(self) -> frozenset[str]:
        """Return the models that are not up though their settings say that they are."""
        return frozenset(
            status.name
            for status in self._pool.statuses()
            if status.state is State.FAILED
            or any(replica.state is State.FAILED for replica in status.replicas)
            # Unloaded by its owner; an idle one, and one that a request brings, are as they should be.
            or (status.state is State.STOPPED and status.cause == "asked" and not status.on_demand)
        )

    async def _save(self) -> None:
        entries = [
            StoredModel(each.key, each.gateway, each.origin, plain(each.model), each.base)
            for each in self._wanted
        ]
        try:
            await self._store.save(entries)
        except ModeldError as error:
            _log.warning("the models run, but the next start will not know of the change: %s", error)

    # --- tasks ----------------------------------------------------------------------------------------------

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        """Start what goes on when its caller leaves; it must raise nothing, or the daemon ends with it."""
        task = self._group.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, change: Change, ended: asyncio.Future[ChangeResult]) -> None:
        try:
            result = await self._apply(change)
        except asyncio.CancelledError:
            ended.cancel()
            raise
        except Exception as error:
            if not isinstance(error, ModeldError):
                _log.exception(
                    "%s: a defect of modeld; the models that run are not touched by it", change.kind
                )
            ended.set_exception(error)
            ended.exception()  # its reader may have left: then it is no news to anybody
        else:
            ended.set_result(result)

    async def _reload(self, cause: str) -> None:
        try:
            result = await self._apply(Change("reload"))
        except ModeldError as error:
            _log.error("%s: the models stay as they are: %s", cause, error)
        except Exception:
            _log.exception("%s: a defect of modeld; the models that run are not touched by it", cause)
        else:
            for note in result.plan.notes:
                _log.warning("%s", note)
            for outcome in result.outcomes:
                if not outcome.ok:
                    _log.warning("%s", outcome.message, extra={"model": outcome.name})


async def _each(do: Callable[[str], Awaitable[Outcome]], names: Iterable[str]) -> list[Outcome]:
    """Do the same to several models at once; an error is that model's outcome."""

    async def one(name: str) -> Outcome:
        try:
            return await do(name)
        except ModeldError as error:
            return Outcome(name, False, str(error))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(name)) for name in names]
    return [task.result() for task in tasks]

"""Changing the running daemon's models: from documents to a plan, from the plan to the pool and the store.

One change at a time. What a change has begun goes on when its caller leaves. The effective configuration (the
models there are, as they were written) is kept in the store after each change, so that the next start and
`reconcile` without a file know it. Models from the daemon's own file and models added since are told apart:
a reload, like a restart, gives the file's models and those that were added.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol

from modeld.admin.schemas import (
    Change,
    ChangePlan,
    ChangeResult,
    DeviceReport,
    DevicesReply,
    EstimateReply,
    Outcome,
    Replacement,
)
from modeld.config.diff import Difference, Wanted, changed_settings, diff, wanted_models
from modeld.config.load import from_document, load
from modeld.config.model import Model, plain
from modeld.config.schema import Config
from modeld.errors import ConfigError, ModeldError, UsageError
from modeld.library.refs import HubRef, LocalRef, parse
from modeld.protocol.capabilities import Capability
from modeld.store.effective import EffectiveConfig, StoredModel
from modeld.supervisor.pool import Pool
from modeld.supervisor.scaling import Scaling
from modeld.supervisor.spec import ModelSpec, Resources
from modeld.supervisor.states import State
from modeld.telemetry.metrics import ChangeKind, ChangeOutcome

_log = logging.getLogger("modeld.control")

WATCH_S = 1.0
"""Seconds between two looks at a watched file; it must be the same at two looks before it is read."""


class Loaders(Protocol):
    """Which engines this machine has."""

    async def all(self, *, fresh: bool = False) -> dict[str, Capability]:
        """Return what was found for each loader."""
        ...


Counted = Callable[[ChangeKind, ChangeOutcome], None]
"""Told of each change: its kind, and how it ended."""


def specs_of(wanted: Iterable[Wanted], config: Config) -> dict[str, ModelSpec]:
    """Return what the supervisor needs to know of each model, under the daemon's own settings."""
    return {each.key: _spec(each, config) for each in wanted}


def starting_models(
    config: Config, base: Path, stored: Sequence[StoredModel] | None
) -> tuple[tuple[Wanted, ...], list[str]]:
    """Return the models of a start: the configuration's, and those added to an earlier life of the daemon.

    The second part are sentences for the log. A stored model that cannot be read any more is left out, with
    a sentence; one whose name the configuration has taken since is the configuration's.
    """
    own = wanted_models(config, base)
    taken = {each.key for each in own}
    notes = []
    added = []
    for entry in stored or ():
        if entry.origin != "added":
            continue
        if entry.key in taken:
            notes.append(f"{entry.key}: the configuration file has a model of this name now; it is used")
            continue
        try:
            added.append(restored(entry, config))
        except ModeldError as error:
            notes.append(f"{entry.key}, which was added to the running daemon, cannot be restored: {error}")
        else:
            notes.append(f"{entry.key} was added to the running daemon, and is back")
    return (*own, *added), notes


def restored(entry: StoredModel, config: Config) -> Wanted:
    """Return a stored model as it was wanted. Raises ConfigError when this version cannot read it."""
    document = {"models": [entry.document]}
    model = from_document(document, Path(entry.base), allow_fake=config.allow_fake).models[0]
    return Wanted(entry.key, entry.gateway, model, entry.base, entry.origin, config.options_for(model))


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
        self._store = store
        self._loaders = loaders
        self._counted = counted
        self._turn = asyncio.Lock()
        self._group = asyncio.TaskGroup()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Control:
        """Remember the effective configuration; watch the file if the configuration says so."""
        await self._group.__aenter__()
        await self._save()
        if self._config.watch and self._file is not None:
            self._watching = self._group.create_task(self._watch(self._file))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let a change under way come to its end."""
        if self._watching is not None:
            self._watching.cancel()
        await self._group.__aexit__(None, None, None)

    # --- the port -------------------------------------------------------------------------------------------

    async def plan(self, change: Change) -> ChangePlan:
        """Return what a change would do. Raises ConfigError or UsageError for one that cannot be."""
        return self._worked_out(change)[1]

    async def apply(self, change: Change) -> ChangeResult:
        """Carry a change out, after those under way. Raises as `plan` does, and then nothing has changed."""
        doing = self._group.create_task(self._apply(change))
        doing.add_done_callback(_looked_at)
        return await asyncio.shield(doing)

    def reload(self, cause: str) -> None:
        """Read the daemon's own file again, without waiting; a file that is wrong changes nothing."""
        self._group.create_task(self._reload(cause))

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
        return DevicesReply(reports, machine.message, await self._loaders.all(fresh=True))

    async def estimate(self, name: str) -> EstimateReply:
        """Return a model's footprint, line by line. Raises NotFound, LoadFailed (no file to look at)."""
        footprint, estimate, fits = await self._pool.estimate(name)
        return EstimateReply(name, footprint, estimate, fits)

    # --- working out ----------------------------------------------------------------------------------------

    def _worked_out(self, change: Change) -> tuple[tuple[Wanted, ...], ChangePlan]:
        """Return the models there are to be, and the plan."""
        notes: list[str] = []
        wanted = self._goal(change, notes)
        difference = diff(self._wanted, wanted, additive=False)
        if change.kind == "reconcile" and change.document is None:
            down = [
                status.name
                for status in self._pool.statuses()
                if status.state is State.FAILED or (status.state is State.STOPPED and not status.on_demand)
            ]
            notes += [f"{name} is not up, and is started" for name in down]
        if change.kind in ("remove", "reconcile"):
            own = {each.key for each in self._wanted if each.origin == "file"}
            back = sorted(own & set(difference.removes))
            if back and self._file is not None:
                notes.append(
                    f"{', '.join(back)} stands in {self._file}: it comes back at the next start or reload, "
                    "unless it is taken out there too"
                )
        return wanted, _plan(difference, notes)

    def _goal(self, change: Change, notes: list[str]) -> tuple[Wanted, ...]:
        match change.kind:
            case "add":
                if change.document is None:
                    raise UsageError("nothing to add: the change has no document")
                added = self._from_document(change)
                if not added:
                    raise UsageError("nothing to add: the file names no models")
                return self._merged(added)
            case "remove":
                return self._without(change.names)
            case "reconcile":
                if change.document is None:
                    return self._wanted
                return self._from_document(change)
            case "reload":
                return self._reread(notes)

    def _from_document(self, change: Change) -> tuple[Wanted, ...]:
        config = from_document(change.document, Path(change.base), allow_fake=self._config.allow_fake)
        own = {each.key: each for each in self._wanted if each.origin == "file"}
        found = []
        for key, gateway, model in config.keyed_models():
            # The daemon's own settings of engines hold, as they do for its own file's models.
            one = Wanted(key, gateway, model, change.base, "added", self._config.options_for(model))
            mine = own.get(key)
            same = mine is not None and not _differ(mine, one)
            found.append(mine if same and mine is not None else one)
        return tuple(found)

    def _merged(self, added: Sequence[Wanted]) -> tuple[Wanted, ...]:
        """Return the present models with `added` in place of those of their names, or at the end.

        Raises ConfigError when a name or an alias would stand for two models of one gateway.
        """
        new = {each.key: each for each in added}
        merged = [new.pop(each.key, each) for each in self._wanted] + list(new.values())
        names: dict[tuple[str, str], str] = {}
        for each in merged:
            for name in (each.model.name, *each.model.aliases):
                other = names.setdefault((each.gateway, name), each.key)
                if other != each.key:
                    raise ConfigError(
                        f"the name {name!r} would stand for two models, {other!r} and {each.key!r}; names and "
                        "aliases are unique within a gateway"
                    )
        return tuple(merged)

    def _without(self, names: Sequence[str]) -> tuple[Wanted, ...]:
        there = [each.key for each in self._wanted]
        unknown = [name for name in names if name not in there]
        if unknown or not names:
            known = ", ".join(there) or "none"
            what = f"no model is named {', '.join(map(repr, unknown))}" if unknown else "no model is named"
            raise UsageError(f"{what}; there are: {known}")
        return tuple(each for each in self._wanted if each.key not in names)

    def _reread(self, notes: list[str]) -> tuple[Wanted, ...]:
        if self._file is None:
            raise UsageError(
                "there is nothing to reload: the daemon was started without a configuration file"
            )
        loaded = load(self._file, self._env)
        notes += loaded.warnings
        own = wanted_models(loaded.config, loaded.base)
        later = changed_settings(self._config, loaded.config)
        # What the command line decided over the file is no change of the file.
        later = tuple(name for name in later if name not in ("listen", "state_dir"))
        if later:
            notes.append(f"{', '.join(later)} changed: that takes effect at the next start")
        taken = {each.key for each in own}
        return (*own, *(each for each in self._wanted if each.origin == "added" and each.key not in taken))

    # --- carrying out ---------------------------------------------------------------------------------------

    async def _apply(self, change: Change) -> ChangeResult:
        async with self._turn:
            try:
                wanted, plan = self._worked_out(change)
            except ModeldError:
                self._counted(change.kind, "refused")
                raise
            strategy = change.strategy or self._config.replace_strategy
            _log.info("%s: %s", change.kind, _in_words(plan))
            specs = specs_of(wanted, self._config)
            before = {each.key: each for each in self._wanted}
            kept: dict[str, Wanted] = {}
            outcomes: dict[str, Outcome] = {}

            async def part(name: str, doing: str) -> None:
                try:
                    message = await self._one(name, doing, specs, strategy)
                except ModeldError as error:
                    outcomes[name] = Outcome(name, False, str(error))
                    serving = self._pool.specs().get(name)
                    if doing == "replace" and serving != specs[name]:
                        kept[name] = before[name]  # the old one serves on
                else:
                    outcomes[name] = message

            self._wanted = wanted
            await self._save()
            for update in plan.updates:
                self._pool.update(specs[update.name])
            work = [
                *((name, "remove") for name in plan.removes),
                *((replaced.name, "replace") for replaced in plan.replaces),
                *((name, "add") for name in plan.adds),
            ]
            if change.kind == "reconcile" and change.document is None:
                work += [(name, "wake") for name in plan.unchanged if self._is_down(name)]
            async with asyncio.TaskGroup() as group:
                for name, doing in work:
                    group.create_task(part(name, doing))
            if kept:
                self._wanted = tuple(kept.get(each.key, each) for each in wanted)
                await self._save()
            result = ChangeResult(plan, tuple(outcomes[name] for name, _ in work))
            done = all(outcome.ok for outcome in result.outcomes)
            self._counted(change.kind, "ok" if done else "partial")
            for outcome in result.outcomes:
                _log.log(
                    logging.INFO if outcome.ok else logging.WARNING, "%s: %s", outcome.name, outcome.message
                )
            return result

    async def _one(
        self,
        name: str,
        doing: str,
        specs: Mapping[str, ModelSpec],
        strategy: Literal["blue_green", "stop_start"],
    ) -> Outcome:
        match doing:
            case "remove":
                await self._pool.remove(name)
                return Outcome(name, True, "removed")
            case "replace":
                words = await self._pool.replace(specs[name], beside=strategy == "blue_green")
                return Outcome(name, True, f"replaced: {words}")
            case "add":
                self._pool.add(specs[name])
            case "wake":
                self._pool.wake(name)
        status = await self._pool.came_up(name)
        if status.state is State.FAILED:
            return Outcome(name, False, f"failed: {status.message}")
        return Outcome(
            name, True, f"{status.state}: {status.message}" if status.message else str(status.state)
        )

    def _is_down(self, name: str) -> bool:
        status = self._pool.status(name)
        return status.state is State.FAILED or (status.state is State.STOPPED and not status.on_demand)

    async def _save(self) -> None:
        entries = [
            StoredModel(each.key, each.gateway, each.origin, plain(each.model), each.base)
            for each in self._wanted
        ]
        try:
            await self._store.save(entries)
        except (
            ModeldError
        ) as error:  # the models run all the same; the next start would not know of the change
            _log.warning("the effective configuration could not be saved: %s", error)

    async def _reload(self, cause: str) -> None:
        try:
            result = await self._apply(Change("reload"))
        except ModeldError as error:
            _log.error("%s: the configuration stays as it is: %s", cause, error)
        else:
            for note in result.plan.notes:
                _log.warning("%s", note)

    async def _watch(self, file: Path) -> None:
        """Reload the file when it has changed and has come to rest."""
        read = seen = _mark(file)
        while True:
            await asyncio.sleep(WATCH_S)
            mark = _mark(file)
            if mark is not None and mark == seen and mark != read:
                read = mark
                await self._reload(f"{file} has changed")
            seen = mark


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:  # being replaced at this moment, or gone: nothing to read
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _looked_at(doing: asyncio.Task[ChangeResult]) -> None:
    """See to it that an error whose reader has left is no surprise to anybody."""
    if not doing.cancelled():
        doing.exception()


def _differ(old: Wanted, new: Wanted) -> bool:
    return not diff([old], [new], additive=False).empty


def _plan(difference: Difference, notes: Sequence[str]) -> ChangePlan:
    return ChangePlan(
        difference.adds,
        difference.removes,
        tuple(Replacement(name, keys) for name, keys in difference.replaces),
        tuple(Replacement(name, keys) for name, keys in difference.updates),
        difference.unchanged,
        tuple(notes),
    )


def _in_words(plan: ChangePlan) -> str:
    parts = [
        f"{len(group)} {word}"
        for group, word in (
            (plan.adds, "added"),
            (plan.removes, "removed"),
            (plan.replaces, "replaced"),
            (plan.updates, "updated"),
            (plan.unchanged, "unchanged"),
        )
        if group
    ]
    return ", ".join(parts) or "no models"


def _spec(each: Wanted, config: Config) -> ModelSpec:
    model = each.model
    return ModelSpec(
        name=each.key,
        usecase=model.usecase,
        loader=model.loader,
        reference=None if model.loader == "fake" else _reference(model.model, Path(each.base)),
        options=each.options,
        template_kwargs=model.chat_template_kwargs,
        resources=Resources(model.gpus, model.ram, model.vram, model.num_cpus),
        start_timeout_s=model.start_timeout,
        max_queue=config.max_queue,
        max_ongoing=model.max_ongoing_requests,
        on_demand=model.load == "on_demand",
        keep_alive_s=config.keep_alive_for(model),
        pinned=model.pin,
        priority=model.priority,
        scaling=_scaling(model),
        gateway=each.gateway,
        aliases=model.aliases,
        fingerprint=each.fingerprint,
    )


def _scaling(model: Model) -> Scaling:
    auto = model.autoscaling_config
    if auto is None:
        return Scaling(model.num_replicas, model.num_replicas, model.num_replicas)
    first = auto.min_replicas if auto.initial_replicas is None else auto.initial_replicas
    return Scaling(
        auto.min_replicas,
        auto.max_replicas,
        first,
        auto.target_ongoing_requests,
        auto.upscale_delay_s,
        auto.downscale_delay_s,
    )


def _reference(reference: str, base: Path) -> str:
    """Return a reference that stands for itself, wherever it is resolved: relative paths are made absolute."""
    try:
        found = parse(reference, base)
    except UsageError:
        return reference  # the resolver says what is wrong with it
    match found:
        case LocalRef(path):
            return str(path)
        case HubRef(repo) if (base / repo).is_dir():
            return str(base / repo)
    return reference

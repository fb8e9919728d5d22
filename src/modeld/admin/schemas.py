"""The bodies of the admin socket: JSON documents and lines of NDJSON.

A stream of a move (load, unload, restart) is any number of FeedEvent lines and then one `MoveEnd`; that of a
change is any number of FeedEvent lines and then one `ChangeEnd`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from modeld.hardware.footprint import Footprint
from modeld.hardware.machine import Device
from modeld.protocol.capabilities import Capability
from modeld.store.job_records import ItemFailure
from modeld.supervisor.states import Status


class MemoryLimits(msgspec.Struct, frozen=True):
    """What models may take: `ram`, and `vram` of each GPU, in bytes, None for what there is; `headroom` is
    the share of each memory that is left free.
    """

    ram: int | None = None
    vram: int | None = None
    headroom: float = 0.1


class DaemonInfo(msgspec.Struct, frozen=True):
    """The daemon about itself. `uptime` is in seconds, `address` the public one, e.g. "http://127.0.0.1:8000".

    `cache_dir` is where its models are, `memory` what its configuration lets them take.
    """

    version: str
    pid: int
    uptime: float
    address: str
    cache_dir: str = ""
    memory: MemoryLimits = MemoryLimits()


class StatusReply(DaemonInfo, frozen=True):
    """GET /status."""

    models: tuple[Status, ...] = ()


class DeviceReport(msgspec.Struct, frozen=True):
    """A device and what modeld does with it; bytes.

    `usable`: what models may hold in all. `held`: what is promised to replicas, by their key. `others`: what
    other programs use, in words.
    """

    device: Device
    usable: int
    held: dict[str, int] = {}
    others: str = ""


class DevicesReply(msgspec.Struct, frozen=True):
    """GET /devices. `message` says why no GPU is seen. `loaders`: whether each one's engine is there."""

    devices: tuple[DeviceReport, ...]
    message: str = ""
    loaders: dict[str, Capability] = {}


class EstimateReply(msgspec.Struct, frozen=True):
    """GET /models/{name}/estimate: the footprint modeld uses now, and what it would estimate without
    knowing better. `fits` says in one sentence where it would go, or why it would not fit.
    """

    name: str
    footprint: Footprint
    estimate: Footprint | None = None
    fits: str = ""


Strategy = Literal["blue_green", "stop_start"]

LARGEST_CHANGE = 4 * 1024**2
"""Most bytes of a `Change` as JSON; a configuration file is at most 1 MiB, aliases may make more of it."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """POST /changes: a change to the running daemon's models.

    kind "add": the models of `document` are added, those there already replaced if they differ. "remove":
    `names` go. "reconcile": the models are exactly those of `document`, or, with `document` None, those of
    the last effective configuration, each brought to what it should be. "reload": the daemon's own file is
    read again.

    `document` is the plain data of a configuration file, checked by whoever sends it (who knows the lines);
    relative paths in it are taken from the folder `base`. `dry_run` answers with the plan alone. `strategy`
    None is the configuration's.
    """

    kind: Literal["add", "remove", "reconcile", "reload"]
    document: dict[str, Any] | None = None
    base: str = ""
    names: tuple[str, ...] = ()
    strategy: Strategy | None = None
    dry_run: bool = False


class Replacement(msgspec.Struct, frozen=True):
    """A model that changes; `keys` are its configuration keys that differ, e.g. "num_gpus"."""

    name: str
    keys: tuple[str, ...]


class ChangePlan(msgspec.Struct, frozen=True):
    """What a change does, by model.

    `replaces`: their workers are replaced. `updates`: they take new settings as they run (replica counts,
    keep-alive, aliases, …). `notes`: sentences about what else there is to know, e.g. settings that take
    effect at the next start only.
    """

    adds: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    replaces: tuple[Replacement, ...] = ()
    updates: tuple[Replacement, ...] = ()
    unchanged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """How one model's part of a change ended; `message` is one sentence."""

    name: str
    ok: bool
    message: str


class ChangeResult(msgspec.Struct, frozen=True):
    """A change that was carried out; `outcomes` only names models that were added, replaced or removed."""

    plan: ChangePlan
    outcomes: tuple[Outcome, ...] = ()


class JobReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job; times are UTC seconds since the epoch. `waiting`, `done` and `failed` count items.

    `caller` is its identity. `code` and `error` are those of a job that ended in error; `failures` say how
    the first items failed that did, where they were asked for.
    """

    id: str
    caller: str
    kind: str
    model: str
    status: str
    items: int
    waiting: int
    done: int
    failed: int
    created: float
    begun: float | None = None
    ended: float | None = None
    deadline: float | None = None
    expires: float | None = None
    code: str | None = None
    error: str | None = None
    failures: tuple[ItemFailure, ...] = ()

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.ended is not None


class JobsReply(msgspec.Struct, frozen=True):
    """GET /jobs, the newest first."""

    jobs: tuple[JobReport, ...] = ()


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong: `message` for people, `code` and `kind` (the error's class) for programs."""

    message: str
    code: str
    kind: str = "internal"


class ErrorReply(msgspec.Struct, frozen=True):
    """Every answer that is not 2xx."""

    error: ErrorBody


class MoveEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line of a move: exactly one of the two is set."""

    done: Status | None = None
    error: ErrorBody | None = None


class ChangeEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line of a change: exactly one of the two is set."""

    done: ChangeResult | None = None
    error: ErrorBody | None = None

"""Whether models that no daemon knows of would fit on this machine, as a daemon would judge it."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Sequence

import msgspec

from modeld.clock import SystemClock
from modeld.hardware.machine import Machine
from modeld.hardware.probe import system_probe
from modeld.library.entry import Entry
from modeld.library.estimate import estimate
from modeld.supervisor.observation import Charge, Limits, Observation
from modeld.supervisor.scheduling.demand import Found, Holding, Never, Phase, Space
from modeld.supervisor.scheduling.placement import find
from modeld.supervisor.sizing import demand, wants_gpu
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State, Status

_PHASES = {
    State.READY: Phase.SERVING,
    State.DRAINING: Phase.LEAVING,
    State.STOPPING: Phase.LEAVING,
}


class Fits(enum.StrEnum):
    """YES: now, if need be in the place of loaded models. NOT_NOW: what others hold, or models that may not
    be sent away, is in the way. UNKNOWN: nothing here runs it.
    """

    YES = "yes"
    NOT_NOW = "not now"
    NO = "no"
    UNKNOWN = "-"


class Fit(msgspec.Struct, frozen=True):
    """Whether a model fits, the bytes it would take in all, and why it does not."""

    fits: Fits = Fits.UNKNOWN
    bytes: int = 0
    why: str = ""


async def fit_of(entries: Iterable[Entry], limits: Limits, running: Sequence[Status] = ()) -> list[Fit]:
    """Judge models, in their order, with the settings that a configuration has by default.

    `limits` are those of the configuration, `running` the models of the daemon that runs on this machine.
    """
    replicas = {
        f"{model.name}/{number}": (model, replica)
        for model in running
        for number, replica in enumerate(model.replicas)
        if replica.devices
    }
    holdings = [
        Holding(key, model.name, copy.devices, _PHASES.get(copy.state, Phase.LOADING), pinned=model.pinned)
        for key, (model, copy) in replicas.items()
    ]
    seen = Observation(system_probe(os.environ), SystemClock(), limits)
    pids = {key: copy.pid for key, (_, copy) in replicas.items() if copy.pid is not None}
    await seen.look(lambda: pids, fresh=True)
    spaces = seen.spaces(Charge(holding.held, holding.phase) for holding in holdings)
    return [_fit(entry, seen.machine, spaces, holdings) for entry in entries]


def _fit(entry: Entry, machine: Machine, spaces: Sequence[Space], holdings: Sequence[Holding]) -> Fit:
    if entry.error or not entry.loader or entry.metadata is None:
        return Fit()
    spec = ModelSpec(entry.path, entry.usecase, entry.loader, entry.path)
    gpu = wants_gpu(spec, machine)
    footprint = estimate(
        entry.metadata, entry.loader, {}, gpu=gpu, usecase=entry.usecase, mmproj=entry.projector
    )
    wanted = demand(spec, footprint, gpu=gpu)
    answer, size = find(wanted, spaces, holdings, evict=True), wanted.ram + wanted.vram
    if isinstance(answer, Found):
        return Fit(Fits.YES, size)
    return Fit(Fits.NO if answer.never is Never.EVER else Fits.NOT_NOW, size, answer.message)

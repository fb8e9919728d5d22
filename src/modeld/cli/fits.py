"""Whether models that no daemon knows of would fit on this machine, as a daemon would judge it."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable

import msgspec

from modeld.clock import SystemClock
from modeld.hardware import host
from modeld.hardware.machine import Machine
from modeld.hardware.probe import system_probe
from modeld.library.entry import Entry
from modeld.library.estimate import estimate
from modeld.supervisor.memory import Memory
from modeld.supervisor.observation import Limits
from modeld.supervisor.scheduling.demand import Found, Never
from modeld.supervisor.sizing import demand, wants_gpu
from modeld.supervisor.spec import ModelSpec


class Fits(enum.StrEnum):
    """NOT_NOW: what others hold, loaded models among them, is in the way. UNKNOWN: nothing here runs it."""

    YES = "yes"
    NOT_NOW = "not now"
    NO = "no"
    UNKNOWN = "-"


class Fit(msgspec.Struct, frozen=True):
    """Whether a model fits, the bytes it would take in all, and why it does not."""

    fits: Fits = Fits.UNKNOWN
    bytes: int = 0
    why: str = ""


async def fit_of(entries: Iterable[Entry]) -> list[Fit]:
    """Judge models, in their order, with the settings that a configuration has by default.

    It is asked with nothing loaded by the asker: a daemon would unload idle models besides.
    """
    memory = Memory(system_probe(os.environ), SystemClock(), Limits(), cores=host.cores())
    machine = await memory.look(fresh=True)
    return [_fit(entry, machine, memory) for entry in entries]


def _fit(entry: Entry, machine: Machine, memory: Memory) -> Fit:
    if entry.error or not entry.loader or entry.metadata is None:
        return Fit()
    spec = ModelSpec(entry.path, entry.usecase, entry.loader, entry.path)
    gpu = wants_gpu(spec, machine)
    footprint = estimate(
        entry.metadata, entry.loader, {}, gpu=gpu, usecase=entry.usecase, mmproj=entry.projector
    )
    wanted = demand(spec, footprint, gpu=gpu)
    answer, size = memory.would(wanted), wanted.ram + wanted.vram
    if isinstance(answer, Found):
        return Fit(Fits.YES, size)
    return Fit(Fits.NO if answer.never is Never.EVER else Fits.NOT_NOW, size, answer.message)

"""From what is known of a model to what it asks of the machine: explicit, else learned, else estimated."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from modeld.errors import ModeldError
from modeld.hardware.footprint import Footprint, Line, Source, Where
from modeld.hardware.machine import HOST, Kind, Machine
from modeld.supervisor.scheduling.placement import Demand, gib
from modeld.supervisor.spec import ModelSpec

_log = logging.getLogger("modeld.supervisor")

Estimate: TypeAlias = Callable[..., Awaitable[Footprint]]
"""`estimate(path, loader, options, gpu=…, usecase=…)`. Raises LoadFailed for a file that is no model."""

GPU_LOADERS = frozenset({"vllm", "diffusers", "llama_server", "stable_diffusion_cpp", "whispercpp"})
"""Loaders whose engine uses a GPU by itself when there is one."""

SPREADING = frozenset({"llama_server"})
"""Loaders whose engine can split one model over several GPUs by its layers."""

OOM_GROWTH = 1.25
"""After running out of memory a model is expected to need so many times what it was promised."""


class Known(Protocol):
    """A learned footprint in bytes, and the seconds its last load took."""

    @property
    def ram(self) -> int:
        """Host memory."""
        ...

    @property
    def vram(self) -> int:
        """GPU memory in all."""
        ...

    @property
    def load_s(self) -> float:
        """Seconds of the last load."""
        ...


class Learned(Protocol):
    """Footprints measured in earlier runs, by the model's fingerprint and the device's model name."""

    async def get(self, fingerprint: str, device: str) -> Known | None:
        """Return what was measured, if anything was."""
        ...

    async def learn(self, fingerprint: str, device: str, *, ram: int, vram: int, load_s: float) -> Known:
        """Remember a measurement."""
        ...

    async def raise_to(self, fingerprint: str, device: str, *, ram: int, vram: int) -> Known:
        """Remember that it needs at least so much."""
        ...


@dataclass(frozen=True)
class Size:
    """One replica's footprint, and the demand that follows from it. `device` is the key of what is learned.

    `load_s`: seconds its last load took, 0 when unknown. `explicit`: the figure is the owner's.
    """

    footprint: Footprint
    demand: Demand
    device: str
    load_s: float = 0.0

    @property
    def explicit(self) -> bool:
        """Whether the owner's figure stands, whatever is measured."""
        return self.footprint.source is Source.EXPLICIT

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.demand.ram + self.demand.vram


class Sizing:
    """Works out sizes; remembers measurements."""

    def __init__(self, estimate: Estimate, learned: Learned) -> None:
        self._estimate = estimate
        self._learned = learned

    async def size(self, spec: ModelSpec, path: Path | None, machine: Machine) -> Size:
        """Return the size of one replica on this machine. Raises LoadFailed."""
        gpu = wants_gpu(spec, machine)
        device = device_name(machine, gpu=gpu)
        known = await self._known(spec.fingerprint, device)
        explicit = _explicit(spec, gpu)
        footprint = explicit
        if explicit is None and known is not None:
            footprint = _footprint(Source.LEARNED, known.ram, known.vram, f"measured on {device}")
        ram_open = spec.resources.ram is None and footprint is not None and not footprint.total(Where.RAM)
        if footprint is None or (gpu and ram_open):
            estimate = await self.estimate(spec, path, machine)
            footprint = estimate if footprint is None else _with_ram_of(footprint, estimate)
        if gpu and spec.resources.ram is not None and explicit is None:
            own = Line("host memory, as configured", spec.resources.ram, Where.RAM)
            lines = tuple(line for line in footprint.lines if line.where is Where.GPU)
            footprint = Footprint(footprint.source, (*lines, own), footprint.note)
        load_s = known.load_s if known is not None else 0.0
        return Size(footprint, demand(spec, footprint, gpu=gpu), device, load_s)

    async def estimate(self, spec: ModelSpec, path: Path | None, machine: Machine) -> Footprint:
        """Return what the model's metadata alone says."""
        gpu = wants_gpu(spec, machine)
        return await self._estimate(path, spec.loader, spec.options, gpu=gpu, usecase=spec.usecase)

    async def measured(self, spec: ModelSpec, size: Size, *, ram: int, vram: int, load_s: float) -> None:
        """Remember what a load really took, in bytes and seconds."""
        if ram or vram:
            try:
                await self._learned.learn(spec.fingerprint, size.device, ram=ram, vram=vram, load_s=load_s)
            except ModeldError as error:  # the next run estimates again; this one goes on
                _log.warning("what it took cannot be kept: %s", error, extra={"model": spec.name})

    async def ran_out(self, spec: ModelSpec, size: Size, promised: Mapping[str, int]) -> str:
        """Remember that the promise was too small; return in words what follows from it."""
        if size.explicit:
            return f"the {gib(size.total)} of the configuration are too little: raise vram or ram"
        on_host = promised.get(HOST, 0)
        on_gpus = sum(bytes_ for id_, bytes_ in promised.items() if id_ != HOST)
        # What ran out is the GPU when there is one: the host's own kills are rarer than cudaMalloc's.
        ram = on_host if on_gpus else int(on_host * OOM_GROWTH)
        vram = int(on_gpus * OOM_GROWTH)
        try:
            known = await self._learned.raise_to(spec.fingerprint, size.device, ram=ram, vram=vram)
        except ModeldError as error:
            return f"that cannot be kept for the next try: {error}"
        return f"it will ask for {gib(known.vram or known.ram)} from now on"

    async def _known(self, fingerprint: str, device: str) -> Known | None:
        try:
            return await self._learned.get(fingerprint, device)
        except ModeldError as error:  # a store in trouble must not keep a model from loading
            _log.warning("earlier runs cannot be looked up: %s", error)
            return None


def wants_gpu(spec: ModelSpec, machine: Machine) -> bool:
    """Say whether a model is to run on a GPU: what the owner said, else whether there is one for it.

    A GPU that is lost for the moment is still one: no model moves to the CPU by itself.
    """
    resources = spec.resources
    if resources.gpus is not None:
        return resources.gpus > 0
    if resources.vram:
        return True
    has = bool(machine.gpus) or any(device.kind is Kind.UNIFIED for device in machine.devices)
    return has and spec.loader in GPU_LOADERS and spec.options.get("n_gpu_layers") != 0


def device_name(machine: Machine, *, gpu: bool) -> str:
    """Return the name under which footprints are learned: the first GPU's model, or "host"."""
    return machine.gpus[0].name if gpu and machine.gpus else HOST


def demand(spec: ModelSpec, footprint: Footprint, *, gpu: bool) -> Demand:
    """Turn a footprint into a demand, under the owner's `num_gpus`."""
    ram, vram = footprint.total(Where.RAM), footprint.total(Where.GPU)
    if not gpu:
        return Demand(ram=ram + vram)
    gpus = spec.resources.gpus
    if gpus is not None and gpus >= 1:
        return Demand(ram=ram, vram=spec.resources.vram or 0, gpus=int(gpus))
    if gpus is not None and spec.resources.vram is None:
        return Demand(ram=ram, share=gpus)
    return Demand(ram=ram, vram=vram, spread=spec.loader in SPREADING)


def _explicit(spec: ModelSpec, gpu: bool) -> Footprint | None:
    ram, vram = spec.resources.ram, spec.resources.vram
    if ram is None and vram is None:
        return None
    if gpu and vram is None:
        return None  # only the host's part is given; the GPU's is worked out
    return _footprint(Source.EXPLICIT, ram or 0, vram or 0, "as configured")


def _footprint(source: Source, ram: int, vram: int, note: str) -> Footprint:
    lines = [Line("GPU memory", vram, Where.GPU)] if vram else []
    lines += [Line("host memory", ram, Where.RAM)] if ram else []
    return Footprint(source, tuple(lines), note)


def _with_ram_of(footprint: Footprint, estimate: Footprint) -> Footprint:
    """Add the estimate's host part to a figure that speaks of the GPU alone."""
    host = tuple(line for line in estimate.lines if line.where is Where.RAM)
    return Footprint(footprint.source, footprint.lines + host, footprint.note)

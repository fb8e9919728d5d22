"""The one way to ask what this machine has."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from modeld.clock import SystemClock
from modeld.hardware import apple, host
from modeld.hardware.machine import HOST, Condition, Device, Kind, Machine
from modeld.hardware.nvml import Nvml
from modeld.hardware.visible import VARIABLE

RECORDING = "MODELD_NVML_RECORDING"
"""Environment variable: a file whose recorded NVML answers in the place of the driver's."""


class SystemProbe:
    """`machine.Probe` of this machine: its RAM, then its GPUs. Nothing is asked before the first look."""

    def __init__(self, nvml: Nvml | None, *, no_gpus: str = "") -> None:
        """`nvml` is None on a system without NVIDIA's driver; then `no_gpus` says why there are no GPUs."""
        self._nvml = nvml
        self._no_gpus = no_gpus

    def look(self) -> Machine:
        """Return the present facts; see `Probe.look`."""
        memory = _memory(Kind.HOST, "RAM")
        if self._nvml is None:
            return Machine((memory,), self._no_gpus)
        gpus, message = self._nvml.gpus()
        return Machine((memory, *gpus), message)

    def rest(self) -> None:
        """Let go of the driver until the next look, so that idle GPUs can sleep."""
        if self._nvml is not None:
            self._nvml.close()


class UnifiedProbe:
    """`machine.Probe` of a Mac with Apple silicon: one device that is RAM and GPU memory at once."""

    def __init__(self) -> None:
        self._chip = ""

    def look(self) -> Machine:
        """Return the present facts; see `Probe.look`."""
        self._chip = self._chip or apple.chip()
        return Machine((_memory(Kind.UNIFIED, self._chip),), "the GPU shares the host's memory")

    def rest(self) -> None:
        """Nothing is held."""


def _memory(kind: Kind, name: str) -> Device:
    try:
        total = host.total_memory()
        free = min(host.available_memory(), total)
    except (OSError, ValueError, psutil.Error) as error:  # e.g. a /proc that this sandbox hides
        message = f"the system does not tell its memory: {error}"
        return Device(HOST, kind, name, 0, 0, condition=Condition.DENIED, message=message)
    return Device(HOST, kind, name, total, free)


def system_probe(env: Mapping[str, str]) -> SystemProbe | UnifiedProbe:
    """Return the probe for this machine, or for the recording that MODELD_NVML_RECORDING names.

    CUDA_VISIBLE_DEVICES in `env` restricts what is seen. Raises UsageError for a recording that cannot be
    read.
    """
    clock = SystemClock()
    restriction = env.get(VARIABLE)
    if file := env.get(RECORDING):
        from modeld.hardware.recorded import RecordedNvml, read_recording

        return SystemProbe(RecordedNvml(read_recording(Path(file)), visible=restriction, clock=clock))
    if apple.is_apple_silicon():
        return UnifiedProbe()
    if sys.platform == "darwin":
        return SystemProbe(None, no_gpus=f"a Mac with {platform.machine()} has no GPU that models can use")
    return SystemProbe(Nvml(visible=restriction, clock=clock))

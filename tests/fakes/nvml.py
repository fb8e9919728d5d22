"""Recorded machines, by name, and a GPU in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modeld.clock import Clock
from modeld.hardware.recorded import Frame, RecordedDevice, RecordedNvml, Recording, read_recording

GIB = 1 << 30

RECORDINGS = Path(__file__).parent / "recordings"


def recording_file(name: str) -> Path:
    """Return the file of a recording, for MODELD_NVML_RECORDING."""
    return RECORDINGS / f"{name}.json"


def recorded(name: str, clock: Clock, *, visible: str | None = None) -> RecordedNvml:
    """Return `Nvml` on a recording of tests/fakes/recordings."""
    return RecordedNvml(read_recording(recording_file(name)), visible=visible, clock=clock)


def gpu(
    uuid: str, *, bus: int = 1, total: int = 24 * GIB, free: int | None = None, **more: Any
) -> RecordedDevice:
    """Return a GPU; all of its memory is free unless told otherwise."""
    return RecordedDevice(
        uuid=uuid,
        name=f"Test GPU {uuid[-1]}",
        bus_id=f"00000000:{bus:02X}:00.0",
        total=total,
        free=total if free is None else free,
        **more,
    )


def machine(*devices: RecordedDevice, frames: list[Frame] | None = None, sticky: bool = True) -> Recording:
    """Return a recording of these GPUs."""
    return Recording("made by a test", list(devices), frames or [Frame()], sticky)

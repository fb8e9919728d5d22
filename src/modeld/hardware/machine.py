"""What a machine has, as facts: its memories, what is free in each, and which process holds how much."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

HOST = "host"
"""The id of the device that is the host's RAM; on unified memory (Apple silicon) it is the only device."""


class Kind(enum.StrEnum):
    """What sort of memory a device has."""

    HOST = "host"  # RAM, as far as this process's cgroup lets it be used
    GPU = "gpu"
    UNIFIED = "unified"  # RAM that is the GPU's memory too


class Condition(enum.StrEnum):
    """Whether a device can be used. Anything but OK comes with a message for people."""

    OK = "ok"
    LOST = "lost"  # it was there and does not answer: suspended, fallen off the bus, driver replaced
    DENIED = "denied"  # it is there and this user may not ask
    PARTITIONED = "partitioned"  # MIG: its parts are devices of their own, which are not used


class Device(msgspec.Struct, frozen=True):
    """One memory. `total` and `free` are bytes, 0 when unknown.

    `id` is stable over restarts: "host", or a GPU's UUID. `index` is the GPU's number in PCI bus order, None
    for the host. `processes` maps a pid to the bytes it holds there; None when the driver does not tell (then
    only `free` is known).
    """

    id: str
    kind: Kind
    name: str
    total: int
    free: int
    index: int | None = None
    processes: dict[int, int] | None = None
    condition: Condition = Condition.OK
    message: str = ""


class Machine(msgspec.Struct, frozen=True):
    """All devices, the host first. `message` says why no GPU is seen, "" when there are some."""

    devices: tuple[Device, ...]
    message: str = ""

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs, in PCI bus order, those in a bad condition included."""
        return tuple(device for device in self.devices if device.kind is Kind.GPU)


class Probe(Protocol):
    """Looks at the machine."""

    def look(self) -> Machine:
        """Return the present facts. Blocks for milliseconds; never raises: trouble is a condition."""
        ...

    def rest(self) -> None:
        """Let go of the driver until the next look, so that idle GPUs can sleep."""
        ...

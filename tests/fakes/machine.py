"""A machine whose memory a test sets, and which a test can make lie."""

from __future__ import annotations

from collections.abc import Mapping

from modeld.hardware.machine import HOST, Condition, Device, Kind, Machine

GIB = 1 << 30


class FakeProbe:
    """`machine.Probe` by hand: RAM of `ram` bytes, and GPUs by id.

    `others` maps a device id to the bytes that other programs use there, `stuck` a GPU to bytes by pid.
    `gone` GPUs do not answer. `looks` counts.
    """

    def __init__(self, ram: int, gpus: Mapping[str, int] | None = None) -> None:
        self.ram = ram
        self.gpus = dict(gpus or {})
        self.others: dict[str, int] = {}
        self.stuck: dict[str, dict[int, int]] = {}
        self.gone: set[str] = set()
        self.looks = 0
        self.rests = 0

    def look(self) -> Machine:
        """Return what the test has set."""
        self.looks += 1
        host = Device(HOST, Kind.HOST, "RAM", self.ram, self.ram - self.others.get(HOST, 0))
        return Machine((host, *(self._gpu(index, id_) for index, id_ in enumerate(self.gpus))))

    def rest(self) -> None:
        """Count it."""
        self.rests += 1

    def _gpu(self, index: int, id_: str) -> Device:
        total = self.gpus[id_]
        if id_ in self.gone:
            lost, words = Condition.LOST, f"GPU {index} does not answer"
            return Device(id_, Kind.GPU, "Fake", total, 0, index, None, lost, words)
        stuck = self.stuck.get(id_, {})
        free = total - self.others.get(id_, 0) - sum(stuck.values())
        return Device(id_, Kind.GPU, "Fake", total, free, index, dict(stuck))

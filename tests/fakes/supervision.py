"""Small stand-ins for what a pool is given: footprints without a store, engines that are there, a counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeld.hardware.footprint import Footprint, Line, Source, Where
from modeld.protocol.capabilities import Capability
from modeld.telemetry.metrics import EvictionReason, LoadOutcome


@dataclass
class Known:
    """What was learned."""

    ram: int
    vram: int
    load_s: float


class MemoryOfRuns:
    """`sizing.Learned` in a dictionary."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Known] = {}
        self.raised: list[tuple[str, int, int]] = []

    async def get(self, fingerprint: str, device: str) -> Known | None:
        """Return what was learned of a model that has a fingerprint."""
        return self.known.get((fingerprint, device)) if fingerprint else None

    async def learn(self, fingerprint: str, device: str, *, ram: int, vram: int, load_s: float) -> Known:
        """Learn."""
        self.known[(fingerprint, device)] = known = Known(ram, vram, load_s)
        return known

    async def raise_to(self, fingerprint: str, device: str, *, ram: int, vram: int) -> Known:
        """Never lower."""
        self.raised.append((fingerprint, ram, vram))
        old = self.known.get((fingerprint, device), Known(0, 0, 0.0))
        self.known[(fingerprint, device)] = known = Known(max(old.ram, ram), max(old.vram, vram), old.load_s)
        return known


ENGINE_OVERHEAD = 1 << 20


async def estimate(
    path: Path | None, loader: str, options: Mapping[str, Any], *, gpu: bool, usecase: str
) -> Footprint:
    """Estimate by the size of the files."""
    files = [path] if path is not None and path.is_file() else []
    if path is not None and path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    where = Where.GPU if gpu else Where.RAM
    lines = (Line("files", size, where), Line("engine", ENGINE_OVERHEAD, Where.RAM))
    return Footprint(Source.ESTIMATED, lines)


class Engines:
    """`world.Engines`: everything is there, but for what `absent` names."""

    def __init__(self) -> None:
        self.absent: dict[str, Capability] = {}

    async def find(self, loader: str, *, binary: str | None = None, python: str | None = None) -> Capability:
        """Return what the test has set, under the interpreter that the model names."""
        return self.absent.get(loader) or Capability(True, "there", python=python or "")


class Recorder:
    """`world.Observer` that keeps what it is told."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str]] = []
        self.evictions: list[tuple[str, str]] = []
        self.waits: list[tuple[str, float]] = []
        self.footprints: list[tuple[str, int, int]] = []
        self.overtakings: Counter[str] = Counter()

    def model_loaded(self, model: str, loader: str, seconds: float, outcome: LoadOutcome) -> None:
        """Keep it."""
        self.loads.append((model, outcome))

    def evicted(self, model: str, reason: EvictionReason) -> None:
        """Keep it."""
        self.evictions.append((model, reason))

    def queue_waited(self, model: str, seconds: float) -> None:
        """Keep it."""
        self.waits.append((model, seconds))

    def footprint_measured(self, model: str, expected: int, measured: int) -> None:
        """Keep it."""
        self.footprints.append((model, expected, measured))

    def overtaken(self, model: str) -> None:
        """Count it."""
        self.overtakings[model] += 1

"""A hub for a test, a pull from it, and what a pull leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from modeld.library.pull.client import Progress, pull
from modeld.library.pull.record import Pulled
from modeld.library.pull.transfer import Limits
from modeld.library.refs import HubRef
from tests.harness.hub import COMMIT

BODY = b"GGUF" + bytes(range(256)) * 8000
NAME = "tiny-Q4_K_M.gguf"
REF = HubRef("org/tiny")
FAST = Limits(stall=120.0, tries=3, pause=0.0)


class Heard:
    """Keeps what a pull tells, and lets a test wait for a stage."""

    def __init__(self) -> None:
        self.all: list[Progress] = []
        self._stages: dict[str, asyncio.Event] = {}

    def __call__(self, progress: Progress) -> None:
        self.all.append(progress)
        self.at(progress.stage).set()

    def at(self, stage: str) -> asyncio.Event:
        """Return what is set once this stage has come."""
        return self._stages.setdefault(stage, asyncio.Event())

    @property
    def why(self) -> list[str]:
        """The reasons of tries that failed."""
        return [each.why for each in self.all if each.why]


async def pulled(
    cache: Path, ref: HubRef = REF, heard: Callable[[Progress], None] | None = None, limits: Limits = FAST
) -> Pulled:
    """Pull with short patience."""
    return await pull(cache, ref, heard or Heard(), limits=limits)


def left(cache: Path) -> list[str]:
    """Return the files below a repository's folder, but the records; parts by their folder and bytes."""
    root = cache / "hub"
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.parent.name != ".pulled":
            name = str(path.relative_to(root)).replace(COMMIT, "COMMIT")
            part = path.parent.name == ".incoming"
            found.append(f"{path.parent.relative_to(root)}: {path.stat().st_size}" if part else name)
    return found


DONE = [f"org/tiny/COMMIT/{NAME}/{NAME}"]

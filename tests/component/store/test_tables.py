from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from modeld.store.db import Database
from modeld.store.effective import EffectiveConfig, StoredModel
from modeld.store.footprints import Footprints, Learned
from tests.fakes.clock import FakeClock

GIB = 1024**3


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock(epoch=1_700_000_000.0)


@pytest.fixture
async def db(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Database]:
    """Give an open store."""
    async with Database.open(tmp_path / "modeld.db", clock) as opened:
        yield opened


async def test_footprints_are_kept_by_configuration_and_device(db: Database, clock: FakeClock) -> None:
    """What one device taught says nothing of another, nor of other options; times come from the clock."""
    footprints = Footprints(db)
    assert await footprints.get("a1", "host") is None
    first = await footprints.learn("a1", "NVIDIA H200", ram=GIB, vram=8 * GIB, load_s=4.5)
    assert first == Learned(GIB, 8 * GIB, 4.5, 1, 1_700_000_000.0)
    clock.advance(60)
    second = await footprints.learn("a1", "NVIDIA H200", ram=2 * GIB, vram=4 * GIB, load_s=3.0)
    assert second == Learned(2 * GIB, 7 * GIB, 3.0, 2, 1_700_000_060.0)
    assert await footprints.get("a1", "NVIDIA H200") == second
    assert await footprints.get("a1", "host") is None
    assert await footprints.get("b2", "NVIDIA H200") is None


async def test_running_out_of_memory_is_remembered(db: Database) -> None:
    """The need is raised and never lowered, also for a configuration that never loaded."""
    footprints = Footprints(db)
    await footprints.raise_to("a1", "host", ram=5, vram=0)
    assert await footprints.raise_to("a1", "host", ram=3, vram=1) == await footprints.get("a1", "host")
    assert await footprints.get("a1", "host") == Learned(5, 1, 0.0, 0, 1_700_000_000.0)


async def test_measurements_at_once_are_all_counted(db: Database) -> None:
    """Replicas of one model that report in the same moment lose no run."""
    footprints = Footprints(db)
    async with asyncio.TaskGroup() as group:
        for size in range(50):
            group.create_task(footprints.learn("a1", "host", ram=size, vram=0, load_s=0))
    known = await footprints.get("a1", "host")
    assert known is not None
    assert (known.runs, known.ram) == (50, 49)


async def test_sizes_of_any_machine_fit(db: Database) -> None:
    """Bytes beyond 32 bits come back whole."""
    await Footprints(db).learn("a1", "host", ram=3 * 1024**4 + 1, vram=0, load_s=0)
    known = await Footprints(db).get("a1", "host")
    assert known is not None
    assert known.ram == 3 * 1024**4 + 1


def model(key: str, **document: object) -> StoredModel:
    """Return a stored model."""
    return StoredModel(key, "", "file", {"name": key, **document}, "/etc/modeld")


async def test_never_saved_is_not_the_same_as_empty(db: Database) -> None:
    """Before the first save there is nothing to go back to; after saving no models, there are none."""
    effective = EffectiveConfig(db)
    assert await effective.load() is None
    await effective.save([])
    assert await effective.load() == ()


async def test_a_configuration_comes_back_as_it_was(db: Database) -> None:
    """Order, origin, gateway and nested data are kept; a save replaces all that was there."""
    effective = EffectiveConfig(db)
    await effective.save([model("old1"), model("old2"), model("old3")])
    added = StoredModel(
        "lab/zeta", "lab", "added", {"name": "zeta", "x": [1, 2.5, None, {"ü": True}]}, "/home/u"
    )
    wanted = (added, model("alpha", num_gpus=0.55), model("mid"))
    await effective.save(wanted)
    assert await effective.load() == wanted


async def test_a_save_that_fails_keeps_the_last(db: Database) -> None:
    """Data that is no JSON is refused before anything is replaced."""
    effective = EffectiveConfig(db)
    await effective.save([model("kept")])
    with pytest.raises(TypeError):
        await effective.save([model("new"), model("bad", thing=object())])
    assert await effective.load() == (model("kept"),)


async def test_a_new_life_finds_it(tmp_path: Path, clock: FakeClock) -> None:
    """What one life of the daemon saved, the next one loads."""
    path = tmp_path / "modeld.db"
    async with Database.open(path, clock) as first:
        await EffectiveConfig(first).save([model("a")])
        await Footprints(first).learn("f", "host", ram=1, vram=2, load_s=3)
    async with Database.open(path, clock) as second:
        assert await EffectiveConfig(second).load() == (model("a"),)
        assert await Footprints(second).get("f", "host") == Learned(1, 2, 3.0, 1, 1_700_000_000.0)

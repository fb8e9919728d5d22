"""Any sequence of changes leaves the pool as the record says, and nothing behind."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.errors import LoadFailed, UsageError
from modeld.supervisor.states import State
from tests.component.control.conftest import Room, fake, running
from tests.fakes.machine import GIB
from tests.fakes.worker_link import WAIT_S
from tests.fakes.workers import Workers

NAMES = ("a", "b", "c", "d")
ALIASES = ("x", "y", "a")

MODELS = st.builds(
    lambda name, tokens, ram, more: fake(name, {"tokens": tokens}, ram=f"{ram}GiB", **more),
    st.sampled_from(NAMES),
    st.integers(1, 2),
    st.sampled_from([1, 2, 4, 20]),
    st.fixed_dictionaries(
        {},
        optional={
            "aliases": st.lists(st.sampled_from(ALIASES), max_size=2, unique=True),
            "load": st.sampled_from(["eager", "on_demand"]),
            "num_replicas": st.integers(1, 3),
            "priority": st.integers(-1, 1),
            "max_ongoing_requests": st.integers(1, 2),
            "keep_alive": st.sampled_from(["1h", "never"]),
        },
    ),
)
DOCUMENTS = st.lists(MODELS, max_size=3, unique_by=lambda model: str(model["name"]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), DOCUMENTS, st.sampled_from(["blue_green", "stop_start"])),
        st.tuples(st.just("reconcile"), DOCUMENTS, st.sampled_from(["blue_green", "stop_start"])),
        st.tuples(st.just("remove"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=2)),
        st.tuples(st.just("reload"), DOCUMENTS),
        st.tuples(st.just("wake")),
        st.tuples(st.just("unload"), st.sampled_from(NAMES)),
        st.tuples(st.just("break"), st.sampled_from(NAMES)),
        st.tuples(st.just("restart")),
    ),
    min_size=1,
    max_size=8,
)


def _clash(models: list[dict[str, Any]]) -> bool:
    taken = [name for model in models for name in (model["name"], *model.get("aliases", ()))]
    return len(taken) != len(set(taken))


async def _step(room: Room, step: tuple[Any, ...]) -> bool:
    """Take a step, and return whether it was not refused; a refusal leaves everything as it was."""
    kind, *rest = step
    match kind:
        case "break":
            room.workers.failures[rest[0]] = [LoadFailed("broken", permanent=True)]
        case "unload":
            if rest[0] in room.pool.specs():
                await room.pool.unload(rest[0])
        case _:
            change = room.change("reconcile") if kind == "wake" else room.change(kind)
            if kind == "remove":
                change = room.change("remove", names=tuple(rest[0]))
            if kind in ("add", "reconcile"):
                change = room.change(kind, document={"models": rest[0]}, strategy=rest[1])
            if kind == "reload":
                room.write(*rest[0])
            before = (await room.facts())[:2]
            try:
                await room.apply(change)
            except UsageError:
                assert (await room.facts())[:2] == before
                return False
    return True


async def _rest(room: Room) -> None:
    """Wait until no replica is on its way."""
    ends = {State.READY, State.FAILED, State.STOPPED, State.WAITING}
    async with asyncio.timeout(WAIT_S):
        while not all(each.state in ends for status in room.pool.statuses() for each in status.replicas):
            await asyncio.sleep(0)


async def _run(folder: Path, first: list[dict[str, Any]], lives: list[list[tuple[Any, ...]]]) -> None:
    models: list[dict[str, Any]] = first
    for steps in lives:
        workers = Workers(quick=True)
        async with running(folder, *models, workers=workers, capacity=10 * GIB) as room:
            for step in steps:
                if await _step(room, step) and step[0] == "reload":
                    models = step[1]
                await room.check()
                await _rest(room)
                alive = room.workers.names()
                for status in room.pool.statuses():
                    up = sum(replica.pid is not None for replica in status.replicas)
                    assert alive.count(status.name) == up
                    alive = [name for name in alive if name != status.name]
                assert alive == []


@given(first=DOCUMENTS.filter(lambda models: not _clash(models)), steps=STEPS)
@settings(max_examples=60)
def test_any_changes_leave_the_pool_as_the_record_says(
    first: list[dict[str, Any]], steps: list[tuple[Any, ...]]
) -> None:
    """After each change the stored models are those of the pool, field by field; a change that is refused
    leaves everything; each start gives the file's models and those added; no worker is left of what went.
    """
    lives: list[list[tuple[Any, ...]]] = [[]]
    for step in steps:
        if step[0] == "restart":
            lives.append([])
        else:
            lives[-1].append(step)
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        uvloop.run(_run(Path(folder), first, lives))

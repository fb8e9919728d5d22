"""What a connection remembers, against a plain model, and within its bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from modeld.responses.websocket.memory import ConnectionMemory, measure

LANES = [None, "a", "b"]
ROOM = 400


def item(text: str) -> dict[str, Any]:
    """Return an item of a certain size."""
    return {"type": "message", "text": text}


class Machine(RuleBasedStateMachine):
    """Responses come to be in lanes, some going on from others, some stored, some failing."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = ConnectionMemory(ROOM)
        self.newest: dict[str | None, str] = {}
        self.items: dict[str, tuple[Any, ...]] = {}
        self.stored: set[str] = set()
        self.number = 0

    @rule(
        lane=st.sampled_from(LANES),
        size=st.integers(0, ROOM + 50),
        stored=st.booleans(),
        follow=st.sampled_from(LANES),
    )
    def succeed(self, lane: str | None, size: int, stored: bool, follow: str | None) -> None:
        """A response that may go on from what a lane has takes the place of its own lane's."""
        self.number += 1
        id, previous = f"resp_{self.number}", self.newest.get(follow)
        before = (self.memory.recall(previous) if previous else None) or ()
        more = (item("x" * size),)
        self.memory.remember(lane, id, before, more, stored=stored)
        self.items[id] = (*before, *more)
        if stored:
            self.stored.add(id)
        self.newest[lane] = id
        fits = stored or measure(before) + measure(more) <= ROOM
        assert self.memory.recall(id) == (self.items[id] if fits and not stored else None)

    @rule(lane=st.sampled_from(LANES), other=st.sampled_from(LANES))
    def fail(self, lane: str | None, other: str | None) -> None:
        """A failed continuation forgets its parent in its own lane, and keeps that of another."""
        previous = self.newest.get(other)
        there = self.memory.recall(previous) if previous else None
        self.memory.failed(lane, previous)
        if previous is not None:
            assert self.memory.recall(previous) == (None if lane == other else there)

    @invariant()
    def bounded(self) -> None:
        """Only a lane's newest is there, whole; bytes are within the bound, and counted from above."""
        held = [id for id in self.items if self.memory.recall(id) is not None]
        assert set(held) <= set(self.newest.values()) - self.stored
        for id in held:
            assert self.memory.recall(id) == self.items[id]
        assert sum(measure(self.items[id]) for id in held) <= self.memory.bytes + 2 * len(held)
        assert self.memory.bytes <= ROOM
        if not held:
            assert self.memory.bytes == 0


TestMemory = Machine.TestCase


def test_the_last_silent_lane_goes_first() -> None:
    """Where there is no room for all, the lane that has been silent for longest is forgotten."""
    memory = ConnectionMemory(100, measure=lambda items: 40 * len(items))
    for lane in "ab":
        memory.remember(lane, f"resp_{lane}", (), (item(lane),), stored=False)
    memory.remember("a", "resp_a2", (), (item("a2"),), stored=False)
    memory.remember("c", "resp_c", (), (item("c"),), stored=False)
    assert [memory.recall(id) is not None for id in ("resp_b", "resp_a2", "resp_c")] == [False, True, True]


def test_a_stored_response_takes_the_place_of_its_lanes_last() -> None:
    """What is stored is read from the store, and what it went on from is no longer the newest."""
    memory = ConnectionMemory(1000)
    memory.remember(None, "resp_1", (), (item("x"),), stored=False)
    memory.remember(None, "resp_2", (), (item("y"),), stored=True)
    assert memory.recall("resp_1") is None
    assert memory.recall("resp_2") is None
    assert memory.bytes == 0


def test_a_long_chain_is_measured_once() -> None:
    """Each turn measures what it adds: a history that is remembered is not read again."""
    measured: list[int] = []

    def watched(items: tuple[Any, ...]) -> int:
        measured.append(len(items))
        return len(items)

    memory = ConnectionMemory(10_000, measure=watched)
    before: Any = ()
    for turn in range(50):
        memory.remember(None, f"resp_{turn}", before, (item("x"), item("y")), stored=False)
        before = memory.recall(f"resp_{turn}")
    assert len(before) == memory.bytes == 100
    assert sum(measured) == 100

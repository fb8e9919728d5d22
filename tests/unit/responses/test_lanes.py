"""Which responses of a connection may run: against a plain model of lanes, on random requests and ends."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from modeld.errors import BadRequest, Overloaded
from modeld.responses.websocket.lanes import MOST_NAMED, MOST_RUNNING, MOST_WAITING, Lanes

NAMES = [None, *"abcdefgh"]


class Machine(RuleBasedStateMachine):
    """Small bounds, so that all of them are met: 3 run, 6 names, 8 wait with 40 bytes in all."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[int] = Lanes(40, most_running=3, most_named=6, most_waiting=8)
        self.numbers = 0
        self.waiting: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
        self.running: dict[str | None, int] = {}
        self.names: set[str] = set()

    @rule(lane=st.sampled_from(NAMES), size=st.integers(1, 60))
    def ask(self, lane: str | None, size: int) -> None:
        """A request is taken in, or refused with the reason that fits, and then nothing has changed."""
        queued = [entry for queue in self.waiting.values() for entry in queue]
        full = len(queued) >= 8 or (bool(queued) and sum(size for _, size in queued) + size > 40)
        self.numbers += 1
        if lane is not None and lane not in self.names and len(self.names) >= 6:
            with pytest.raises(BadRequest) as refused:
                self.lanes.add(lane, self.numbers, size)
            assert (refused.value.code, refused.value.param) == (
                "websocket_stream_limit_reached",
                "stream_id",
            )
        elif full:
            with pytest.raises(Overloaded) as crowded:
                self.lanes.add(lane, self.numbers, size)
            assert crowded.value.code == "websocket_queue_full"
        else:
            self.lanes.add(lane, self.numbers, size)
            self.waiting[lane].append((self.numbers, size))
            self.names |= {lane} - {None}  # type: ignore[arg-type]
        self.begin()

    def begin(self) -> None:
        """What begins is the oldest of a lane that is free."""
        for lane, number in self.lanes.start():
            assert lane not in self.running
            assert self.waiting[lane].pop(0)[0] == number
            self.running[lane] = number

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """One that runs ends."""
        lane = data.draw(st.sampled_from(sorted(self.running, key=str)))
        del self.running[lane]
        self.lanes.end(lane)
        self.begin()

    @invariant()
    def agrees(self) -> None:
        """Nothing waits without need, nothing runs over the bound, and what is counted is what is there."""
        assert self.lanes.running == set(self.running)
        assert self.lanes.waiting == sum(map(len, self.waiting.values()))
        assert len(self.running) <= 3
        if len(self.running) < 3:
            assert not [lane for lane, queue in self.waiting.items() if queue and lane not in self.running]

    def teardown(self) -> None:
        """When all that runs ends, all that waits has run."""
        while self.running:
            lane = next(iter(self.running))
            del self.running[lane]
            self.lanes.end(lane)
            self.begin()
        assert not any(self.waiting.values())


TestLanes = Machine.TestCase


def test_the_documented_bounds() -> None:
    """Sixteen run, thirty-two names are told apart besides the lane without one."""
    lanes: Lanes[int] = Lanes(1 << 20)
    for number in range(MOST_NAMED):
        lanes.add(f"lane-{number}", number, 1)
    lanes.add(None, 99, 1)
    with pytest.raises(BadRequest, match=r"distinct stream IDs \(32\)"):
        lanes.add("one-more", 100, 1)
    assert len(lanes.start()) == MOST_RUNNING == 16
    assert lanes.waiting == MOST_NAMED + 1 - 16
    lanes.add("lane-3", 101, 1)


def test_a_busy_lane_does_not_hold_up_another() -> None:
    """With one place, lanes take turns, however much one of them asks for."""
    lanes: Lanes[str] = Lanes(1 << 20, most_running=1)
    for number in range(3):
        lanes.add("busy", f"busy {number}", 1)
    order = []
    begun = lanes.start()
    lanes.add("quiet", "quiet", 1)
    while begun:
        [(lane, work)] = begun
        order.append(work)
        lanes.end(lane)
        begun = lanes.start()
    assert order == ["busy 0", "quiet", "busy 1", "busy 2"]


def test_a_large_request_waits_alone() -> None:
    """Bytes bound what waits together; what is larger than the bound waits when nothing else does."""
    lanes: Lanes[int] = Lanes(10)
    lanes.add(None, 1, 1000)
    with pytest.raises(Overloaded):
        lanes.add(None, 2, 1)
    lanes.start()
    lanes.add(None, 2, 1000)


def test_requests_that_wait_are_bounded() -> None:
    """Requests without number are refused, with the numbers, when too many wait."""
    lanes: Lanes[int] = Lanes(1 << 20)
    for number in range(MOST_WAITING + 1):
        lanes.add(None, number, 1)
        lanes.start()
    with pytest.raises(Overloaded, match=str(MOST_WAITING)):
        lanes.add(None, 0, 1)

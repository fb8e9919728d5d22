from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from modeld.errors import ModeldError, ModelFailed, ModelUnavailable, Overloaded
from modeld.supervisor.admission import (
    BACKGROUND_EVERY,
    DAEMON_STOPS,
    PRESENT_S,
    Priority,
    Situation,
    Verdict,
    decide,
    gives_way,
    kept_free,
    next_in_line,
)
from modeld.supervisor.states import State

situations = st.builds(
    Situation,
    model=st.just("m"),
    state=st.sampled_from(State),
    wanted=st.booleans(),
    in_flight=st.integers(0, 5),
    slots=st.integers(1, 5),
    queued=st.integers(0, 5),
    max_queue=st.integers(0, 5),
    message=st.text(max_size=10),
)


@given(situations)
def test_admission_is_total_and_keeps_the_rules(now: Situation) -> None:
    """Each situation has one answer: no grant without a free slot, no wait without a place or hope."""
    match decide(now):
        case Verdict.GRANT:
            assert now.state is State.READY
            assert now.in_flight < now.slots
            assert not now.queued
        case Verdict.WAIT:
            assert now.wanted
            assert now.queued < now.max_queue
            assert now.state is not State.FAILED
        case ModelFailed() as error:
            assert now.state is State.FAILED
            assert now.message in str(error)
        case ModelUnavailable() as error:
            assert not now.wanted
            assert "modeld ctl load m" in str(error)
        case Overloaded() as error:
            assert now.queued >= now.max_queue
            assert str(now.max_queue) in str(error)
        case other:
            pytest.fail(f"{other!r} is no answer")


@given(situations)
def test_refusals_say_which_field_is_at_fault(now: Situation) -> None:
    """A refusal points at the request's `model` field."""
    verdict = decide(now)
    if isinstance(verdict, ModeldError):
        assert verdict.param == "model"


@given(st.lists(st.sampled_from(Priority), max_size=12))
def test_the_line_is_first_come_first_served_within_a_priority(waiting: list[Priority]) -> None:
    """Taking all from the line gives interactive before background, each in the order of arrival."""
    line = list(enumerate(waiting))
    served = []
    while (at := next_in_line(tuple(priority for _, priority in line))) is not None:
        served.append(line.pop(at))
    assert not line
    assert served == sorted(enumerate(waiting), key=lambda pair: (pair[1], pair[0]))


@given(st.lists(st.sampled_from(Priority), max_size=12), st.integers(0, 20))
def test_background_work_is_due_after_so_many_interactive_requests(
    waiting: list[Priority], passed: int
) -> None:
    """Then the oldest background request is next; where none waits, nothing changes."""
    at = next_in_line(tuple(waiting), passed)
    if passed >= BACKGROUND_EVERY and Priority.BACKGROUND in waiting:
        assert at == waiting.index(Priority.BACKGROUND)
    else:
        assert at == next_in_line(tuple(waiting))


@given(st.lists(st.booleans(), min_size=30, max_size=60))
def test_a_batch_gets_on_behind_a_chat_that_never_pauses(arrivals: list[bool]) -> None:
    """However the interactive requests come, of any nine that go in one is background while some wait."""
    waiting = [Priority.BACKGROUND] * 3
    passed = 0
    gone: list[Priority] = []
    for more in arrivals:
        waiting.append(Priority.INTERACTIVE)
        if more:
            waiting.append(Priority.INTERACTIVE)
        at = next_in_line(tuple(waiting), passed)
        assert at is not None
        priority = waiting.pop(at)
        gone.append(priority)
        passed = passed + 1 if priority is Priority.INTERACTIVE else 0
    assert gone[:BACKGROUND_EVERY] == [Priority.INTERACTIVE] * BACKGROUND_EVERY
    assert gone[: 3 * (BACKGROUND_EVERY + 1)].count(Priority.BACKGROUND) == 3


class Queue(RuleBasedStateMachine):
    """A READY model under any traffic, run by the two decisions alone."""

    @initialize(slots=st.integers(1, 4), max_queue=st.integers(0, 4))
    def begin(self, slots: int, max_queue: int) -> None:
        self.slots, self.max_queue = slots, max_queue
        self.holding = 0
        self.waiting: list[Priority] = []

    @rule(priority=st.sampled_from(Priority))
    def arrive(self, priority: Priority) -> None:
        now = Situation("m", State.READY, True, self.holding, self.slots, len(self.waiting), self.max_queue)
        verdict = decide(now)
        if verdict is Verdict.GRANT:
            self.holding += 1
        elif verdict is Verdict.WAIT:
            self.waiting.append(priority)
        else:
            assert isinstance(verdict, Overloaded)
            assert len(self.waiting) == self.max_queue

    @precondition(lambda self: self.holding)
    @rule()
    def finish(self) -> None:
        self.holding -= 1
        at = next_in_line(tuple(self.waiting))
        if at is not None:
            assert self.waiting[at] == min(self.waiting)
            self.waiting.pop(at)
            self.holding += 1

    @precondition(lambda self: self.waiting)
    @rule()
    def give_up(self) -> None:
        self.waiting.pop()

    @invariant()
    def limits_hold(self) -> None:
        assert self.holding <= self.slots
        assert len(self.waiting) <= self.max_queue

    @invariant()
    def nobody_waits_for_a_free_slot(self) -> None:
        assert not self.waiting or self.holding == self.slots


TestQueue = Queue.TestCase


@given(st.integers(0, 5), st.integers(0, 5), st.lists(st.integers(0, 100), unique=True, max_size=5))
def test_the_youngest_gives_way_and_only_when_somebody_needs_it(
    waiting: int, leaving: int, yielding: list[int]
) -> None:
    """One goes for each that waits beyond those who are leaving already."""
    chosen = gives_way(waiting, leaving, yielding)
    if waiting > leaving and yielding:
        assert chosen == max(yielding)
    else:
        assert chosen is None


@given(st.integers(1, 64), st.integers(0, 64), st.floats(0, 1000))
def test_a_slot_is_kept_while_people_are_about_and_never_the_only_one(
    slots: int, yielding: int, since: float
) -> None:
    """Jobs have all slots but one then, and else all of them; a model of one slot does not keep it."""
    kept = kept_free(slots, yielding, since)
    assert kept == (slots > 1 and yielding >= slots - 1 and since < PRESENT_S)
    assert not kept_free(slots, 0, since)


def test_a_daemon_that_stops_gives_no_advice() -> None:
    """The refusal says why; to load a model that goes with the daemon would not help."""
    now = Situation(
        model="m",
        state=State.STOPPED,
        wanted=False,
        in_flight=0,
        slots=1,
        queued=0,
        max_queue=1,
        message=DAEMON_STOPS,
    )
    refused = decide(now)
    assert isinstance(refused, ModelUnavailable)
    assert "the daemon is stopping" in refused.message
    assert "load" not in refused.message

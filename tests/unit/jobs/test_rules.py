from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld import errors
from modeld.errors import LinkError, ModeldError, ModelUnavailable, Overloaded, StoreFailed, WorkerDied
from modeld.jobs.rules import MOST_ATTEMPTS, OLDEST_EVERY, Next, after, choose
from modeld.store.job_records import Candidate
from modeld.supervisor.admission import GaveWay

candidates = st.lists(
    st.builds(Candidate, st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=4,
    unique_by=lambda one: one.identity,
)


@given(candidates, st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3)), st.integers(0, 100))
def test_whoever_has_least_at_work_is_next(
    given: list[Candidate], at_work: dict[str, int], turn: int
) -> None:
    """No caller gets an item while another with fewer at work waits."""
    job = choose(given, at_work, {}, turn)
    least = min(at_work.get(one.identity, 0) for one in given)
    allowed = [one for one in given if at_work.get(one.identity, 0) == least]
    assert job in {one.oldest if turn % OLDEST_EVERY == OLDEST_EVERY - 1 else one.least for one in allowed}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_callers_take_turns(sizes: list[int]) -> None:
    """One after the other, with one slot: nobody is ahead of another, who still waits, by more than one."""
    left = {f"caller{at}": size for at, size in enumerate(sizes)}
    got: Counter[str] = Counter()
    served: dict[str, int] = {}
    for turn in range(sum(sizes)):
        waiting = [Candidate(name, at, at) for at, (name, count) in enumerate(left.items()) if count]
        job = choose(waiting, {}, served, turn)
        name = next(one.identity for one in waiting if one.least == job)
        left[name] -= 1
        got[name] += 1
        served[name] = turn
        behind = [got[other] for other, count in left.items() if count]
        assert not behind or got[name] - min(behind) <= 1


@given(st.integers(1, 50))
def test_the_oldest_job_of_a_caller_gets_on(turns: int) -> None:
    """Although another one always has less, every OLDEST_EVERY turns are one of the oldest's."""
    chosen = [choose([Candidate("a", 2, 1)], {}, {}, turn) for turn in range(turns * OLDEST_EVERY)]
    assert chosen.count(1) == turns


@pytest.mark.parametrize("attempts", range(MOST_ATTEMPTS + 1))
def test_what_takes_a_worker_down_is_tried_so_often_and_no_more(attempts: int) -> None:
    """The last of MOST_ATTEMPTS tries fails the item, as do more."""
    for error in (WorkerDied("x"), LinkError("x")):
        expected = Next.AGAIN if attempts < MOST_ATTEMPTS - 1 else Next.FAIL
        assert after(error, attempts) is expected


@pytest.mark.parametrize("error", [Overloaded("x"), ModelUnavailable("x"), StoreFailed("x")])
def test_what_passes_is_waited_for(error: ModeldError) -> None:
    """A full queue, a model on its way, a full disk: the item waits, however often that was so."""
    assert after(error, 100) is Next.WAIT


def test_giving_way_is_no_failure() -> None:
    """It counts as nothing, although it is a kind of being overloaded."""
    assert after(GaveWay("x"), 100) is Next.YIELD


@pytest.mark.parametrize(
    "error",
    [
        errors.BadRequest("x"),
        errors.ModelFailed("x"),
        errors.NotFound("x"),
        errors.EngineError("x"),
        ValueError(),
    ],
)
def test_what_stays_is_an_error_at_once(error: Exception) -> None:
    """A bad request, a failed model and one that is gone, an engine's refusal, a defect of ours."""
    assert after(error, 0) is Next.FAIL

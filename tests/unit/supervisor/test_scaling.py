from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.supervisor.scheduling.scaling import Decision, Load, Scaling, decide

scalings = st.builds(
    lambda low, more, target, up, down: Scaling(low, low + more, low, target, up, down),
    st.integers(0, 4),
    st.integers(0, 4),
    st.floats(0.5, 10),
    st.floats(0, 100),
    st.floats(0, 100),
)
seconds = st.none() | st.floats(0, 200)
loads = st.builds(Load, st.integers(0, 60), st.integers(0, 10), seconds, seconds)


@given(scalings, loads)
def test_the_number_stays_within_its_bounds(scaling: Scaling, load: Load) -> None:
    """Whatever the load, a number that may change ends between the bounds, or at zero where it was."""
    decision = decide(scaling, load)
    if scaling.fixed:
        assert decision == Decision(load.replicas, 0)
    elif load.replicas or load.ongoing:
        assert scaling.minimum <= decision.replicas <= scaling.maximum
    else:
        assert decision == Decision(0, 0)


@given(scalings, loads)
def test_a_number_changes_by_one_and_only_after_its_delay(scaling: Scaling, load: Load) -> None:
    """Within the bounds and above zero it moves by one, in the direction the load asks for, when that has
    asked long enough; a change has a reason that names the requests.
    """
    decision = decide(scaling, load)
    if scaling.fixed or not load.replicas or not scaling.minimum <= load.replicas <= scaling.maximum:
        return
    asked = min(max(math.ceil(load.ongoing / scaling.target), scaling.minimum), scaling.maximum)
    assert decision.wants == (asked > load.replicas) - (asked < load.replicas)
    timed = load.above_s if decision.wants > 0 else load.below_s
    delay = scaling.up_s if decision.wants > 0 else scaling.down_s
    due = bool(decision.wants) and timed is not None and timed >= delay
    assert decision.replicas == load.replicas + (decision.wants if due else 0)
    assert (str(load.ongoing) in decision.reason) == due


@given(scalings, loads)
def test_the_last_replica_goes_only_when_nothing_is_ongoing(scaling: Scaling, load: Load) -> None:
    """Zero is reached only from a minimum of zero and without a request; from zero a request brings one."""
    decision = decide(scaling, load)
    if scaling.fixed:
        return
    if load.replicas and not decision.replicas:
        assert scaling.minimum == 0
        assert load.ongoing == 0
    if not load.replicas and load.ongoing:
        assert decision.replicas == max(scaling.minimum, 1)


@given(scalings, st.integers(0, 60))
def test_a_steady_load_comes_to_rest(scaling: Scaling, ongoing: int) -> None:
    """With the same load for ever the number settles within as many steps as there are numbers."""
    replicas = scaling.maximum
    for _ in range(scaling.maximum + 1):
        decision = decide(scaling, Load(ongoing, replicas, math.inf, math.inf))
        replicas = decision.replicas
    assert decide(scaling, Load(ongoing, replicas, math.inf, math.inf)) == Decision(replicas, 0)


def test_reasons_are_sentences() -> None:
    """What `ctl status` shows after a change names the load, the target and how long it asked."""
    scaling = Scaling(0, 4, 1, 2.0, 30, 600)
    assert decide(scaling, Load(9, 2, above_s=31)).reason == (
        "9 requests ongoing at 2 for each replica asked for 4 replicas in place of 2 for 31 s"
    )
    assert decide(scaling, Load(1, 0)).reason == "1 request came while it was at zero replicas"
    assert decide(scaling, Load(1, 6)) == Decision(4, -1, "it has at most 4 replicas")
    assert decide(Scaling(2, 4), Load(0, 1)) == Decision(2, 1, "it has at least 2 replicas")


@pytest.mark.parametrize(
    "numbers",
    [(2, 1), (-1, 1), (1, 2, 1, 0.0), (1, 2, 1, 2.0, -1.0), (1, 2, 1, 2.0, 1.0, -1.0)],
)
def test_bounds_that_contradict_one_another_are_refused(numbers: tuple[float, ...]) -> None:
    """A minimum above the maximum, a target of nothing, or a negative delay is no scaling."""
    with pytest.raises(ValueError, match=r"replicas cannot be|a target must be"):
        Scaling(*numbers)  # type: ignore[arg-type]

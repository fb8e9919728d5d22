from __future__ import annotations

import pytest

from modeld.supervisor.states import COMING, MOVES, State, check_move


def _reachable(start: State) -> set[State]:
    seen, frontier = {start}, [start]
    while frontier:
        new = MOVES[frontier.pop()] - seen
        seen |= new
        frontier += new
    return seen


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_way_down(state: State) -> None:
    """From every state a model can get to STOPPED: nothing has to be killed to be unloaded."""
    assert State.STOPPED in _reachable(state)


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_way_up_and_is_entered(state: State) -> None:
    """From every state a model can become READY again, and every state can be entered from STOPPED."""
    assert State.READY in _reachable(state)
    assert state in _reachable(State.STOPPED)


def test_only_loading_leads_to_ready() -> None:
    """A model serves only after a load: no state but LOADING moves to READY."""
    assert {state for state in State if State.READY in MOVES[state]} == {State.LOADING}


def test_a_model_on_its_way_down_does_not_turn_round() -> None:
    """STOPPING ends in STOPPED and DRAINING never goes back to READY: one owner's stop is not half done."""
    assert MOVES[State.STOPPING] == {State.STOPPED}
    assert not MOVES[State.DRAINING] & {State.READY, *COMING - {State.BACKOFF}}


def test_no_state_moves_to_itself() -> None:
    """A move changes the state; staying is not a move."""
    assert not [state for state in State if state in MOVES[state]]


@pytest.mark.parametrize("current", State)
@pytest.mark.parametrize("to", State)
def test_moves_outside_the_table_raise(current: State, to: State) -> None:
    """check_move agrees with the table for each pair, and names both states when it refuses."""
    if to in MOVES[current]:
        check_move(current, to)
    else:
        with pytest.raises(ValueError, match=f"from {current} to {to}"):
            check_move(current, to)

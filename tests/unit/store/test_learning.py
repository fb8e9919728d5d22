from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modeld.store.footprints import SHRINK, Learned, learned, raised

SIZES = st.integers(0, 2**50)


def known(ram: int, vram: int = 0) -> Learned:
    """Return a footprint measured once."""
    return Learned(ram, vram, 1.0, 1, 0.0)


def test_the_first_measurement_is_taken_as_it_is() -> None:
    """Nothing is known before the first run."""
    assert learned(None, ram=7, vram=9, load_s=1.5, now=3.0) == Learned(7, 9, 1.5, 1, 3.0)


def test_up_at_once_and_down_slowly() -> None:
    """More replaces what is known; less moves it a quarter of the way; RAM and VRAM each on their own."""
    after = learned(known(1000, 1000), ram=2000, vram=600, load_s=2.5, now=4.0)
    assert SHRINK == 4
    assert after == Learned(2000, 900, 2.5, 2, 4.0)


@given(before=SIZES, measured=SIZES)
def test_what_is_known_lies_between(before: int, measured: int) -> None:
    """It is never below the new measurement, and never above both."""
    after = learned(known(before), ram=measured, vram=0, load_s=0, now=0).ram
    assert measured <= after <= max(before, measured)


@given(before=SIZES, measured=SIZES)
def test_equal_runs_settle(before: int, measured: int) -> None:
    """The same measurement again and again is what is known in the end, to the byte."""
    state = known(before)
    for _ in range(200):
        state = learned(state, ram=measured, vram=0, load_s=0, now=0)
    assert state.ram == measured


@given(before=st.none() | st.builds(known, SIZES, SIZES), ram=SIZES, vram=SIZES)
def test_out_of_memory_never_lowers(before: Learned | None, ram: int, vram: int) -> None:
    """After memory ran out at least the given bytes are known, nothing is lowered, and no run is counted."""
    after = raised(before, ram=ram, vram=vram, now=5.0)
    assert after.ram == max(ram, before.ram if before else 0)
    assert after.vram == max(vram, before.vram if before else 0)
    assert after.runs == (before.runs if before else 0)

from __future__ import annotations

import gc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.store.chains import decoded

ITEMS = st.dictionaries(
    st.text(max_size=5),
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.lists(st.text(), max_size=3),
    max_size=4,
)


@given(data=st.data(), items=st.lists(ITEMS, min_size=1, max_size=12), gap=st.integers(1, 9))
def test_items_come_in_the_order_of_their_places(
    data: st.DataObject, items: list[dict[str, object]], gap: int
) -> None:
    """Whatever order SQLite hands them over in, whatever text they hold, and with places left out."""
    order = data.draw(st.permutations(range(len(items))))
    places = ",".join(str(at * gap) for at in order)
    joined = b",".join(msgspec.json.encode(items[at]) for at in order)
    assert decoded([(places, joined, "completed", 7)]) == (("completed", 7), tuple(items))


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_is_collected_as_before(collecting: bool) -> None:
    """Python's collector is afterwards on or off as it was, also after what cannot be decoded."""
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        decoded([("0", b"{}", "completed")])
        assert gc.isenabled() is collecting
        with pytest.raises(msgspec.DecodeError):
            decoded([("0", b"{", "completed")])
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()


def test_no_row_and_no_items_are_two_things() -> None:
    """What is unknown is None; what has no items has its columns and ()."""
    assert decoded([]) is None
    assert decoded([(None, None, "queued")]) == (("queued",), ())

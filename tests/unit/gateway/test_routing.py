from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import NotFound
from modeld.gateway.routing import find
from tests.fakes.pool import FakePool, model

NAMES = st.text("aAbB-_./ é1", min_size=1, max_size=8)


@given(st.lists(NAMES, max_size=6, unique=True), st.lists(NAMES, max_size=6, unique=True), NAMES)
def test_only_the_exact_name_is_found(here: list[str], there: list[str], asked: str) -> None:
    """Whatever is configured, a name gives the model of its own gateway that is called so, or a 404."""
    pool = FakePool.of(*map(model, here), *(model(name, gateway="side") for name in there))
    for gateway, names in (("", here), ("side", there)):
        if asked in names:
            assert find(pool, gateway, asked).served_name == asked
            assert find(pool, gateway, asked).gateway == gateway
        else:
            with pytest.raises(NotFound) as caught:
                find(pool, gateway, asked)
            assert caught.value.code == "model_not_found"


@given(NAMES, NAMES)
def test_a_suggestion_is_a_name_there_is(known: str, asked: str) -> None:
    """What an error suggests can be asked for; names that differ in case alone are always suggested."""
    pool = FakePool.of(model("unlike any of it", aliases=(known,)))
    if asked == known:
        return
    with pytest.raises(NotFound) as caught:
        find(pool, "", asked)
    suggested = f"did you mean {known!r}?" in caught.value.message
    assert suggested or "did you mean" not in caught.value.message
    if asked.casefold() == known.casefold():
        assert suggested


def test_the_suggestion_is_found_among_many() -> None:
    """A name that is wrong in case and punctuation only is recognised however many models there are."""
    pool = FakePool.of(*(model(f"org/Model-{at}B") for at in range(500)))
    with pytest.raises(NotFound, match="did you mean 'org/Model-499B'"):
        find(pool, "", "org/model_499b")


def test_a_suggestion_is_of_the_same_gateway() -> None:
    """A near name of another gateway would only lead to the next 404."""
    pool = FakePool.of(model("tiny", gateway="side"), model("other"))
    with pytest.raises(NotFound) as caught:
        find(pool, "", "Tiny")
    assert "did you mean" not in caught.value.message

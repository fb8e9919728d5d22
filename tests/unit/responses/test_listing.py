"""Pages of a list: whatever the size, a walk over them gives each item once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from modeld.errors import BadRequest
from modeld.responses.listing import Page, check_include, flag, listed, page


@given(st.integers(0, 250), st.integers(1, 100), st.booleans())
def test_a_walk_gives_each_item_once(count: int, limit: int, descending: bool) -> None:
    """From page to page by last_id: all items, in order, none twice; has_more is true but for the last."""
    items = [{"id": f"item_{number}"} for number in range(count)]
    seen: list[str] = []
    after = None
    while True:
        found = listed(items, Page(limit, descending, after))
        seen += [item["id"] for item in found["data"]]
        assert len(found["data"]) <= limit
        assert found["has_more"] == (len(seen) < count)
        if not found["has_more"]:
            break
        after = found["last_id"]
    wanted = [item["id"] for item in items]
    assert seen == (wanted[::-1] if descending else wanted)


@given(st.text(max_size=12))
def test_a_limit_is_a_number_from_1_to_100(text: str) -> None:
    """Any other text is refused, and so are digits that only look like them."""
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= 100:
        assert page(MultiDict(limit=text)).limit == int(text)
        return
    with pytest.raises(BadRequest) as error:
        page(MultiDict(limit=text))
    assert error.value.param == "limit"


@given(st.integers(1, 100))
def test_every_limit_that_may_be(limit: int) -> None:
    """From 1 to 100."""
    assert page(MultiDict(limit=str(limit))).limit == limit


def test_what_nobody_asks_for_is_the_usual() -> None:
    """Twenty items, the newest first."""
    assert page(MultiDict()) == Page(20, True, None)


@pytest.mark.parametrize("name", ["include", "include[]"])
def test_includes_are_known_ones(name: str) -> None:
    """Under either name, each of several is looked at."""
    query = MultiDict([(name, "message.output_text.logprobs"), (name, "everything")])
    with pytest.raises(BadRequest, match="everything"):
        check_include(query)
    check_include(MultiDict([(name, "message.output_text.logprobs")] * 2))


@pytest.mark.parametrize(("text", "on"), [("true", True), ("1", True), ("FALSE", False), ("0", False)])
def test_switches(text: str, on: bool) -> None:
    """As SDKs and as people write them."""
    assert flag(MultiDict(stream=text), "stream") is on
    assert flag(MultiDict(), "stream") is False
    with pytest.raises(BadRequest, match="stream"):
        flag(MultiDict(stream=text + "!"), "stream")

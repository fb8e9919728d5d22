"""Items that stand for others, and items that are there twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.ids import LOCAL
from modeld.responses.history import check_duplicates, resolved


def message(id: str) -> dict[str, Any]:
    """Return an item as it is kept."""
    return {"type": "message", "id": id, "role": "user", "content": []}


def context(**stored: Any) -> Any:
    """Return a context whose store has these items."""

    async def find_items(identity: str, ids: Any) -> dict[str, Any]:
        return {id: stored[id] for id in ids if id in stored}

    return SimpleNamespace(responses=SimpleNamespace(find_items=find_items))


@given(st.lists(st.sampled_from("abcd"), max_size=5), st.lists(st.sampled_from("abcd"), max_size=5))
def test_ids_are_unique_or_the_first_that_is_not_is_named(before: list[str], given: list[str]) -> None:
    """What is in the chain is in no request again, and in a request once."""
    seen = set(before)
    clash = None
    for at, id in enumerate(given):
        if id in seen:
            clash = at
            break
        seen.add(id)
    if clash is None:
        check_duplicates(map(message, before), map(message, given), "input")
        return
    with pytest.raises(BadRequest) as error:
        check_duplicates(map(message, before), map(message, given), "input")
    assert error.value.param == f"input[{clash}].id"


async def test_a_reference_is_replaced_in_its_place() -> None:
    """The stored item takes the reference's place; the others stay as they are."""
    reference = {"type": "item_reference", "id": "old"}
    found = await resolved(context(old=message("old")), LOCAL, (), [message("a"), reference, message("b")])
    assert [item["id"] for item in found] == ["a", "old", "b"]
    assert all(item["type"] == "message" for item in found)


@pytest.mark.parametrize("given", [["ref old"], ["a", "ref a"], ["ref a", "a"]])
async def test_a_reference_to_nothing_stored_is_refused(given: list[str]) -> None:
    """Neither what is unknown nor what the same request brings can be referred to."""
    items = [
        {"type": "item_reference", "id": name[4:]} if name.startswith("ref ") else message(name)
        for name in given
    ]
    with pytest.raises(BadRequest, match=r"not found|Duplicate"):
        await resolved(context(), LOCAL, (), items)

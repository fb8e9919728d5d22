from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.responses.inputs import Item
from modeld.responses.truncation import Ranks, by_item, by_turn, fitted, kept, room

BASE = 7
"""Tokens that every prompt has."""


def message(role: str, size: int) -> Item:
    """Return a message of so many tokens."""
    return {"type": "message", "role": role, "size": size}


def call(number: int, size: int) -> Item:
    """Return a call."""
    return {"type": "function_call", "call_id": f"call_{number}", "size": size}


def output(number: int, size: int) -> Item:
    """Return what a call gave."""
    return {"type": "function_call_output", "call_id": f"call_{number}", "size": size}


class Counter:
    """Counts by the items' sizes; `strict` is a template that wants the user to speak first."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.asked = 0

    async def __call__(self, items: Sequence[Item]) -> int:
        """Return the tokens of a prompt."""
        self.asked += 1
        if self.strict and not begins_with_user(items):
            raise BadRequest("the user must speak first", code="template_error")
        return tokens(items)


def tokens(items: Sequence[Item]) -> int:
    """Return the tokens of a prompt."""
    return BASE + sum(int(item["size"]) for item in items)


def begins_with_user(items: Sequence[Item]) -> bool:
    """Say whether the first who speaks, instructions apart, is the user."""
    spoken = [item for item in items if item.get("role") not in ("system", "developer")]
    return not spoken or spoken[0].get("role") == "user"


@st.composite
def conversations(draw: st.DrawFn) -> list[Item]:
    """Give conversations with calls whose outputs come later, if at all."""
    items: list[Item] = []
    open_calls: list[int] = []
    number = 0
    for _ in range(draw(st.integers(0, 25))):
        kinds = ["user", "user", "assistant", "system", "developer", "reasoning", "call", "mcp"]
        kind = draw(st.sampled_from([*kinds, "output", "output"] if open_calls else kinds))
        size = draw(st.integers(0, 30))
        match kind:
            case "call":
                items.append(call(number, size))
                open_calls.append(number)
                number += 1
            case "output":
                items.append(output(open_calls.pop(draw(st.integers(0, len(open_calls) - 1))), size))
            case "mcp":
                items += [
                    {"type": "mcp_approval_request", "id": f"mcpr_{number}", "size": size},
                    {"type": "mcp_call", "approval_request_id": f"mcpr_{number}", "size": size},
                ]
                number += 1
            case "reasoning":
                items.append({"type": "reasoning", "size": size})
            case _:
                items.append(message(kind, size))
    return items


def bond(item: Item) -> Any:
    """Return what a call and its output share."""
    return item.get("call_id") or item.get("approval_request_id") or item.get("id")


def last_user(items: Sequence[Item]) -> int:
    """Return the place of the user's last message, or of the last item."""
    return max((at for at, item in enumerate(items) if item.get("role") == "user"), default=len(items) - 1)


def highest(ranks: Ranks) -> int:
    """Return the last rank, -1 if nothing may go."""
    return max((rank for rank in ranks if rank is not None), default=-1)


async def cut(
    items: list[Item], at: int, limit: int, counter: Counter, most: int | None = None
) -> list[Item] | None:
    """Return what is left of a conversation whose first `at` items are history; None for a refusal."""
    try:
        before, own = await fitted(items[:at], items[at:], counter, limit, most)
    except BadRequest as error:
        if error.code != "context_length_exceeded":
            raise
        return None
    ids = {id(item) for item in items[:at]}
    assert all(id(item) in ids for item in before)
    assert not any(id(item) in ids for item in own)
    return [*before, *own]


@given(items=conversations(), data=st.data(), limit=st.integers(0, 400), most=st.none() | st.integers(1, 500))
async def test_as_few_items_as_will_do(
    items: list[Item], data: st.DataObject, limit: int, most: int | None
) -> None:
    """What is left fits, keeps its order, what must stay and its pairs, and with one item more would not fit.

    What is refused cannot be made to fit. The counts are as many as a search by halves takes.
    """
    at = data.draw(st.integers(0, len(items)))
    counter = Counter()
    left = await cut(items, at, limit, counter, most)
    assert counter.asked <= 3 + math.ceil(math.log2(max(len(items), 1)))
    ranks = by_item(items)
    sizes = [tokens(kept(items, ranks, last)) for last in range(-1, 1 + highest(ranks))]
    assert sizes == sorted(sizes, reverse=True)
    wanted = room(limit, most)
    if left is None:
        assert sizes[-1] > limit - 1
        return
    places = [next(at for at, item in enumerate(items) if item is found) for found in left]
    assert places == sorted(set(places))
    dropped = [at for at in range(len(items)) if at not in places]
    assert tokens(left) <= max(wanted, sizes[-1])
    assert tokens(left) < limit or not dropped
    tail = last_user(items)
    assert all(at < tail for at in dropped)
    assert not any(items[at].get("role") in ("system", "developer") for at in dropped)
    gone = {bond(items[at]) for at in dropped} - {None}
    assert not any(bond(item) in gone for item in left)
    fewest = next((number for number, size in enumerate(sizes) if size <= wanted), len(sizes) - 1)
    assert left == kept(items, ranks, fewest - 1)


@given(items=conversations(), limit=st.integers(8, 300))
async def test_a_template_that_wants_the_user_first_gets_whole_turns(items: list[Item], limit: int) -> None:
    """Where the model's template refuses what begins with an answer, whole turns are dropped instead."""
    items = [message("user", 3), *items]
    ranks = by_item(items)
    rest = kept(items, ranks, highest(ranks))
    assume(begins_with_user(rest))  # else a call stays for an output after the question
    counter = Counter(strict=True)
    left = await cut(items, len(items), limit, counter)
    if left is None:
        assert tokens(rest) >= limit
        return
    assert begins_with_user(left)
    assert tokens(left) < limit
    assert counter.asked <= 3 + 2 * math.ceil(math.log2(len(items) + 1))


@given(items=conversations())
def test_ranks_have_no_gaps_and_end_alike(items: list[Item]) -> None:
    """By items and by turns the same items may go, in an order without gaps, and turns hold whole items."""
    single, turns = by_item(items), by_turn(items)
    for ranks in (single, turns):
        assert {rank for rank in ranks if rank is not None} == set(range(highest(ranks) + 1))
    assert [rank is None for rank in single] == [rank is None for rank in turns]
    pairs = sorted((a, b) for a, b in zip(single, turns, strict=True) if a is not None and b is not None)
    assert [turn for _, turn in pairs] == sorted(turn for _, turn in pairs)


async def test_history_goes_first_and_the_question_stays() -> None:
    """The example of a long chat: the oldest turns go, instructions and the question stay."""
    old = [message("user", 50), message("assistant", 50), message("user", 50), message("assistant", 50)]
    own = [message("developer", 10), message("user", 10)]
    before, left = await fitted(old, own, Counter(), BASE + 121)
    assert (before, left) == (tuple(old[2:]), tuple(own))


async def test_room_is_made_for_the_answer_up_to_half_of_the_context() -> None:
    """A long answer drops more turns, but never more than leave half of the context to the prompt."""
    old = [message("user", 10) for _ in range(10)]
    own = [message("user", 10)]
    for answer, turns in ((None, 10), (1, 10), (20, 8), (60, 4), (100_000, 4)):
        before, _ = await fitted(old, own, Counter(), BASE + 111, answer)
        assert len(before) == turns, answer


async def test_an_answer_that_gets_less_room_than_wanted_is_still_given() -> None:
    """Where dropping all does not make the room that was asked for, the rest goes out if it fits at all."""
    before, own = await fitted([message("user", 10)], [message("user", 80)], Counter(), 100, 50)
    assert (before, len(own)) == ((), 1)


@pytest.mark.parametrize("tail", [[message("user", 100)], [message("user", 1), call(1, 50), output(1, 50)]])
async def test_what_cannot_fit_is_refused_with_the_figures(tail: list[Item]) -> None:
    """All tokens, those that must stay, and the context's length are told."""
    with pytest.raises(BadRequest, match=r"has 12[78] tokens, and 10[78] when .* holds 100 ") as caught:
        await fitted([message("user", 20)], tail, Counter(), 100)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


async def test_a_single_message_that_is_too_long_is_not_said_to_be_cut() -> None:
    """Where nothing can be dropped the message says so."""
    counter = Counter()
    with pytest.raises(BadRequest, match=r"has 127 tokens, all to be kept; .* holds 100 "):
        await fitted([], [message("user", 120)], counter, 100)
    assert counter.asked == 1


async def test_what_counting_refuses_is_passed_on() -> None:
    """A conversation that is bad as a whole is not tried in pieces."""
    counter = Counter(strict=True)
    with pytest.raises(BadRequest, match="must speak first"):
        await fitted([message("assistant", 1)], [message("user", 1)], counter, 100)
    assert counter.asked == 1

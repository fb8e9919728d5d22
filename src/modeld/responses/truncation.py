"""Which items a prompt does without when all of them are too many for the model (`truncation: auto`).

Items go from the beginning, as few as will do. Never dropped: what is said in the system's or the developer's
name, the user's last message, and what follows it. A call and its output go together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from modeld.errors import BadRequest
from modeld.responses.inputs import Item

Count: TypeAlias = Callable[[Sequence[Item]], Awaitable[int]]
"""Says how many tokens the prompt of such a conversation has, with instructions, tools and all."""

Ranks: TypeAlias = Sequence[int | None]
"""For each item when it goes: 0 for those dropped first, then 1, without gaps; None for what stays."""

MOST_FOR_ANSWER = 0.5
"""Part of the context that is kept free for the answer at most, however long it may become."""


async def fitted(
    before: Sequence[Item],
    given: Sequence[Item],
    count: Count,
    limit: int,
    max_output_tokens: int | None = None,
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return what is left of the history and of the request's own items so that the prompt fits.

    `limit` is the model's context length in tokens. Room for `max_output_tokens` is made as far as dropping
    can make it, and as `MOST_FOR_ANSWER` allows. Asks for O(log n) counts. Raises BadRequest
    (context_length_exceeded) where the prompt without all that may go has more than the context holds, and
    what `count` raises.
    """
    items = [*before, *given]
    wanted = room(limit, max_output_tokens)
    total = await count(items)
    if total <= wanted:
        return tuple(before), tuple(given)
    ranks = by_item(items)
    last = _last(ranks)
    least = await count(kept(items, ranks, last)) if last >= 0 else total
    if least > limit - 1:
        rest = f"and {least} when all that truncation may drop is dropped" if last >= 0 else "all to be kept"
        raise BadRequest(
            f"the input has {total} tokens, {rest}; the model's context holds {limit} with the answer: "
            "shorten the last message, or the instructions",
            code="context_length_exceeded",
            param="input",
        )
    if least <= wanted:
        try:
            last = await _fewest(items, ranks, count, wanted)
        except BadRequest:
            # The whole conversation was accepted: it is a template that wants the user to speak first.
            ranks = by_turn(items)
            last = await _fewest(items, ranks, count, wanted)
    return (
        tuple(kept(before, ranks[: len(before)], last)),
        tuple(kept(given, ranks[len(before) :], last)),
    )


def room(limit: int, max_output_tokens: int | None) -> int:
    """Return the tokens that a prompt may have beside its answer, in a context of `limit` tokens."""
    return limit - max(1, min(max_output_tokens or 1, int(limit * MOST_FOR_ANSWER)))


async def _fewest(items: Sequence[Item], ranks: Ranks, count: Count, wanted: int) -> int:
    """Return the lowest rank up to which all must go so that `wanted` suffice; with the last one they do."""
    low, high = 0, _last(ranks)
    while low < high:
        middle = (low + high) // 2
        if await count(kept(items, ranks, middle)) <= wanted:
            high = middle
        else:
            low = middle + 1
    return high


def kept(items: Sequence[Item], ranks: Ranks, last: int) -> list[Item]:
    """Return what is left when all up to the rank `last` has gone."""
    return [item for item, rank in zip(items, ranks, strict=True) if rank is None or rank > last]


def _last(ranks: Ranks) -> int:
    return max((rank for rank in ranks if rank is not None), default=-1)


def by_item(items: Sequence[Item]) -> Ranks:
    """Return the order in which items go one by one, each with what hangs on it."""
    groups = _groups(items)
    return _ranked(items, groups, groups)


def by_turn(items: Sequence[Item]) -> Ranks:
    """Return the order in which turns go: all that came before a message of the user's. The last is alike."""
    groups, turns, turn = _groups(items), list[int](), 0
    for item in items:
        turn += _from_user(item)
        turns.append(turn)
    return _ranked(items, groups, [turns[group] for group in groups])


def _ranked(items: Sequence[Item], groups: Sequence[int], steps: Sequence[int]) -> Ranks:
    """Number the steps of those items that may go."""
    free = set(_droppable(items, groups))
    numbers = {step: rank for rank, step in enumerate(sorted({steps[at] for at in free}))}
    return [numbers[step] if at in free else None for at, step in enumerate(steps)]


def _droppable(items: Sequence[Item], groups: Sequence[int]) -> list[int]:
    """Return the places of items that may go, in order."""
    last = max((at for at, item in enumerate(items) if _from_user(item)), default=len(items) - 1)
    stays = {groups[at] for at, item in enumerate(items) if at >= last or _instructs(item)}
    return [at for at in range(len(items)) if groups[at] not in stays]


def _groups(items: Sequence[Item]) -> list[int]:
    """Return for each item the place of its group's first: call and output are a group, as is an approval."""
    known: dict[tuple[str, str], int] = {}
    groups = []
    for at, item in enumerate(items):
        key = _bond(item)
        groups.append(known.setdefault(key, at) if key is not None else at)
    return groups


def _bond(item: Item) -> tuple[str, str] | None:
    """Return what an item shares with those that make no sense without it."""
    match item.get("type"):
        case "function_call" | "function_call_output":
            return "call", str(item.get("call_id"))
        case "mcp_approval_request":
            return "approval", str(item.get("id"))
        case "mcp_approval_response" | "mcp_call" if item.get("approval_request_id"):
            return "approval", str(item["approval_request_id"])
    return None


def _from_user(item: Item) -> bool:
    return item.get("type", "message") == "message" and item.get("role") == "user"


def _instructs(item: Item) -> bool:
    return item.get("type", "message") == "message" and item.get("role") in ("system", "developer")

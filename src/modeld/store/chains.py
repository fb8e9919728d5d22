"""Lists of items that share their beginnings: how they grow, fork, are read, and are cleared away.

An item is stored once. A chain lists items by place; going on from its end adds to it, going on from anywhere
else begins a chain that names its parent and the place. So a history of n turns takes n rows however often it
is continued, and one recursive query reads it. Whoever names a place (a response, a conversation, a fork)
holds all places before it; what nobody holds is garbage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from modeld.store.db import Row, Transaction

Item: TypeAlias = dict[str, Any]
"""An item as the API shows it, with its type and its id."""

SAME = 100
"""Items of one id that are looked at to find an equal one. More of them are a caller's own ids."""

_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(list[Item]).decode
_place = itemgetter(0)


class Ref(msgspec.Struct, frozen=True):
    """All items of a chain, and of its ancestors, before a place."""

    chain: int
    upto: int


def reading(seen: str, *shown: str) -> str:
    """Return a query that reads a range of items, all of one moment.

    `seen` is a select of at most one row with the columns chain, low, high (the places to read: low up to
    high) and those of `shown`. What comes back is nothing when there is no such row, else a row (-1, *shown)
    and a row (place, data, NULL, ...) for each item, in no order.
    """
    nothing = ", NULL" * (len(shown) - 1)
    return f"""
        WITH RECURSIVE
          seen AS ({seen}),
          path (chain, at, parent, low, high) AS (
            SELECT chain.key, chain.at, chain.parent, seen.low, seen.high
            FROM seen CROSS JOIN chain ON chain.key = seen.chain
            UNION ALL
            SELECT chain.key, chain.at, chain.parent, path.low, min(path.at, path.high)
            FROM path CROSS JOIN chain ON chain.key = path.parent WHERE path.at > path.low
          )
        SELECT -1, {", ".join(f"seen.{name}" for name in shown)} FROM seen
        UNION ALL
        SELECT link.place, item.data{nothing}
        FROM path
        CROSS JOIN link ON link.chain = path.chain AND link.place >= path.low AND link.place < path.high
        CROSS JOIN item ON item.key = link.item
        """


def decoded(rows: list[Row]) -> tuple[Row, tuple[Item, ...]] | None:
    """Return what a query of `reading` found: the columns of `shown`, and the items in order."""
    if not rows:
        return None
    rows.sort(key=_place)
    data = b",".join(row[1] for row in rows[1:])
    return rows[0][1:], tuple(_DECODE(b"[" + data + b"]"))


async def stored(
    transaction: Transaction, identity: str, items: Sequence[Item], *, known: bool = False
) -> list[int]:
    """Store items and return their keys; with `known`, those that are there already are not stored again."""
    packed = [(item.get("id"), _ENCODE(item)) for item in items]
    have: dict[tuple[str | None, bytes], int] = {}
    if known and packed:
        ids = _ENCODE([id for id, _ in packed if id])
        rows = await transaction.fetch(
            "SELECT id, data, key FROM item WHERE id IN (SELECT value FROM json_each(?)) AND identity = ? "
            "LIMIT ?",
            (ids.decode(), identity, 2 * len(packed) + SAME),
        )
        have = {(id, data): key for id, data, key in rows}
    ((last,),) = await transaction.fetch("SELECT coalesce(max(key), 0) FROM item")
    keys, new = [], []
    for id, data in packed:
        key = have.get((id, data))
        if key is None:
            last = key = last + 1
            new.append((key, identity, id, data))
        keys.append(key)
    if new:
        await transaction.execute_many("INSERT INTO item (key, identity, id, data) VALUES (?, ?, ?, ?)", new)
    return keys


async def appended(transaction: Transaction, after: Ref | None, keys: Sequence[int]) -> Ref:
    """Put stored items behind what `after` names (None: nothing) and return all of it.

    Nothing that others hold changes: when `after` is not the end of its chain, a fork begins there.
    """
    if after is None:
        after = Ref(await _begun(transaction, None, 0), 0)
    elif keys:
        grown = await transaction.fetch(
            "SELECT 1 FROM link WHERE chain = ? AND place >= ? LIMIT 1", (after.chain, after.upto)
        )
        if grown:
            after = Ref(await _begun(transaction, after.chain, after.upto), after.upto)
    await linked(transaction, after.chain, enumerate(keys, after.upto))
    return Ref(after.chain, after.upto + len(keys))


async def forked(transaction: Transaction, parent: int, at: int, links: Iterable[tuple[int, int]]) -> int:
    """Begin a chain that goes on from a place of its parent with (place, item key) pairs; return its key."""
    chain = await _begun(transaction, parent, at)
    await linked(transaction, chain, links)
    return chain


async def linked(transaction: Transaction, chain: int, links: Iterable[tuple[int, int]]) -> None:
    """Add (place, item key) pairs to a chain."""
    rows = [(chain, place, key) for place, key in links]
    if rows:
        await transaction.execute_many("INSERT INTO link (chain, place, item) VALUES (?, ?, ?)", rows)


async def _begun(transaction: Transaction, parent: int | None, at: int) -> int:
    await transaction.execute("INSERT INTO chain (parent, at) VALUES (?, ?)", (parent, at))
    ((key,),) = await transaction.fetch("SELECT last_insert_rowid()")
    return int(key)

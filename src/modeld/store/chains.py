"""Lists of items that share their beginnings: how they grow, fork and are read.

An item is stored once. A chain lists items by place; going on from its end adds to it, going on from anywhere
else begins a chain that names its parent and the place. So a history of n turns takes n rows however often it
is continued, and one recursive query reads it. Whoever names a place (a response, a conversation, a fork)
holds all places before it; what nobody holds is garbage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec

from modeld.store.db import Block, Row

Item: TypeAlias = dict[str, Any]
"""An item as the API shows it, with its type and its id."""

SAME = 100
"""Items of one id that are looked at to find an equal one. More of them are a caller's own ids."""

_ENCODE = msgspec.json.Encoder().encode
_ITEMS = msgspec.json.Decoder(tuple[Item, ...]).decode
_PLACES = msgspec.json.Decoder(list[int]).decode


class Ref(msgspec.Struct, frozen=True):
    """All items of a chain, and of its ancestors, before a place."""

    chain: int
    upto: int


def path(seen: str) -> str:
    """Return the WITH clause of a query over a range of places.

    `seen` is a select of at most one row with the columns chain, low and high, for the places from low to
    before high, and more if wanted. The table `path` (chain, at, parent, low, high) then has the range in
    each chain that it goes through.
    """
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
        """


# The order of joins is fixed: it is the one that goes by keys only.
LINKS = (
    "path CROSS JOIN link ON link.chain = path.chain AND link.place >= path.low AND link.place < path.high"
)
"""What to select from for the links of a path, in no order."""


def reading(seen: str, shown: str) -> str:
    """Return a query for the items of a range and the columns `shown` of `seen`, all of one moment.

    It gives one row whatever it reads: Python's SQLite lets go of the interpreter for each row and waits to
    get it back, which takes long for thousands of them when the event loop is busy.
    """
    return f"""
        {path(seen)}
        SELECT places, data, {shown} FROM seen CROSS JOIN (
          SELECT group_concat(link.place) AS places, CAST(group_concat(item.data) AS BLOB) AS data
          FROM {LINKS} CROSS JOIN item ON item.key = link.item
        )
        """


def decoded(rows: Sequence[Row]) -> tuple[Row, tuple[Item, ...]] | None:
    """Return what a query of `reading` gave: the columns shown and the items in order; None for no row."""
    if not rows:
        return None
    ((places, data, *shown),) = rows
    if not places:
        return tuple(shown), ()
    with _without_collections():
        items = _ITEMS(b"[" + data + b"]")
    order = _PLACES(f"[{places}]")
    if any(one > other for one, other in pairwise(order)):
        items = tuple(items[at] for at in sorted(range(len(order)), key=order.__getitem__))
    return tuple(shown), items


@contextmanager
def _without_collections() -> Iterator[None]:
    """Put off Python's garbage collections: thousands of new objects, none of them garbage, would set off
    several, of everything that the daemon holds, which takes longer than reading.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def stored(block: Block, identity: str, items: Sequence[Item], *, known: bool = False) -> list[int]:
    """Store items and return their keys; with `known`, those that are there already are not stored again."""
    if not items:
        return []
    packed = [(item.get("id"), _ENCODE(item)) for item in items]
    have: dict[tuple[str | None, bytes], int] = {}
    if known:
        ids = _ENCODE([id for id, _ in packed if id])
        rows = block.fetch(
            "SELECT id, data, key FROM item WHERE id IN (SELECT value FROM json_each(?)) AND identity = ? "
            "LIMIT ?",
            (ids.decode(), identity, len(packed) + SAME),
        )
        have = {(id, data): key for id, data, key in rows}
    ((last,),) = block.fetch("SELECT coalesce(max(key), 0) FROM item")
    keys, new = [], []
    for id, data in packed:
        key = have.get((id, data))
        if key is None:
            last = key = last + 1
            new.append((key, identity, id, data))
        keys.append(key)
    if new:
        block.execute_many("INSERT INTO item (key, identity, id, data) VALUES (?, ?, ?, ?)", new)
    return keys


def appended(block: Block, after: Ref | None, keys: Sequence[int]) -> Ref:
    """Put stored items behind what `after` names (None: nothing) and return all of it.

    Nothing that others hold changes: when `after` is not the end of its chain, a fork begins there.
    """
    if after is None:
        return Ref(begun(block, None, 0, enumerate(keys)), len(keys))
    links = enumerate(keys, after.upto)
    grown = block.fetch(
        "SELECT 1 FROM link WHERE chain = ? AND place >= ? LIMIT 1", (after.chain, after.upto)
    )
    if not keys or not grown:
        _link(block, after.chain, links)
        return Ref(after.chain, after.upto + len(keys))
    return Ref(begun(block, after.chain, after.upto, links), after.upto + len(keys))


def begun(block: Block, parent: int | None, at: int, links: Iterable[tuple[int, int]]) -> int:
    """Begin a chain at a place of its parent with (place, item key) pairs; return its key."""
    key = block.insert("INSERT INTO chain (parent, at) VALUES (?, ?)", (parent, at))
    _link(block, key, links)
    return key


def _link(block: Block, chain: int, links: Iterable[tuple[int, int]]) -> None:
    block.execute_many(
        "INSERT INTO link (chain, place, item) VALUES (?, ?, ?)",
        [(chain, place, key) for place, key in links],
    )

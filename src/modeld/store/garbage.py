"""What nobody holds any more is cleared away a few rows at a time, so that no writer waits long."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from modeld.errors import StoreFailed
from modeld.store.db import Block, Database

_log = logging.getLogger("modeld.store")

BATCH = 500
"""Rows that one transaction clears away at most."""

_HELD = """
    SELECT max(upto) FROM (
      SELECT max(upto) AS upto FROM response WHERE chain = :chain
      UNION ALL SELECT max(upto) FROM conversation WHERE chain = :chain
      UNION ALL SELECT max(at) FROM chain WHERE parent = :chain
    )
    """


def forget(block: Block, response: int) -> None:
    """Remove a response by its key, and let go of what it held.

    Its run row stays, for `Responses.finish` to see that it was there.
    """
    rows = block.fetch("SELECT chain, logged FROM response WHERE key = ?", (response,))
    for chain, logged in rows:
        let_go(block, chain)
        if logged:
            _note(block, "log", response)
        block.execute("DELETE FROM response WHERE key = ?", (response,))


def let_go(block: Block, chain: int) -> None:
    """Note that somebody no longer holds a chain."""
    _note(block, "chain", chain)


def drop(block: Block, items: Iterable[int]) -> None:
    """Remove those of the items to which no link leads."""
    _drop(block, msgspec.json.encode(list(items)).decode())


def _drop(block: Block, items: str) -> None:
    block.execute(
        "DELETE FROM item WHERE key IN (SELECT value FROM json_each(?)) "
        "AND NOT EXISTS (SELECT 1 FROM link WHERE item = item.key)",
        (items,),
    )


async def clear(db: Database) -> None:
    """Clear away all that was let go of. Raises StoreFailed; what is left is cleared the next time."""
    while await db.fetch("SELECT 1 FROM garbage LIMIT 1"):
        await db.transact(_clear_some)


def _clear_some(block: Block) -> None:
    left = BATCH
    while left > 0:
        rows = block.fetch("SELECT kind, key FROM garbage LIMIT 1")
        if not rows:
            return
        ((kind, key),) = rows
        left -= 1 + (_clear_log if kind == "log" else _clear_chain)(block, key, left)


async def clear_now(db: Database) -> None:
    """Clear away what a deletion has just let go of; where that fails, the next sweep does it.

    The deletion itself is stored by then: its caller is not to be told that it failed.
    """
    try:
        await clear(db)
    except StoreFailed as failure:
        _log.warning("what was deleted is out of reach, and will be cleared away later: %s", failure)


async def expire(db: Database, now: float) -> int:
    """Remove the responses, and the logs, that expire by `now`; returns how many responses.

    One at work does not expire.
    """
    gone = 0
    while some := await db.transact(_expire_some, now):
        gone += some
    while await db.transact(_expire_logs, now):
        pass
    return gone


def _expire_some(block: Block, now: float) -> int:
    rows = block.fetch(
        "SELECT key FROM response WHERE expires <= ? AND status NOT IN ('queued', 'in_progress') LIMIT ?",
        (now, BATCH // 10),
    )
    for (key,) in rows:
        forget(block, key)
    return len(rows)


def _expire_logs(block: Block, now: float) -> int:
    rows = block.fetch(
        "SELECT key FROM response WHERE logged AND log_expires <= ? LIMIT ?", (now, BATCH // 10)
    )
    for (key,) in rows:
        _note(block, "log", key)
        block.execute("UPDATE response SET logged = 0 WHERE key = ?", (key,))
    return len(rows)


def _clear_log(block: Block, key: int, limit: int) -> int:
    cleared = block.execute(
        "DELETE FROM log WHERE response = ? AND number IN "
        "(SELECT number FROM log WHERE response = ? LIMIT ?)",
        (key, key, limit),
    )
    if cleared < limit:
        _done(block, "log", key)
    return cleared


def _clear_chain(block: Block, key: int, limit: int) -> int:
    """Remove the links at places that nobody holds, and the items to which no other link leads."""
    ((held,),) = block.fetch(_HELD, {"chain": key})
    ((count, places, items),) = block.fetch(
        "SELECT count(*), json_group_array(place), json_group_array(item) FROM "
        "(SELECT place, item FROM link WHERE chain = ? AND place >= ? LIMIT ?)",
        (key, -1 if held is None else held, limit),
    )
    if count:
        block.execute(
            "DELETE FROM link WHERE chain = ? AND place IN (SELECT value FROM json_each(?))", (key, places)
        )
        _drop(block, items)
    if count < limit:
        _done(block, "chain", key)
        if held is None:
            ((parent,),) = block.fetch("SELECT parent FROM chain WHERE key = ?", (key,))
            block.execute("DELETE FROM chain WHERE key = ?", (key,))
            if parent is not None:
                let_go(block, parent)
    return int(count)


def _note(block: Block, kind: str, key: int) -> None:
    block.execute("INSERT OR IGNORE INTO garbage (kind, key) VALUES (?, ?)", (kind, key))


def _done(block: Block, kind: str, key: int) -> None:
    block.execute("DELETE FROM garbage WHERE kind = ? AND key = ?", (kind, key))

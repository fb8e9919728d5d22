"""What nobody holds any more is cleared away a few rows at a time, so that no writer waits long."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from modeld.errors import StoreFailed
from modeld.store.db import Database, Transaction

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


async def forget(transaction: Transaction, response: int) -> int:
    """Remove a response by its key, and let go of what it held; returns how many were removed, 0 or 1.

    Its run row stays, for `Responses.finish` to see that it was there.
    """
    rows = await transaction.fetch("SELECT chain, logged FROM response WHERE key = ?", (response,))
    for chain, logged in rows:
        await let_go(transaction, chain)
        if logged:
            await _note(transaction, "log", response)
        await transaction.execute("DELETE FROM response WHERE key = ?", (response,))
    return len(rows)


async def let_go(transaction: Transaction, chain: int) -> None:
    """Note that somebody no longer holds a chain."""
    await _note(transaction, "chain", chain)


async def drop(transaction: Transaction, items: Iterable[int]) -> None:
    """Remove those of the items to which no link leads."""
    await _drop(transaction, msgspec.json.encode(list(items)).decode())


async def _drop(transaction: Transaction, items: str) -> None:
    await transaction.execute(
        "DELETE FROM item WHERE key IN (SELECT value FROM json_each(?)) "
        "AND NOT EXISTS (SELECT 1 FROM link WHERE item = item.key)",
        (items,),
    )


async def clear(db: Database) -> None:
    """Clear away all that was let go of. Raises StoreFailed; what is left is cleared the next time."""
    while await db.fetch("SELECT 1 FROM garbage LIMIT 1"):
        async with db.write() as transaction:
            left = BATCH
            while left > 0:
                rows = await transaction.fetch("SELECT kind, key FROM garbage LIMIT 1")
                if not rows:
                    return
                ((kind, key),) = rows
                left -= 1 + await (_clear_log if kind == "log" else _clear_chain)(transaction, key, left)


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
    while rows := await db.fetch(
        "SELECT key FROM response WHERE expires <= ? AND status NOT IN ('queued', 'in_progress') LIMIT ?",
        (now, BATCH // 10),
    ):
        async with db.write() as transaction:
            for (key,) in rows:
                gone += await forget(transaction, key)
    while rows := await db.fetch(
        "SELECT key FROM response WHERE logged AND log_expires <= ? LIMIT ?", (now, BATCH // 10)
    ):
        async with db.write() as transaction:
            for (key,) in rows:
                await _note(transaction, "log", key)
                await transaction.execute("UPDATE response SET logged = 0 WHERE key = ?", (key,))
    return gone


async def _clear_log(transaction: Transaction, key: int, limit: int) -> int:
    cleared = await transaction.execute(
        "DELETE FROM log WHERE response = ? AND number IN "
        "(SELECT number FROM log WHERE response = ? LIMIT ?)",
        (key, key, limit),
    )
    if cleared < limit:
        await _done(transaction, "log", key)
    return cleared


async def _clear_chain(transaction: Transaction, key: int, limit: int) -> int:
    """Remove the links at places that nobody holds, and the items to which no other link leads."""
    ((held,),) = await transaction.fetch(_HELD, {"chain": key})
    # Lists are handed over whole: each row of a result waits for the interpreter.
    ((count, places, items),) = await transaction.fetch(
        "SELECT count(*), json_group_array(place), json_group_array(item) FROM "
        "(SELECT place, item FROM link WHERE chain = ? AND place >= ? LIMIT ?)",
        (key, -1 if held is None else held, limit),
    )
    if count:
        await transaction.execute(
            "DELETE FROM link WHERE chain = ? AND place IN (SELECT value FROM json_each(?))", (key, places)
        )
        await _drop(transaction, items)
    if count < limit:
        await _done(transaction, "chain", key)
        if held is None:
            ((parent,),) = await transaction.fetch("SELECT parent FROM chain WHERE key = ?", (key,))
            await transaction.execute("DELETE FROM chain WHERE key = ?", (key,))
            if parent is not None:
                await let_go(transaction, parent)
    return int(count)


async def _note(transaction: Transaction, kind: str, key: int) -> None:
    await transaction.execute("INSERT OR IGNORE INTO garbage (kind, key) VALUES (?, ?)", (kind, key))


async def _done(transaction: Transaction, kind: str, key: int) -> None:
    await transaction.execute("DELETE FROM garbage WHERE kind = ? AND key = ?", (kind, key))

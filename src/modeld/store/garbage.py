"""What nobody holds any more is cleared away a few rows at a time, so that no writer waits long."""

from __future__ import annotations

from typing import Literal

from modeld.store.db import Database, Transaction

BATCH = 500
"""Rows that one transaction clears away at most."""

_HELD = """
    SELECT max(upto) FROM (
      SELECT max(upto) AS upto FROM response WHERE chain = :chain
      UNION ALL SELECT max(upto) FROM conversation WHERE chain = :chain
      UNION ALL SELECT max(at) FROM chain WHERE parent = :chain
    )
    """


async def let_go(transaction: Transaction, kind: Literal["chain", "log"], key: int) -> None:
    """Note that somebody no longer holds a chain, or that the response of a log is gone."""
    await transaction.execute("INSERT OR IGNORE INTO garbage (kind, key) VALUES (?, ?)", (kind, key))


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
                left -= 1 + await (_log if kind == "log" else _chain)(transaction, key, left)


async def _log(transaction: Transaction, key: int, limit: int) -> int:
    cleared = await transaction.execute(
        "DELETE FROM log WHERE response = ? AND number IN "
        "(SELECT number FROM log WHERE response = ? LIMIT ?)",
        (key, key, limit),
    )
    if cleared < limit:
        await _done(transaction, "log", key)
    return cleared


async def _chain(transaction: Transaction, key: int, limit: int) -> int:
    """Remove the links at places that nobody holds, and the items to which no other link leads."""
    ((held,),) = await transaction.fetch(_HELD, {"chain": key})
    links = await transaction.fetch(
        "SELECT place, item FROM link WHERE chain = ? AND place >= ? LIMIT ?",
        (key, -1 if held is None else held, limit),
    )
    await transaction.execute_many(
        "DELETE FROM link WHERE chain = ? AND place = ?", [(key, place) for place, _ in links]
    )
    await drop(transaction, [item for _, item in links])
    if len(links) < limit:
        if held is None:
            parents = await transaction.fetch("SELECT parent FROM chain WHERE key = ?", (key,))
            await transaction.execute("DELETE FROM chain WHERE key = ?", (key,))
            for (parent,) in parents:
                if parent is not None:
                    await let_go(transaction, "chain", parent)
        await _done(transaction, "chain", key)
    return len(links)


async def drop(transaction: Transaction, items: list[int]) -> None:
    """Remove those of the items to which no link leads."""
    await transaction.execute_many(
        "DELETE FROM item WHERE key = ? AND NOT EXISTS (SELECT 1 FROM link WHERE item = item.key)",
        [(item,) for item in items],
    )


async def _done(transaction: Transaction, kind: str, key: int) -> None:
    await transaction.execute("DELETE FROM garbage WHERE kind = ? AND key = ?", (kind, key))

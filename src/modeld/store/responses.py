"""Stored responses: one row each, its items in a chain that it shares with those it goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from modeld.store import chains, conversations, garbage, placement
from modeld.store.chains import Item, Ref
from modeld.store.db import Block, Database, Row
from modeld.store.records import Done, Draft, History, Origin, Stored

__all__ = ["Done", "Draft", "History", "Item", "Origin", "Responses", "Stored"]

_THERE = f"({placement.LIVE} OR expires IS NULL OR expires > :now)"
"""A response at work does not expire."""

_SHOWN = "id, status, body, created, expires, background, streamed, owner, log_expires, identity"
_WITH_RUN = "response LEFT JOIN run ON run.response = response.id"


def _reading(low: str, high: str, shown: str = "status") -> str:
    """Return the query for the items of a response from one of its places to before another."""
    return chains.reading(
        f"SELECT chain, {low} AS low, {high} AS high, {_SHOWN} FROM {_WITH_RUN} "
        f"WHERE id = :id AND identity = :identity AND {_THERE}",
        shown,
    )


_OUTPUT, _INPUTS, _HISTORY = (
    _reading("middle", "upto", _SHOWN),
    _reading("start", "middle"),
    _reading("0", "upto"),
)


class Responses:
    """The stored responses of all callers; each sees only those of its own identity.

    `owner` names this life of the daemon. All methods raise StoreFailed, and then nothing is half done.
    """

    def __init__(self, db: Database, owner: str) -> None:
        self._db = db
        self._owner = owner

    # --- written --------------------------------------------------------------------------------------------

    async def begin(self, draft: Draft) -> None:
        """Store a background response as queued, with its input, and note that this daemon works on it."""
        await self._db.transact(_begin, draft, self._owner, self._db.clock.time())

    async def finish(self, done: Done) -> bool:
        """Store a response's end, all of it or nothing.

        What was begun keeps the input and the origin of its beginning. False, and nothing changes, when it
        had ended before or was deleted meanwhile.
        """
        return await self._db.transact(_finish, done)

    async def log(self, id: str, events: Sequence[tuple[int, bytes]]) -> None:
        """Add events (number, data) to a streamed response's log; nothing happens once it is over or gone.

        An event that is there already stays as it is.
        """
        await self._db.transact(_log, id, events)

    async def beat(self, ids: Iterable[str], now: float) -> None:
        """Note that this daemon still works on these responses."""
        await self._db.execute(
            "UPDATE run SET beat = ? WHERE owner = ? AND response IN (SELECT value FROM json_each(?))",
            (now, self._owner, msgspec.json.encode(list(ids)).decode()),
        )

    async def delete(self, identity: str, id: str) -> bool:
        """Delete a response, its log, and those of its items that nothing else holds; False if unknown.

        One at work is deleted too: its end will not be stored.
        """
        deleted = await self._db.transact(_delete, identity, id, self._db.clock.time())
        if deleted:
            await garbage.clear_now(self._db)
        return deleted

    async def sweep(self, now: float) -> int:
        """Clear away what has expired by `now`, and what nothing holds; return how many responses went.

        In many small transactions: others write in between.
        """
        gone = await garbage.expire(self._db, now)
        await self._db.execute(
            "DELETE FROM run WHERE owner <> ? AND response NOT IN (SELECT id FROM response)", (self._owner,)
        )
        await garbage.clear(self._db)
        return gone

    # --- read -----------------------------------------------------------------------------------------------

    async def get(self, identity: str, id: str) -> Stored | None:
        """Return a response with its output, None when it is unknown, deleted, expired or another's."""
        found = await self._read(_OUTPUT, identity, id)
        return None if found is None else _stored(*found)

    async def inputs(self, identity: str, id: str) -> tuple[Item, ...] | None:
        """Return the items a response was asked with, in order; None as for `get`."""
        found = await self._read(_INPUTS, identity, id)
        return None if found is None else found[1]

    async def history(self, identity: str, id: str) -> History | None:
        """Return all items up to and with a response's output; None as for `get`.

        One that is not over has no output yet; its status says so.
        """
        found = await self._read(_HISTORY, identity, id)
        return None if found is None else History(found[1], found[0][0])

    async def find_items(self, identity: str, ids: Iterable[str]) -> dict[str, Item]:
        """Return the stored items with these ids, of responses and conversations; the newest of each id."""
        wanted = msgspec.json.encode(list(ids)).decode()
        # With max(), SQLite gives the other columns of the row that has it.
        rows = await self._db.fetch(
            "SELECT id, data, max(key) FROM item WHERE id IN (SELECT value FROM json_each(?)) "
            "AND identity = ? GROUP BY id",
            (wanted, identity),
        )
        return {id: msgspec.json.decode(data) for id, data, _ in rows}

    async def abandoned(self) -> list[Stored]:
        """Return the responses that nobody works on: an earlier life of the daemon began them."""
        rows = await self._db.fetch(
            f"SELECT {_SHOWN} FROM {_WITH_RUN} WHERE {placement.LIVE} AND owner IS NOT ?", (self._owner,)
        )
        return [_stored(row, ()) for row in rows]

    async def replay(self, id: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return at most `limit` logged events with numbers over `after`, in order; [] without a log."""
        return await self._db.fetch(
            "SELECT number, data FROM log WHERE response = "
            "(SELECT key FROM response WHERE id = ? AND logged AND (log_expires IS NULL OR log_expires > ?)) "
            "AND number > ? ORDER BY number LIMIT ?",
            (id, self._db.clock.time(), after, limit),
        )

    async def last_logged(self, id: str) -> int:
        """Return the number of the last logged event, -1 without a log."""
        ((number,),) = await self._db.fetch(
            "SELECT coalesce(max(number), -1) FROM log WHERE response = "
            "(SELECT key FROM response WHERE id = ?)",
            (id,),
        )
        return int(number)

    async def _read(self, query: str, identity: str, id: str) -> tuple[Row, tuple[Item, ...]] | None:
        now = self._db.clock.time()
        return chains.decoded(await self._db.fetch(query, {"id": id, "identity": identity, "now": now}))


def _stored(row: Sequence[Any], output: tuple[Item, ...]) -> Stored:
    id, status, body, created, expires, background, streamed, *rest = row
    return Stored(id, status, body, output, created, expires, bool(background), bool(streamed), *rest)


def _begin(block: Block, draft: Draft, owner: str, now: float) -> None:
    base = placement.anchor(block, draft)
    row = placement.placed(block, draft, base, ())
    placement.insert(block, draft, row, status="queued", background=True, streamed=draft.streamed)
    chain = None if base is None else base.chain
    block.execute(
        "INSERT INTO run (response, owner, beat, conversation, base) VALUES (?, ?, ?, ?, ?)",
        (draft.id, owner, now, draft.origin.conversation, chain),
    )


def _finish(block: Block, done: Done) -> bool:
    runs = block.fetch("SELECT conversation, base FROM run WHERE response = ?", (done.id,))
    rows = block.fetch(
        f"SELECT key, chain, start, upto, {placement.LIVE}, logged FROM response WHERE id = ?", (done.id,)
    )
    if runs:
        block.execute("DELETE FROM run WHERE response = ?", (done.id,))
    if not rows:
        return not runs and placement.whole(block, done)
    ((key, chain, start, upto, live, logged),) = rows
    if not live:
        return False
    end = chains.appended(block, Ref(chain, upto), chains.stored(block, done.identity, done.outputs))
    conversation, base = runs[0] if runs else (None, None)
    if conversation is not None and done.status in placement.GROWING:
        before = None if base is None else Ref(base, start)
        conversations.follow(block, done.identity, conversation, start, end, base=before)
    block.execute(
        "UPDATE response SET status = ?, body = ?, expires = ?, chain = ?, upto = ?, log_expires = ? "
        "WHERE key = ?",
        (done.status, done.body, done.expires, end.chain, end.upto, done.log_expires, key),
    )
    if logged:
        placement.add_events(block, key, done.log)
    if not done.keep:
        garbage.forget(block, key)
    return True


def _log(block: Block, id: str, events: Sequence[tuple[int, bytes]]) -> None:
    for (key,) in block.fetch(
        f"SELECT key FROM response WHERE id = ? AND logged AND {placement.LIVE}", (id,)
    ):
        placement.add_events(block, key, events)


def _delete(block: Block, identity: str, id: str, now: float) -> bool:
    rows = block.fetch(
        f"SELECT key FROM response WHERE id = :id AND identity = :identity AND {_THERE}",
        {"id": id, "identity": identity, "now": now},
    )
    for (key,) in rows:
        garbage.forget(block, key)
    return bool(rows)

"""Stored responses: one row each, its items in a chain that it shares with those it goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from modeld.store import chains, conversations, garbage
from modeld.store.chains import Item, Ref
from modeld.store.db import Database, Row, Transaction

UNFINISHED = ("queued", "in_progress")
"""The statuses of a response at work; all others are final."""

GROWING = ("completed", "incomplete")
"""How a response must end for its items to go into its conversation."""

_LIVE = "status IN ('queued', 'in_progress')"
_ALIVE = f"({_LIVE} OR expires IS NULL OR expires > :now)"
"""A response at work does not expire."""

_SHOWN = (
    "body",
    "id",
    "status",
    "created",
    "expires",
    "background",
    "streamed",
    "owner",
    "log_expires",
    "identity",
)


def _query(low: str, high: str) -> str:
    return chains.reading(
        f"""
        SELECT chain, {low} AS low, {high} AS high, body, id, status, created, expires, background, streamed,
          owner, log_expires, identity
        FROM response LEFT JOIN run ON run.response = response.id
        WHERE id = :id AND identity = :identity AND {_ALIVE}
        """,
        *_SHOWN,
    )


_OUTPUT, _INPUTS, _HISTORY = _query("middle", "upto"), _query("start", "middle"), _query("0", "upto")


class Origin(msgspec.Struct, frozen=True):
    """What a response goes on from: an earlier response, a conversation, or nothing."""

    previous: str | None = None
    conversation: str | None = None


class Draft(msgspec.Struct, frozen=True):
    """A response as it is queued.

    `body`: its JSON, with output []. Times are seconds since the epoch; `expires` None: never. `inputs`: the
    items it was asked with; `before`: all items before those, needed when what it goes on from is not stored.
    """

    id: str
    identity: str
    body: bytes
    created: float
    expires: float | None
    inputs: tuple[Item, ...]
    before: tuple[Item, ...]
    origin: Origin
    streamed: bool


class Done(msgspec.Struct, frozen=True):
    """A response at its end, else as a Draft.

    `keep` False: only its conversation grows. `log`: the events that are not in the log yet, as (number,
    data); they can be read until `log_expires` (None: as long as the response is there).
    """

    id: str
    identity: str
    status: str
    body: bytes
    created: float
    expires: float | None
    inputs: tuple[Item, ...]
    outputs: tuple[Item, ...]
    before: tuple[Item, ...]
    origin: Origin
    keep: bool = True
    log: tuple[tuple[int, bytes], ...] = ()
    log_expires: float | None = None


class Stored(msgspec.Struct, frozen=True):
    """A response as it is stored. `owner`: the life of the daemon that works on it, None when it is over."""

    id: str
    status: str
    body: bytes
    output: tuple[Item, ...]
    created: float
    expires: float | None
    background: bool
    streamed: bool
    owner: str | None
    log_expires: float | None = None
    identity: str = ""


class History(msgspec.Struct, frozen=True):
    """All items up to and with a response's output, and its status."""

    items: tuple[Item, ...]
    status: str


class Responses:
    """The stored responses of all callers; each sees only those of its own identity.

    `owner` names this life of the daemon. All methods raise StoreFailed, and then nothing is half done.
    """

    def __init__(self, db: Database, owner: str) -> None:
        self._db = db
        self._owner = owner

    async def begin(self, draft: Draft) -> None:
        """Store a background response as queued, with its input, and note that this daemon works on it."""
        async with self._db.write() as transaction:
            base = await self._base(transaction, draft)
            after, start, middle = await _placed(transaction, base, draft)
            await transaction.execute(
                "INSERT INTO response (id, identity, status, body, created, expires, chain, start, middle, "
                "upto, background, streamed, logged) VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
                (
                    draft.id,
                    draft.identity,
                    draft.body,
                    draft.created,
                    draft.expires,
                    after.chain,
                    start,
                    middle,
                    after.upto,
                    draft.streamed,
                    draft.streamed,
                ),
            )
            await transaction.execute(
                "INSERT INTO run (response, owner, beat, conversation, base) VALUES (?, ?, ?, ?, ?)",
                (
                    draft.id,
                    self._owner,
                    self._db.clock.time(),
                    draft.origin.conversation,
                    base.chain if base else None,
                ),
            )

    async def update(self, id: str, status: str, body: bytes) -> bool:
        """Replace status and body of a response at work; False when it is over or gone."""
        changed = await self._db.execute(
            f"UPDATE response SET status = ?, body = ? WHERE id = ? AND {_LIVE}", (status, body, id)
        )
        return changed > 0

    async def finish(self, done: Done) -> bool:
        """Store a response's end, all of it or nothing.

        What was begun keeps the input and the origin of its beginning. False, and nothing changes, when it
        had ended before or was deleted meanwhile.
        """
        async with self._db.write() as transaction:
            runs = await transaction.fetch(
                "SELECT conversation, base FROM run WHERE response = ?", (done.id,)
            )
            rows = await transaction.fetch(
                f"SELECT key, chain, start, upto, {_LIVE}, identity FROM response WHERE id = ?", (done.id,)
            )
            await transaction.execute("DELETE FROM run WHERE response = ?", (done.id,))
            if not rows:
                return not runs and await self._insert(transaction, done)
            ((key, chain, start, upto, live, identity),) = rows
            if not live or identity != done.identity:
                return False
            keys = await chains.stored(transaction, done.identity, done.outputs)
            after = await chains.appended(transaction, Ref(chain, upto), keys)
            conversation, base = runs[0] if runs else (None, None)
            if conversation is not None and done.status in GROWING:
                before = Ref(base, start) if base is not None else None
                await conversations.follow(transaction, done.identity, conversation, before, after, start)
            await transaction.execute(
                "UPDATE response SET status = ?, body = ?, expires = ?, chain = ?, upto = ?, log_expires = ? "
                "WHERE key = ?",
                (done.status, done.body, done.expires, after.chain, after.upto, done.log_expires, key),
            )
            await _logged(transaction, key, done.log)
            if not done.keep:
                await _forget(transaction, key)
            return True

    async def _insert(self, transaction: Transaction, done: Done) -> bool:
        """Store a response that was never begun."""
        conversation = done.origin.conversation if done.status in GROWING else None
        if not done.keep:
            if conversation is not None:
                keys = await chains.stored(transaction, done.identity, (*done.inputs, *done.outputs))
                await conversations.grow(transaction, done.identity, conversation, keys)
            return True
        base = await self._base(transaction, done)
        after, start, middle = await _placed(transaction, base, done, done.outputs)
        if conversation is not None:
            await conversations.follow(transaction, done.identity, conversation, base, after, start)
        await transaction.execute(
            "INSERT INTO response (id, identity, status, body, created, expires, chain, start, middle, upto, "
            "background, streamed, logged, log_expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
            (
                done.id,
                done.identity,
                done.status,
                done.body,
                done.created,
                done.expires,
                after.chain,
                start,
                middle,
                after.upto,
                bool(done.log),
                bool(done.log),
                done.log_expires,
            ),
        )
        ((key,),) = await transaction.fetch("SELECT last_insert_rowid()")
        await _logged(transaction, key, done.log)
        return True

    async def _base(self, transaction: Transaction, new: Draft | Done) -> Ref | None:
        """Return where the items stand that a new response goes on from, None when they are not stored."""
        if new.origin.previous is not None:
            rows = await transaction.fetch(
                f"SELECT chain, upto FROM response WHERE id = ? AND identity = ? AND NOT {_LIVE}",
                (new.origin.previous, new.identity),
            )
            return Ref(*rows[0]) if rows else None
        if new.origin.conversation is not None:
            return await conversations.standing(
                transaction, new.identity, new.origin.conversation, new.before
            )
        return None

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
        return None if found is None else History(found[1], found[0][2])

    async def _read(self, query: str, identity: str, id: str) -> tuple[Row, tuple[Item, ...]] | None:
        now = self._db.clock.time()
        return chains.decoded(await self._db.fetch(query, {"id": id, "identity": identity, "now": now}))

    async def find_items(self, identity: str, ids: Iterable[str]) -> dict[str, Item]:
        """Return the stored items with these ids, of responses and conversations; the newest of each id."""
        wanted = msgspec.json.encode(list(ids)).decode()
        rows = await self._db.fetch(
            "SELECT id, data, max(key) FROM item WHERE id IN (SELECT value FROM json_each(?)) "
            "AND identity = ? GROUP BY id",
            (wanted, identity),
        )
        return {id: msgspec.json.decode(data) for id, data, _ in rows}

    async def delete(self, identity: str, id: str) -> bool:
        """Delete a response, its log, and those of its items that nothing else holds; False if unknown.

        One at work is deleted too: its end will not be stored.
        """
        async with self._db.write() as transaction:
            rows = await transaction.fetch(
                f"SELECT key FROM response WHERE id = :id AND identity = :identity AND {_ALIVE}",
                {"id": id, "identity": identity, "now": self._db.clock.time()},
            )
            for (key,) in rows:
                await _forget(transaction, key)
        if rows:
            await garbage.clear(self._db)
        return bool(rows)

    async def sweep(self, now: float) -> int:
        """Clear away what has expired by `now`, and all that nothing holds; return how many responses went.

        In many small transactions: others write in between.
        """
        gone = 0
        while rows := await self._db.fetch(
            f"SELECT key FROM response WHERE expires <= ? AND NOT {_LIVE} LIMIT ?", (now, garbage.BATCH // 10)
        ):
            async with self._db.write() as transaction:
                for (key,) in rows:
                    gone += await _forget(transaction, key)
        while rows := await self._db.fetch(
            "SELECT key FROM response WHERE logged AND log_expires <= ? LIMIT ?", (now, garbage.BATCH // 10)
        ):
            async with self._db.write() as transaction:
                for (key,) in rows:
                    await garbage.let_go(transaction, "log", key)
                    await transaction.execute("UPDATE response SET logged = 0 WHERE key = ?", (key,))
        await self._db.execute(
            "DELETE FROM run WHERE owner <> ? AND response NOT IN (SELECT id FROM response)", (self._owner,)
        )
        await garbage.clear(self._db)
        return gone

    async def abandoned(self) -> list[Stored]:
        """Return the responses that are at work for nobody: an earlier life of the daemon began them."""
        rows = await self._db.fetch(
            f"SELECT {', '.join(_SHOWN)} FROM response LEFT JOIN run ON run.response = response.id "
            f"WHERE {_LIVE} AND owner IS NOT ?",
            (self._owner,),
        )
        return [_stored(row, ()) for row in rows]

    async def beat(self, ids: Iterable[str], now: float) -> None:
        """Note that this daemon still works on these responses."""
        async with self._db.write() as transaction:
            await transaction.execute_many(
                "UPDATE run SET beat = ? WHERE response = ? AND owner = ?",
                [(now, id, self._owner) for id in ids],
            )

    async def log(self, id: str, events: Sequence[tuple[int, bytes]]) -> None:
        """Add events to the log of a response at work; nothing happens when it is over or gone."""
        async with self._db.write() as transaction:
            rows = await transaction.fetch(f"SELECT key FROM response WHERE id = ? AND {_LIVE}", (id,))
            for (key,) in rows:
                await _logged(transaction, key, events)

    async def replay(self, id: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return at most `limit` logged events with numbers over `after`, in order; [] without a log."""
        return await self._db.fetch(
            "SELECT number, data FROM log WHERE response = "
            "(SELECT key FROM response WHERE id = ? AND logged AND (log_expires IS NULL OR log_expires > ?)) "
            "AND number > ? ORDER BY number LIMIT ?",
            (id, self._db.clock.time(), after, limit),
        )


def _stored(row: Row, output: tuple[Item, ...]) -> Stored:
    body, id, status, created, expires, background, streamed, owner, log_expires, identity = row
    return Stored(
        id,
        status,
        body,
        output,
        created,
        expires,
        bool(background),
        bool(streamed),
        owner,
        log_expires,
        identity,
    )


async def _placed(
    transaction: Transaction, base: Ref | None, new: Draft | Done, outputs: Sequence[Item] = ()
) -> tuple[Ref, int, int]:
    """Put a new response's items behind its base; return where they end, and the places start and middle."""
    if base is None and new.before:
        keys = await chains.stored(transaction, new.identity, new.before, known=True)
        base = await chains.appended(transaction, None, keys)
    start = 0 if base is None else base.upto
    keys = await chains.stored(transaction, new.identity, new.inputs, known=True)
    keys += await chains.stored(transaction, new.identity, outputs)
    after = await chains.appended(transaction, base, keys)
    return after, start, start + len(new.inputs)


async def _logged(transaction: Transaction, key: int, events: Sequence[tuple[int, bytes]]) -> None:
    await transaction.execute_many(
        "INSERT OR IGNORE INTO log (response, number, data) VALUES (?, ?, ?)",
        [(key, number, data) for number, data in events],
    )


async def _forget(transaction: Transaction, key: int) -> int:
    """Remove a response's row and let go of what it held. A run row stays: its end is not to be stored."""
    ((chain, logged),) = await transaction.fetch("SELECT chain, logged FROM response WHERE key = ?", (key,))
    await garbage.let_go(transaction, "chain", chain)
    if logged:
        await garbage.let_go(transaction, "log", key)
    return await transaction.execute("DELETE FROM response WHERE key = ?", (key,))

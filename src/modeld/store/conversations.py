"""Stored conversations: each is a list of items that callers and responses add to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from modeld.store import chains, garbage
from modeld.store.chains import Item, Ref
from modeld.store.db import Database, Row, Transaction

_SEEN = "SELECT chain, 0 AS low, upto AS high FROM conversation WHERE id = :id AND identity = :identity"
_READING = chains.reading(_SEEN, "TRUE")
_IDS = f"""
    {chains.path(_SEEN)}
    SELECT json_group_array(link.place), json_group_array(item.id)
    FROM {chains.LINKS} CROSS JOIN item ON item.key = link.item
    """
_FOUND = f"""
    {chains.path(_SEEN)}
    SELECT link.place, link.chain, link.item, item.data
    FROM item
    CROSS JOIN link ON link.item = item.key
    CROSS JOIN path ON path.chain = link.chain AND link.place >= path.low AND link.place < path.high
    WHERE item.id = :item AND item.identity = :identity ORDER BY link.place
    """
_KEYS = f"""
    {chains.path("SELECT :chain AS chain, :low AS low, :high AS high")}
    SELECT link.place, link.item FROM {chains.LINKS} ORDER BY link.place
    """
_COPY = f"""
    {chains.path("SELECT :chain AS chain, :low AS low, :high AS high")}
    INSERT INTO link (chain, place, item) SELECT :fork, link.place, link.item
    FROM {chains.LINKS} WHERE link.place NOT IN (SELECT value FROM json_each(:gone))
    """


class Conversation(msgspec.Struct, frozen=True):
    """A conversation without its items. `created`: seconds since the epoch."""

    id: str
    metadata: dict[str, str]
    created: float


class Conversations:
    """The conversations of all callers; each sees only those of its own identity. They do not expire.

    All methods raise StoreFailed, and then nothing is half done.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    async def create(
        self, identity: str, id: str, metadata: dict[str, str], items: Sequence[Item], created: float
    ) -> Conversation:
        """Store a new conversation with its first items."""
        async with self._db.write() as transaction:
            keys = await chains.stored(transaction, identity, items, known=True)
            end = await chains.appended(transaction, None, keys)
            await transaction.execute(
                "INSERT INTO conversation (id, identity, metadata, created, chain, upto) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (id, identity, msgspec.json.encode(metadata).decode(), created, end.chain, end.upto),
            )
        return Conversation(id, metadata, created)

    async def get(self, identity: str, id: str) -> Conversation | None:
        """Return a conversation, None when it is unknown, deleted or another's."""
        rows = await self._db.fetch(
            "SELECT id, metadata, created FROM conversation WHERE id = ? AND identity = ?", (id, identity)
        )
        return _conversation(rows[0]) if rows else None

    async def update(self, identity: str, id: str, metadata: dict[str, str]) -> Conversation | None:
        """Replace the metadata; None as for `get`."""
        await self._db.execute(
            "UPDATE conversation SET metadata = ? WHERE id = ? AND identity = ?",
            (msgspec.json.encode(metadata).decode(), id, identity),
        )
        return await self.get(identity, id)

    async def delete(self, identity: str, id: str) -> bool:
        """Delete a conversation, and those of its items that no response holds; False when it is unknown."""
        async with self._db.write() as transaction:
            end = await _end(transaction, identity, id)
            if end is None:
                return False
            await transaction.execute("DELETE FROM conversation WHERE id = ?", (id,))
            await garbage.let_go(transaction, end.chain)
        await garbage.clear_now(self._db)
        return True

    async def items(self, identity: str, id: str) -> tuple[Item, ...] | None:
        """Return the items in order; None as for `get`."""
        found = chains.decoded(await self._db.fetch(_READING, {"id": id, "identity": identity}))
        return None if found is None else found[1]

    async def add(self, identity: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end; False when the conversation is unknown."""
        async with self._db.write() as transaction:
            if await _end(transaction, identity, id) is None:
                return False
            keys = await chains.stored(transaction, identity, items, known=True)
            return await grow(transaction, identity, id, keys)

    async def item(self, identity: str, id: str, item_id: str) -> Item | None:
        """Return one item of a conversation, None when either is unknown."""
        rows = await self._db.fetch(_FOUND, {"id": id, "identity": identity, "item": item_id})
        return msgspec.json.decode(rows[-1][3], type=Item) if rows else None

    async def remove(self, identity: str, id: str, item_id: str) -> bool:
        """Take an item out of a conversation; responses that were made with it keep it. False if unknown."""
        async with self._db.write() as transaction:
            end = await _end(transaction, identity, id)
            rows = await transaction.fetch(_FOUND, {"id": id, "identity": identity, "item": item_id})
            if end is None or not rows:
                return False
            await _take_out(transaction, id, end, rows)
        await garbage.clear_now(self._db)
        return True


async def standing(transaction: Transaction, identity: str, id: str, before: Sequence[Item]) -> Ref | None:
    """Return where a conversation ends, if its items are those of `before`; None when they are others."""
    ((places, ids),) = await transaction.fetch(_IDS, {"id": id, "identity": identity})
    in_order = sorted(zip(msgspec.json.decode(places), msgspec.json.decode(ids), strict=True))
    if [id for _, id in in_order] != [item.get("id") for item in before]:
        return None
    return await _end(transaction, identity, id)


async def grow(transaction: Transaction, identity: str, id: str, keys: Sequence[int]) -> bool:
    """Put stored items at the end of a conversation; False when it is unknown."""
    end = await _end(transaction, identity, id)
    if end is None:
        return False
    await _move(transaction, id, end, await chains.appended(transaction, end, keys))
    return True


async def follow(
    transaction: Transaction, identity: str, id: str, start: int, end: Ref, *, base: Ref | None
) -> None:
    """Add a response's items, at the places from `start` to before its `end`, to a conversation.

    `base`: where the conversation ended when the response began. If it still ends there, it moves on to where
    the response ends; else it has changed meanwhile, and gets the items behind what it has now.
    """
    now = await _end(transaction, identity, id)
    if now is not None and now == base:
        await _move(transaction, id, now, end)
        return
    rows = await transaction.fetch(_KEYS, {"chain": end.chain, "low": start, "high": end.upto})
    await grow(transaction, identity, id, [key for _, key in rows])


async def _end(transaction: Transaction, identity: str, id: str) -> Ref | None:
    rows = await transaction.fetch(
        "SELECT chain, upto FROM conversation WHERE id = ? AND identity = ?", (id, identity)
    )
    return Ref(*rows[0]) if rows else None


async def _move(transaction: Transaction, id: str, old: Ref, new: Ref) -> None:
    await transaction.execute(
        "UPDATE conversation SET chain = ?, upto = ? WHERE id = ?", (new.chain, new.upto, id)
    )
    if new.chain != old.chain:
        await garbage.let_go(transaction, old.chain)


async def _take_out(transaction: Transaction, id: str, end: Ref, found: Sequence[Row]) -> None:
    """Take items, as found, out of a conversation, and out of its chain if nothing else holds them there."""
    first, chain, *_ = found[0]
    held = await transaction.fetch(
        "SELECT 1 FROM response WHERE chain = :chain AND upto > :first "
        "UNION ALL SELECT 1 FROM chain WHERE parent = :chain AND at > :first LIMIT 1",
        {"chain": chain, "first": first},
    )
    if chain == end.chain and not held:
        await transaction.execute_many(
            "DELETE FROM link WHERE chain = ? AND place = ?", [(chain, place) for place, *_ in found]
        )
        await garbage.drop(transaction, [item for _, _, item, _ in found])
        return
    fork = await chains.begun(transaction, chain, first, ())
    gone = msgspec.json.encode([place for place, *_ in found]).decode()
    await transaction.execute(
        _COPY, {"chain": end.chain, "low": first, "high": end.upto, "fork": fork, "gone": gone}
    )
    await _move(transaction, id, end, Ref(fork, end.upto))


def _conversation(row: Row) -> Conversation:
    id, metadata, created = row
    return Conversation(id, msgspec.json.decode(metadata, type=dict[str, str]), created)

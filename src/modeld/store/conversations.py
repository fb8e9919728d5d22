"""Stored conversations: each is a list of items that callers and responses add to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from modeld.store import chains, garbage
from modeld.store.chains import Item, Ref
from modeld.store.db import Database, Row, Transaction

_QUERY = chains.reading(
    "SELECT chain, 0 AS low, upto AS high, id FROM conversation WHERE id = :id AND identity = :identity", "id"
)
_PATH = """
    WITH RECURSIVE path (chain, at, parent, high) AS (
      SELECT key, at, parent, :upto FROM chain WHERE key = :chain
      UNION ALL
      SELECT chain.key, chain.at, chain.parent, min(path.at, path.high)
      FROM path CROSS JOIN chain ON chain.key = path.parent
    )
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
            await garbage.let_go(transaction, "chain", end.chain)
        await garbage.clear(self._db)
        return True

    async def items(self, identity: str, id: str) -> tuple[Item, ...] | None:
        """Return the items in order; None as for `get`."""
        found = chains.decoded(await self._db.fetch(_QUERY, {"id": id, "identity": identity}))
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
        async with self._db.write() as transaction:
            end = await _end(transaction, identity, id)
            if end is None:
                return None
            places = await _places(transaction, identity, end, item_id)
            if not places:
                return None
            ((data,),) = await transaction.fetch("SELECT data FROM item WHERE key = ?", (places[-1][2],))
        item: Item = msgspec.json.decode(data)
        return item

    async def remove(self, identity: str, id: str, item_id: str) -> bool:
        """Take an item out of a conversation; responses that were made with it keep it. False if unknown."""
        async with self._db.write() as transaction:
            end = await _end(transaction, identity, id)
            places = [] if end is None else await _places(transaction, identity, end, item_id)
            if end is None or not places:
                return False
            await _take_out(transaction, id, end, places)
        await garbage.clear(self._db)
        return True


async def standing(transaction: Transaction, identity: str, id: str, before: Sequence[Item]) -> Ref | None:
    """Return where a conversation ends, if its items are those of `before`; None when they are others."""
    end = await _end(transaction, identity, id)
    if end is None:
        return None
    rows = await transaction.fetch(
        f"{_PATH} SELECT link.place, item.id FROM path "
        "CROSS JOIN link ON link.chain = path.chain AND link.place < path.high "
        "CROSS JOIN item ON item.key = link.item",
        {"chain": end.chain, "upto": end.upto},
    )
    same = [id for _, id in sorted(rows)] == [item.get("id") for item in before]
    return end if same else None


async def follow(
    transaction: Transaction, identity: str, id: str, base: Ref | None, after: Ref, start: int
) -> None:
    """Add a response's items, at the places from `start` to the end of `after`, to a conversation.

    `base`: where the conversation ended when the response began. If it still ends there, it moves on to where
    the response ends; else it has changed meanwhile, and gets the items behind what it has now.
    """
    end = await _end(transaction, identity, id)
    if end is not None and end == base:
        await _move(transaction, id, end, after)
        return
    rows = await transaction.fetch(
        f"{_PATH} SELECT link.place, link.item FROM path "
        "CROSS JOIN link ON link.chain = path.chain AND link.place < path.high AND link.place >= :low",
        {"chain": after.chain, "upto": after.upto, "low": start},
    )
    await grow(transaction, identity, id, [item for _, item in sorted(rows)])


async def grow(transaction: Transaction, identity: str, id: str, keys: Sequence[int]) -> bool:
    """Put stored items at the end of a conversation; False when it is unknown."""
    end = await _end(transaction, identity, id)
    if end is None:
        return False
    await _move(transaction, id, end, await chains.appended(transaction, end, keys))
    return True


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
        await garbage.let_go(transaction, "chain", old.chain)


async def _places(transaction: Transaction, identity: str, end: Ref, item_id: str) -> list[Row]:
    """Return (place, chain, item key) of all items with an id, in order."""
    return await transaction.fetch(
        f"{_PATH} SELECT link.place, link.chain, link.item FROM item "
        "CROSS JOIN link ON link.item = item.key "
        "CROSS JOIN path ON path.chain = link.chain AND link.place < path.high "
        "WHERE item.id = :item AND item.identity = :identity ORDER BY link.place",
        {"chain": end.chain, "upto": end.upto, "item": item_id, "identity": identity},
    )


async def _take_out(transaction: Transaction, id: str, end: Ref, places: list[Row]) -> None:
    """Take the items at these places out of a conversation, out of its chain if nothing else holds them."""
    first, chain, _ = places[0]
    others = await transaction.fetch(
        "SELECT 1 FROM response WHERE chain = :chain AND upto > :first "
        "UNION ALL SELECT 1 FROM chain WHERE parent = :chain AND at > :first LIMIT 1",
        {"chain": end.chain, "first": first},
    )
    if chain == end.chain and not others:
        await transaction.execute_many(
            "DELETE FROM link WHERE chain = ? AND place = ?", [(chain, place) for place, _, _ in places]
        )
        await garbage.drop(transaction, [item for _, _, item in places])
        return
    rows = await transaction.fetch(
        f"{_PATH} SELECT link.place, link.item FROM path "
        "CROSS JOIN link ON link.chain = path.chain AND link.place < path.high AND link.place > :first",
        {"chain": end.chain, "upto": end.upto, "first": first},
    )
    gone = {place for place, _, _ in places}
    rest = sorted((place, item) for place, item in rows if place not in gone)
    fork = await chains.forked(transaction, chain, first, rest)
    await _move(transaction, id, end, Ref(fork, end.upto))


def _conversation(row: Row) -> Conversation:
    id, metadata, created = row
    return Conversation(id, msgspec.json.decode(metadata, type=dict[str, str]), created)

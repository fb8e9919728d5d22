"""Stored conversations: each is a list of items that callers and responses add to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from modeld.store import chains, garbage
from modeld.store.chains import Item, Ref
from modeld.store.db import Block, Database, Row

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
        made = Conversation(id, metadata, created)
        await self._db.transact(_create, identity, made, items)
        return made

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
        deleted = await self._db.transact(_delete, identity, id)
        if deleted:
            await garbage.clear_now(self._db)
        return deleted

    async def items(self, identity: str, id: str) -> tuple[Item, ...] | None:
        """Return the items in order; None as for `get`."""
        found = chains.decoded(await self._db.fetch(_READING, {"id": id, "identity": identity}))
        return None if found is None else found[1]

    async def add(self, identity: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end; False when the conversation is unknown."""
        return await self._db.transact(_add, identity, id, items)

    async def item(self, identity: str, id: str, item_id: str) -> Item | None:
        """Return one item of a conversation, None when either is unknown."""
        rows = await self._db.fetch(_FOUND, {"id": id, "identity": identity, "item": item_id})
        return msgspec.json.decode(rows[-1][3], type=Item) if rows else None

    async def remove(self, identity: str, id: str, item_id: str) -> bool:
        """Take an item out of a conversation; responses that were made with it keep it. False if unknown."""
        removed = await self._db.transact(_remove, identity, id, item_id)
        if removed:
            await garbage.clear_now(self._db)
        return removed


def _create(block: Block, identity: str, made: Conversation, items: Sequence[Item]) -> None:
    end = chains.appended(block, None, chains.stored(block, identity, items, known=True))
    metadata = msgspec.json.encode(made.metadata).decode()
    block.execute(
        "INSERT INTO conversation (id, identity, metadata, created, chain, upto) VALUES (?, ?, ?, ?, ?, ?)",
        (made.id, identity, metadata, made.created, end.chain, end.upto),
    )


def _delete(block: Block, identity: str, id: str) -> bool:
    end = _end(block, identity, id)
    if end is None:
        return False
    block.execute("DELETE FROM conversation WHERE id = ?", (id,))
    garbage.let_go(block, end.chain)
    return True


def _add(block: Block, identity: str, id: str, items: Sequence[Item]) -> bool:
    end = _end(block, identity, id)
    if end is None:
        return False
    keys = chains.stored(block, identity, items, known=True)
    _move(block, id, end, chains.appended(block, end, keys))
    return True


def _remove(block: Block, identity: str, id: str, item_id: str) -> bool:
    end = _end(block, identity, id)
    rows = block.fetch(_FOUND, {"id": id, "identity": identity, "item": item_id})
    if end is None or not rows:
        return False
    _take_out(block, id, end, rows)
    return True


def standing(block: Block, identity: str, id: str, before: Sequence[Item]) -> Ref | None:
    """Return where a conversation ends, if its items are those of `before`; None when they are others."""
    ((places, ids),) = block.fetch(_IDS, {"id": id, "identity": identity})
    in_order = sorted(zip(msgspec.json.decode(places), msgspec.json.decode(ids), strict=True))
    if [id for _, id in in_order] != [item.get("id") for item in before]:
        return None
    return _end(block, identity, id)


def grow(block: Block, identity: str, id: str, keys: Sequence[int]) -> bool:
    """Put stored items at the end of a conversation; False when it is unknown."""
    end = _end(block, identity, id)
    if end is None:
        return False
    _move(block, id, end, chains.appended(block, end, keys))
    return True


def follow(block: Block, identity: str, id: str, start: int, end: Ref, *, base: Ref | None) -> None:
    """Add a response's items, at the places from `start` to before its `end`, to a conversation.

    `base`: where the conversation ended when the response began. If it still ends there, it moves on to where
    the response ends; else it has changed meanwhile, and gets the items behind what it has now.
    """
    now = _end(block, identity, id)
    if now is not None and now == base:
        _move(block, id, now, end)
        return
    rows = block.fetch(_KEYS, {"chain": end.chain, "low": start, "high": end.upto})
    grow(block, identity, id, [key for _, key in rows])


def _end(block: Block, identity: str, id: str) -> Ref | None:
    rows = block.fetch("SELECT chain, upto FROM conversation WHERE id = ? AND identity = ?", (id, identity))
    return Ref(*rows[0]) if rows else None


def _move(block: Block, id: str, old: Ref, new: Ref) -> None:
    block.execute("UPDATE conversation SET chain = ?, upto = ? WHERE id = ?", (new.chain, new.upto, id))
    if new.chain != old.chain:
        garbage.let_go(block, old.chain)


def _take_out(block: Block, id: str, end: Ref, found: Sequence[Row]) -> None:
    """Take items, as found, out of a conversation, and out of its chain if nothing else holds them there."""
    first, chain, *_ = found[0]
    held = block.fetch(
        "SELECT 1 FROM response WHERE chain = :chain AND upto > :first "
        "UNION ALL SELECT 1 FROM chain WHERE parent = :chain AND at > :first LIMIT 1",
        {"chain": chain, "first": first},
    )
    if chain == end.chain and not held:
        block.execute_many(
            "DELETE FROM link WHERE chain = ? AND place = ?", [(chain, place) for place, *_ in found]
        )
        garbage.drop(block, [item for _, _, item, _ in found])
        return
    fork = chains.begun(block, chain, first, ())
    gone = msgspec.json.encode([place for place, *_ in found]).decode()
    block.execute(_COPY, {"chain": end.chain, "low": first, "high": end.upto, "fork": fork, "gone": gone})
    _move(block, id, end, Ref(fork, end.upto))


def _conversation(row: Row) -> Conversation:
    id, metadata, created = row
    return Conversation(id, msgspec.json.decode(metadata, type=dict[str, str]), created)

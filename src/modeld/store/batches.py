"""Stored batches: how each stands, as JSON that this room does not look into."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from modeld.store import files as stored_files
from modeld.store import tokens
from modeld.store.db import Block, Database
from modeld.store.files import StoredFile
from modeld.store.tokens import Token

_BATCH = "id, identity, body, over, expires"
_THERE = "(expires IS NULL OR expires > :now)"


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch. `over`: nothing more happens to it; `expires`: when it is forgotten then, None for never."""

    id: str
    identity: str
    body: bytes
    over: bool = False
    expires: float | None = None


class BatchAdded(msgspec.Struct, frozen=True):
    """What became of a batch. `new` False: `batch` is the one that was there by the caller's own name.

    `conflict`: that name was used for something else.
    """

    batch: StoredBatch
    new: bool = True
    conflict: bool = False


class Batches:
    """The batches of all callers; each sees only those of its own identity. All methods raise StoreFailed."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, batch: StoredBatch, token: Token | None = None) -> BatchAdded:
        """Take a batch in, and say what became of it: one with a token that was used is not stored again."""
        return await self._db.transact(_add, batch, token, self._db.clock.time())

    async def withdraw(self, id: str) -> None:
        """Forget a batch that nobody knows of yet."""
        await self._db.execute("DELETE FROM batch WHERE id = ?", (id,))

    async def put(self, batch: StoredBatch, files: Sequence[StoredFile] = ()) -> None:
        """Store how a batch stands now, and with it the files that it has written: both or neither."""
        async with self._db.write() as transaction:
            await stored_files.insert(transaction, files)
            await transaction.execute(
                "UPDATE batch SET body = ?, over = ?, expires = ? WHERE id = ?",
                (batch.body, batch.over, batch.expires, batch.id),
            )

    async def get(self, identity: str, id: str) -> StoredBatch | None:
        """Return a batch; None when it is unknown, forgotten or another's."""
        rows = await self._db.fetch(
            f"SELECT {_BATCH} FROM batch WHERE id = :id AND identity = :identity AND {_THERE}",
            {"id": id, "identity": identity, "now": self._db.clock.time()},
        )
        return StoredBatch(*rows[0]) if rows else None

    async def page(self, identity: str, after: str | None, limit: int) -> list[StoredBatch] | None:
        """Return batches, the newest first, those older than `after`; None when that is not there."""
        start: int | None = None
        if after is not None:
            rows = await self._db.fetch(
                "SELECT key FROM batch WHERE id = ? AND identity = ?", (after, identity)
            )
            if not rows:
                return None
            start = rows[0][0]
        found = await self._db.fetch(
            f"SELECT {_BATCH} FROM batch WHERE identity = :identity AND {_THERE} "
            "AND (:start IS NULL OR key < :start) ORDER BY key DESC LIMIT :limit",
            {"identity": identity, "now": self._db.clock.time(), "start": start, "limit": limit},
        )
        return [StoredBatch(*row) for row in found]

    async def unfinished(self) -> list[StoredBatch]:
        """Return the batches of all callers that are not over, the oldest first."""
        rows = await self._db.fetch(f"SELECT {_BATCH} FROM batch WHERE over = 0 ORDER BY key")
        return [StoredBatch(*row) for row in rows]

    async def jobs_left(self) -> list[str]:
        """Return the ids of jobs that are over and still held for a batch that no longer needs them."""
        rows = await self._db.fetch(
            "SELECT id FROM job WHERE held AND status NOT IN ('pending', 'processing') "
            "AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.id = job.id AND over = 0)"
        )
        return [id for (id,) in rows]

    async def sweep(self, now: float) -> int:
        """Forget batches whose time is over."""
        return await self._db.execute("DELETE FROM batch WHERE expires <= ?", (now,))


def _add(block: Block, batch: StoredBatch, token: Token | None, now: float) -> BatchAdded:
    if token is not None and (known := tokens.known(block, "batch", batch.identity, token.name, now)):
        [row] = block.fetch(f"SELECT {_BATCH} FROM batch WHERE key = ?", (known.key,))
        return BatchAdded(StoredBatch(*row), new=False, conflict=known.digest != token.digest)
    block.execute(
        f"INSERT INTO batch ({_BATCH}, token, digest) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*msgspec.structs.astuple(batch), token and token.name, token and token.digest),
    )
    return BatchAdded(batch)

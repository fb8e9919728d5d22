"""What is known of the files of callers; what they hold lies in a folder, see `jobs.files`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from modeld.store import tokens
from modeld.store.db import Block, Database, Transaction
from modeld.store.tokens import Token

_FILE = "id, identity, purpose, filename, bytes, sha256, created, expires"
_THERE = "(expires IS NULL OR expires > :now)"


class StoredFile(msgspec.Struct, frozen=True):
    """A file. `bytes`: its size. `sha256`: of its content, in hex. `expires`: None for never.

    Times are seconds since the Unix epoch.
    """

    id: str
    identity: str
    purpose: str
    filename: str
    bytes: int
    sha256: str
    created: float
    expires: float | None = None


class FileAdded(msgspec.Struct, frozen=True):
    """What became of a file: `new` False: nothing was stored.

    Then `file` is the one that was there by the caller's own name; `conflict`: that name was used for
    something else. Or `held` is what the caller's files have, which is too much with this one.
    """

    file: StoredFile
    new: bool = True
    conflict: bool = False
    held: int | None = None


class Files:
    """The files of all callers; each sees only those of its own identity. All methods raise StoreFailed."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, file: StoredFile, most: int, token: Token | None = None) -> FileAdded:
        """Take a file in, and say what became of it.

        It is not stored when its owner has used the token before, nor when all of theirs would have more
        than `most` bytes with it.
        """
        return await self._db.transact(_add, file, most, token, self._db.clock.time())

    async def get(self, identity: str, id: str) -> StoredFile | None:
        """Return a file; None when it is unknown, expired or another's."""
        rows = await self._db.fetch(
            f"SELECT {_FILE} FROM file WHERE id = :id AND identity = :identity AND {_THERE}",
            {"id": id, "identity": identity, "now": self._db.clock.time()},
        )
        return StoredFile(*rows[0]) if rows else None

    async def page(
        self, identity: str, *, purpose: str | None, after: str | None, limit: int, descending: bool
    ) -> list[StoredFile] | None:
        """Return files in the order in which they came, those behind `after`; None when that is not there.

        An `after` that is there need not have the purpose.
        """
        start: int | None = None
        if after is not None:
            rows = await self._db.fetch(
                "SELECT key FROM file WHERE id = ? AND identity = ?", (after, identity)
            )
            if not rows:
                return None
            start = rows[0][0]
        beyond, order = ("<", "DESC") if descending else (">", "ASC")
        found = await self._db.fetch(
            f"SELECT {_FILE} FROM file WHERE identity = :identity AND {_THERE} "
            f"AND (:start IS NULL OR key {beyond} :start) AND purpose = coalesce(:purpose, purpose) "
            f"ORDER BY key {order} LIMIT :limit",
            {
                "identity": identity,
                "now": self._db.clock.time(),
                "start": start,
                "purpose": purpose,
                "limit": limit,
            },
        )
        return [StoredFile(*row) for row in found]

    async def delete(self, identity: str, id: str) -> bool:
        """Forget a file; False when there is none."""
        return bool(await self._db.execute("DELETE FROM file WHERE id = ? AND identity = ?", (id, identity)))

    async def expired(self, now: float) -> list[StoredFile]:
        """Forget files whose time is over, a hundred at most, and return them."""
        async with self._db.write() as transaction:
            rows = await transaction.fetch(f"SELECT {_FILE} FROM file WHERE expires <= ? LIMIT 100", (now,))
            files = [StoredFile(*row) for row in rows]
            await transaction.execute_many("DELETE FROM file WHERE id = ?", [(file.id,) for file in files])
            return files

    async def held(self) -> list[tuple[str, int, int]]:
        """Return (purpose, how many files, their bytes) for each purpose of which there are files."""
        rows = await self._db.fetch("SELECT purpose, count(*), sum(bytes) FROM file GROUP BY purpose")
        return [(purpose, count, size) for purpose, count, size in rows]

    async def ids(self) -> set[str]:
        """Return the ids of all files."""
        return {id for (id,) in await self._db.fetch("SELECT id FROM file")}


def _add(block: Block, file: StoredFile, most: int, token: Token | None, now: float) -> FileAdded:
    if token is not None and (known := tokens.known(block, "file", file.identity, token.name, now)):
        [row] = block.fetch(f"SELECT {_FILE} FROM file WHERE key = ?", (known.key,))
        return FileAdded(StoredFile(*row), new=False, conflict=known.digest != token.digest)
    [[held]] = block.fetch("SELECT coalesce(sum(bytes), 0) FROM file WHERE identity = ?", (file.identity,))
    if held + file.bytes > most:
        return FileAdded(file, new=False, held=int(held))
    block.execute(
        f"INSERT INTO file ({_FILE}, token, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*msgspec.structs.astuple(file), token and token.name, token and token.digest),
    )
    return FileAdded(file)


async def insert(transaction: Transaction, files: Iterable[StoredFile]) -> None:
    """Add files in a transaction."""
    await transaction.execute_many(
        f"INSERT INTO file ({_FILE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [msgspec.structs.astuple(file) for file in files],
    )

"""Approval requests: which call was put to somebody, and that it is answered once.

Only a digest of the call is kept, so that a response that is not stored leaves nothing to read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, TypeAlias

from modeld.ids import Identity
from modeld.store.db import Database

Verdict: TypeAlias = Literal["claimed", "unknown", "changed", "answered"]


def digest(label: str, name: str, arguments: str) -> bytes:
    """Return what stands for a call: the server's label, the tool's name, its arguments as JSON text."""
    parts = (part.encode("utf-8", "surrogatepass") for part in (label, name, arguments))
    return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).digest()


class Approvals:
    """The table of approval requests. Methods raise StoreFailed."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def ask(
        self, identity: Identity, requests: Iterable[tuple[str, bytes]], expires: float | None
    ) -> None:
        """Note requests (id, digest) that are about to be sent; `expires` in seconds since the epoch."""
        rows = [(identity, id, digest, expires) for id, digest in requests]
        if rows:
            async with self._db.write() as transaction:
                await transaction.execute_many(
                    "INSERT OR REPLACE INTO approval (identity, id, digest, expires) VALUES (?, ?, ?, ?)",
                    rows,
                )

    async def claim(self, identity: Identity, answers: Iterable[tuple[str, bytes]]) -> dict[str, Verdict]:
        """Answer requests (id, digest of the call as it will be run), all of them or none.

        Returns a verdict for each id. Only when all are "claimed" are they answered now: of two who answer at
        the same time one is told "answered".
        """
        wanted = dict(answers)
        verdicts: dict[str, Verdict] = {}
        async with self._db.write() as transaction:
            for id, call in wanted.items():
                rows = await transaction.fetch(
                    "SELECT digest, answered FROM approval WHERE identity = ? AND id = ? "
                    "AND (expires IS NULL OR expires > ?)",
                    (identity, id, self._db.clock.time()),
                )
                if not rows:
                    verdicts[id] = "unknown"
                elif rows[0][1]:
                    verdicts[id] = "answered"
                else:
                    verdicts[id] = "claimed" if rows[0][0] == call else "changed"
            if all(verdict == "claimed" for verdict in verdicts.values()):
                await transaction.execute_many(
                    "UPDATE approval SET answered = 1 WHERE identity = ? AND id = ?",
                    [(identity, id) for id in wanted],
                )
        return verdicts

    async def release(self, identity: Identity, ids: Iterable[str]) -> None:
        """Take back a claim with which nothing was done: these requests may be answered again."""
        async with self._db.write() as transaction:
            await transaction.execute_many(
                "UPDATE approval SET answered = 0 WHERE identity = ? AND id = ?",
                [(identity, id) for id in ids],
            )

    async def sweep(self, now: float) -> int:
        """Forget what nobody can answer any more; returns how many."""
        return await self._db.execute("DELETE FROM approval WHERE expires <= ?", (now,))

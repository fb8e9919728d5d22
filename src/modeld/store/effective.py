"""The last effective configuration: what `reconcile` without a file, and the next start, go back to."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec

from modeld.errors import StoreFailed
from modeld.store.db import Database

Origin = Literal["file", "added"]
"""Whether a model stood in the configuration file or was added to the running daemon."""


class StoredModel(msgspec.Struct, frozen=True):
    """One model of the configuration.

    `key` names it in the whole daemon. `document` is what was written for it, as plain JSON data; models hold
    no secrets. `base` is the folder that its relative paths are taken from.
    """

    key: str
    gateway: str
    origin: Origin
    document: dict[str, Any]
    base: str


class EffectiveConfig:
    """The stored configuration. Methods raise StoreFailed."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self) -> tuple[StoredModel, ...] | None:
        """Return the models in their order; None when none were ever saved, () when there were none."""
        rows = await self._db.fetch(
            "SELECT key, gateway, origin, document, base "
            "FROM effective_saved LEFT JOIN effective_model ON TRUE ORDER BY position"
        )
        if not rows:
            return None
        return tuple(
            StoredModel(key, gateway, origin, msgspec.json.decode(document, type=dict[str, Any]), base)
            for key, gateway, origin, document, base in rows
            if key is not None
        )

    async def save(self, models: Sequence[StoredModel]) -> None:
        """Put `models` in place of what was stored, all or nothing."""
        rows = [
            (
                position,
                each.key,
                each.gateway,
                each.origin,
                msgspec.json.encode(each.document).decode(),
                each.base,
            )
            for position, each in enumerate(models)
        ]
        async with self._db.write() as transaction:
            await transaction.execute("DELETE FROM effective_model")
            await transaction.execute_many(
                "INSERT INTO effective_model (position, key, gateway, origin, document, base) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
            await transaction.execute(
                "INSERT OR REPLACE INTO effective_saved (one, at) VALUES (1, ?)", (self._db.clock.time(),)
            )


def stored_models(file: Path) -> tuple[StoredModel, ...]:
    """Return the models of the last effective configuration, beside a daemon that may be running.

    The file is only read; one that is not there has none. Raises StoreFailed.
    """
    if not file.exists():
        return ()
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(
                "SELECT key, gateway, origin, document, base FROM effective_model ORDER BY position"
            ).fetchall()
    except sqlite3.Error as error:
        raise StoreFailed(f"the last configuration cannot be read from {file}: {error}") from None
    return tuple(
        StoredModel(key, gateway, origin, msgspec.json.decode(document, type=dict[str, Any]), base)
        for key, gateway, origin, document, base in rows
    )

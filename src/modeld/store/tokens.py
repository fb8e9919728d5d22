"""Callers' own names for what they send, so that what is sent twice is there once."""

from __future__ import annotations

from typing import Literal

import msgspec

from modeld.store.db import Block


class Token(msgspec.Struct, frozen=True):
    """A name, which is one caller's own and of one kind of thing, and a digest of what was sent by it."""

    name: str
    digest: bytes


class Known(msgspec.Struct, frozen=True):
    """What a name stands for; `digest` is of what was sent then."""

    id: str
    key: int
    digest: bytes | None


def known(
    block: Block, table: Literal["job", "file", "batch"], identity: str, name: str, now: float
) -> Known | None:
    """Return what a caller's name stands for; a name of something that has expired is free again."""
    rows = block.fetch(
        f"SELECT id, key, digest, expires FROM {table} WHERE identity = ? AND token = ?", (identity, name)
    )
    for id, key, digest, expires in rows:
        if expires is None or expires > now:
            return Known(id, key, digest)
        block.execute(f"UPDATE {table} SET token = NULL WHERE key = ?", (key,))
    return None

"""How a new response gets its place: its items behind those it goes on from, then its row."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from modeld.store import chains, conversations
from modeld.store.chains import Item, Ref
from modeld.store.db import Block
from modeld.store.records import Done, Draft

LIVE = "status IN ('queued', 'in_progress')"
"""The rows of responses at work."""

GROWING = ("completed", "incomplete")
"""How a response must end for its items to go into its conversation."""


class Row(msgspec.Struct, frozen=True):
    """Where a response's items are."""

    chain: int
    start: int
    middle: int
    upto: int


def anchor(block: Block, new: Draft | Done) -> Ref | None:
    """Return where the items end that a new response goes on from, None when they are not stored."""
    origin = new.origin
    if origin.previous is not None:
        rows = block.fetch(
            f"SELECT chain, upto FROM response WHERE id = ? AND identity = ? AND NOT {LIVE}",
            (origin.previous, new.identity),
        )
        return Ref(*rows[0]) if rows else None
    if origin.conversation is not None:
        return conversations.standing(block, new.identity, origin.conversation, new.before)
    return None


def placed(block: Block, new: Draft | Done, base: Ref | None, outputs: Sequence[Item]) -> Row:
    """Put a new response's items behind its base."""
    if base is None and new.before:
        before = chains.stored(block, new.identity, new.before, known=True)
        base = chains.appended(block, None, before)
    start = 0 if base is None else base.upto
    keys = chains.stored(block, new.identity, new.inputs, known=True)
    keys += chains.stored(block, new.identity, outputs)
    end = chains.appended(block, base, keys)
    return Row(end.chain, start, start + len(new.inputs), end.upto)


def whole(block: Block, done: Done) -> bool:
    """Store a response that was never begun."""
    conversation = done.origin.conversation if done.status in GROWING else None
    if not done.keep:
        if conversation is not None:
            keys = chains.stored(block, done.identity, (*done.inputs, *done.outputs))
            conversations.grow(block, done.identity, conversation, keys)
        return True
    base = anchor(block, done)
    row = placed(block, done, base, done.outputs)
    if conversation is not None:
        end = Ref(row.chain, row.upto)
        conversations.follow(block, done.identity, conversation, row.start, end, base=base)
    key = insert(block, done, row, status=done.status, streamed=bool(done.log), log_expires=done.log_expires)
    add_events(block, key, done.log)
    return True


def insert(
    block: Block,
    new: Draft | Done,
    row: Row,
    *,
    status: str,
    streamed: bool,
    background: bool = False,
    log_expires: float | None = None,
) -> int:
    """Add the row of a response; returns its key."""
    return block.insert(
        "INSERT INTO response (id, identity, status, body, created, expires, chain, start, middle, upto, "
        "background, streamed, logged, log_expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(new.id, new.identity, status, new.body, new.created, new.expires),
            *(row.chain, row.start, row.middle, row.upto),
            *(background, streamed, streamed, log_expires),
        ),
    )


def add_events(block: Block, key: int, events: Sequence[tuple[int, bytes]]) -> None:
    """Add events (number, data) to a response's log; those that are there already stay as they are."""
    block.execute_many(
        "INSERT OR IGNORE INTO log (response, number, data) VALUES (?, ?, ?)",
        [(key, number, data) for number, data in events],
    )

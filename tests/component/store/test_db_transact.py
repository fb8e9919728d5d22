"""Write transactions that are one function on SQLite's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from modeld.errors import StoreFailed
from modeld.store.db import Block, Database
from tests.fakes.clock import FakeClock


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    """Give an open file with a table `t (n INTEGER UNIQUE)`."""
    async with Database.open(tmp_path / "modeld.db", FakeClock()) as opened:
        await opened.execute("CREATE TABLE t (n INTEGER UNIQUE)")
        yield opened


def add(block: Block, *numbers: int) -> list[tuple[int, ...]]:
    """Add numbers one by one and return all."""
    for number in numbers:
        block.execute("INSERT INTO t VALUES (?)", (number,))
    return block.fetch("SELECT n FROM t ORDER BY n")


async def test_it_is_committed_with_its_result(db: Database) -> None:
    """The function sees what it changed, its result comes back, and the change is there for all."""
    assert await db.transact(add, 2, 1) == [(1,), (2,)]
    assert await db.fetch("SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    assert await db.transact(lambda block: block.insert("INSERT INTO t VALUES (7)")) == 3
    assert await db.transact(lambda block: block.execute("DELETE FROM t WHERE n < 7")) == 2


async def test_it_is_undone_when_it_raises(db: Database) -> None:
    """Its own error comes through, SQLite's as the store's; nothing is left, and the next one works."""

    def stumble(block: Block) -> None:
        add(block, 1)
        raise KeyError("stumbled")

    with pytest.raises(KeyError, match="stumbled"):
        await db.transact(stumble)
    with pytest.raises(StoreFailed, match="UNIQUE"):
        await db.transact(add, 1, 2, 1)
    assert await db.fetch("SELECT n FROM t") == []
    assert await db.transact(add, 1) == [(1,)]


async def test_a_cancelled_caller_leaves_all_or_nothing(db: Database) -> None:
    """Who is cancelled while it runs does not break it in two; who waits for a turn then never begins."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(block: Block) -> None:
        add(block, 1)
        begun.set()
        assert go_on.wait(10)
        add(block, 2)

    running = asyncio.ensure_future(db.transact(slow))
    assert await asyncio.to_thread(begun.wait, 10)
    waiting = asyncio.ensure_future(db.transact(add, 3))
    await asyncio.sleep(0)
    for task in (waiting, running):
        task.cancel()
    after = asyncio.ensure_future(db.transact(add, 4))
    await asyncio.sleep(0)
    go_on.set()
    assert await after == [(1,), (2,), (4,)]
    for task in (waiting, running):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_waits_for_an_open_transaction(db: Database) -> None:
    """What was begun in several steps is over before it begins."""
    async with db.write() as transaction:
        await transaction.execute("INSERT INTO t VALUES (1)")
        later = asyncio.ensure_future(db.transact(add, 3))
        for _ in range(100):
            await asyncio.sleep(0)
        await transaction.execute("INSERT INTO t VALUES (2)")
        assert not later.done()
    assert await later == [(1,), (2,), (3,)]

"""What a long chain costs: rows, bytes, and how its history is found."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from modeld.store.chains import Item
from modeld.store.conversations import Conversations
from modeld.store.db import Database
from modeld.store.responses import Done, Draft, Origin, Responses
from tests.fakes.clock import FakeClock

TURNS = 1000
TABLES = ("item", "link", "chain", "response", "run", "log", "conversation", "garbage")

GOES_THROUGH = re.compile(
    r"SCAN (?:item|link|chain|response|conversation|log)\b(?! USING (?:COVERING )?INDEX)"
)
"""SQLite's words for reading all of a table that grows."""


def item(id: str) -> Item:
    """Return an item with a few words in it."""
    return {"type": "message", "id": id, "content": [{"type": "input_text", "text": f"{id} " * 40}]}


def turn(number: int, before: Iterable[Item], origin: Origin) -> Done:
    """Return a turn of one question and one answer."""
    id = f"resp_{number:04}"
    return Done(
        id,
        "local",
        "completed",
        b"{}" * 500,
        1.0,
        None,
        (item(f"in_{number:04}"),),
        (item(f"out_{number:04}"),),
        tuple(before),
        origin,
    )


async def size(db: Database) -> int:
    """Return the bytes of the file's pages."""
    ((pages,),) = await db.fetch("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    return int(pages)


@pytest.mark.parametrize("kind", ["previous", "conversation", "background"])
async def test_a_thousand_turns_take_a_thousand_times_the_room_of_one(tmp_path: Path, kind: str) -> None:
    """Rows grow by the turn's own items and the file in proportion, whatever the turns are chained by; each
    history is all the turns before.
    """
    async with Database.open(tmp_path / "modeld.db", FakeClock()) as db:
        responses, conversations = Responses(db, "life"), Conversations(db)
        await conversations.create("local", "conv", {}, (), 1.0)
        start, sizes = await size(db), {}
        said: list[Item] = []
        for number in range(1, TURNS + 1):
            previous = f"resp_{number - 1:04}" if number > 1 else None
            origin = Origin(conversation="conv") if kind == "conversation" else Origin(previous=previous)
            done = turn(number, said, origin)
            if kind == "background":
                draft = Draft(
                    done.id, "local", b"{}", 1.0, None, done.inputs, done.before, done.origin, streamed=False
                )
                await responses.begin(draft)
            assert await responses.finish(done)
            said += [*done.inputs, *done.outputs]
            if number in (TURNS // 4, TURNS // 2, TURNS):
                sizes[number] = await size(db) - start
                history = await responses.history("local", done.id)
                assert history is not None
                assert list(history.items) == said
        rows = {table: (await db.fetch(f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES}
        assert rows == dict.fromkeys(TABLES, 0) | {
            "item": 2 * TURNS,
            "link": 2 * TURNS,
            "response": TURNS,
            "conversation": 1,
            "chain": 1 if kind == "conversation" else 2,  # the conversation's own, and the responses'
        }
        for number in (TURNS // 4, TURNS // 2):
            assert sizes[TURNS] / sizes[number] == pytest.approx(TURNS / number, rel=0.1)


async def test_every_statement_finds_its_rows_by_a_key(tmp_path: Path) -> None:
    """No statement of any operation goes through a table that grows: SQLite's own plan of each says so."""
    path, seen = tmp_path / "modeld.db", set[str]()
    async with Database.open(path, FakeClock()) as db:
        await db._connection.set_trace_callback(seen.add)
        responses, conversations = Responses(db, "life"), Conversations(db)
        await conversations.create("local", "conv", {}, (item("a"), item("b")), 1.0)
        talk = Origin(conversation="conv")
        await responses.finish(turn(1, (item("a"), item("b")), talk))
        await responses.finish(turn(2, (item("a"),), talk))
        await responses.finish(turn(3, (), Origin(previous="resp_0001")))
        await responses.finish(turn(4, (item("x"),), Origin(previous="unknown")))
        for number in (5, 6):
            done = turn(number, (), Origin(previous="resp_0001"))
            await responses.begin(
                Draft(done.id, "local", b"", 1.0, None, done.inputs, (), done.origin, streamed=True)
            )
            await responses.log(done.id, [(0, b"x"), (1, b"y")])
            await responses.beat([done.id], 2.0)
            await responses.replay(done.id, -1, 10)
            await responses.last_logged(done.id)
            await responses.abandoned()
            await responses.finish(done)
            await responses.get("local", done.id)
            await responses.inputs("local", done.id)
            await responses.history("local", done.id)
        await responses.find_items("local", ["a", "b"])
        await conversations.get("local", "conv")
        await conversations.add("local", "conv", (item("c"),))
        await conversations.items("local", "conv")
        await conversations.item("local", "conv", "b")
        await conversations.update("local", "conv", {})
        await conversations.remove("local", "conv", "a")
        await conversations.remove("local", "conv", "c")
        for number in range(1, 6):
            await responses.delete("local", f"resp_{number:04}")
        await conversations.delete("local", "conv")
        await responses.sweep(1e12)
    other = sqlite3.connect(path)
    statements = [sql for sql in seen if re.match(r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE)", sql)]
    plans = {
        sql: " / ".join(row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {sql}")) for sql in statements
    }
    other.close()
    assert len(plans) > 40
    assert "SEARCH link USING PRIMARY KEY (chain=? AND place>? AND place<?)" in " ".join(plans.values())
    assert {sql: plan for sql, plan in plans.items() if GOES_THROUGH.search(plan)} == {}

"""The store when its process is killed, its disk is full, or somebody else holds its file."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from modeld.clock import SystemClock
from modeld.errors import StoreFailed
from modeld.store import db as database
from modeld.store.chains import Item
from modeld.store.conversations import Conversations
from modeld.store.db import Database, Row
from modeld.store.responses import Done, Draft, Origin, Responses

PROGRAM = """
import asyncio, sys
from pathlib import Path
from modeld.clock import SystemClock
from modeld.store.conversations import Conversations
from modeld.store.db import Database
from modeld.store.responses import Done, Draft, Origin, Responses

def say(*words):
    print(*words, flush=True)

def item(name):
    return {"type": "message", "id": name, "content": [{"type": "input_text", "text": name * 20}]}

async def chain(responses, name, background):
    before, previous = [], None
    for number in range(10**6):
        id = f"{name}.{number}"
        given, answer, origin = item(f"in.{id}"), item(f"out.{id}"), Origin(previous=previous)
        if background:
            await responses.begin(
                Draft(id, "local", b"{}", 1.0, None, (given,), tuple(before), origin, True))
            say("begun", id)
            await responses.log(id, [(0, b"0"), (1, b"1")])
        done = Done(id, "local", "completed", b"{}", 1.0, None, (given,), (answer,), tuple(before), origin,
                    log=((2, b"2"),) if background else ())
        await responses.finish(done)
        say("done", id)
        if number % 5 == 4:
            say("deleting", f"{name}.{number - 2}")
            await responses.delete("local", f"{name}.{number - 2}")
            say("deleted", f"{name}.{number - 2}")
        before, previous = [*before, given, answer], id
        if number == 30:  # long enough: begin again
            return

async def talk(responses, conversations, name):
    await conversations.create("local", name, {}, [item(f"first.{name}")], 1.0)
    for number in range(10**6):
        id = f"{name}.{number}"
        before = await conversations.items("local", name)
        done = Done(id, "local", "completed", b"{}", 1.0, None, (item(f"in.{id}"),), (item(f"out.{id}"),),
                    before, Origin(conversation=name))
        await responses.finish(done)
        say("talked", id)
        if number % 4 == 3:
            await conversations.remove("local", name, f"in.{name}.{number - 1}")

async def main():
    async with Database.open(Path(sys.argv[1]), SystemClock()) as db:
        responses, conversations, life = Responses(db, sys.argv[2]), Conversations(db), sys.argv[2]
        async def chains(kind, background):
            for number in range(10**6):
                await chain(responses, f"{kind}.{life}.{number}", background)
        async def sweeps():
            while True:
                await responses.sweep(2.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(chains("fore", False))
            group.create_task(chains("back", True))
            group.create_task(talk(responses, conversations, f"talk.{life}"))
            group.create_task(sweeps())

asyncio.run(main())
"""

LOOSE = """
    SELECT count(*) FROM link WHERE place >= coalesce((
      SELECT max(upto) FROM (
        SELECT upto FROM response WHERE response.chain = link.chain
        UNION ALL SELECT upto FROM conversation WHERE conversation.chain = link.chain
        UNION ALL SELECT at FROM chain WHERE chain.parent = link.chain)), -1)
    UNION ALL SELECT count(*) FROM item WHERE key NOT IN (SELECT item FROM link)
    UNION ALL SELECT count(*) FROM log WHERE response NOT IN (SELECT key FROM response WHERE logged)
    UNION ALL SELECT count(*) FROM garbage
    UNION ALL SELECT count(*) FROM pragma_foreign_key_check
    """
"""Counts what nobody holds, and what refers to nothing."""

ROUNDS = 12


async def test_no_kill_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """Killed again and again at any moment of writing: the file opens, all that was reported as stored is in
    it and whole, all that was reported as deleted is not, runs are over or found as abandoned, and nothing
    else is left.
    """
    path, chance = tmp_path / "modeld.db", random.Random(5)
    for round in range(ROUNDS):
        told = _until_killed(path, f"{round}", chance.randrange(1, 400))
        async with Database.open(path, SystemClock()) as db:
            assert await db.fetch("PRAGMA integrity_check") == [("ok",)]
            responses = Responses(db, f"after {round}")
            abandoned = {stored.id for stored in await responses.abandoned()}
            await _check(responses, told, abandoned)
            for id in abandoned:
                assert await responses.finish(
                    Done(id, "local", "failed", b"{}", 1.0, None, (), (), (), Origin())
                )
            await _check(responses, told, abandoned)
            assert await responses.abandoned() == []
            await responses.sweep(2.0)
            await _check(responses, told, abandoned)
            assert await db.fetch(LOOSE) == [(0,)] * 5
    assert not list(tmp_path.glob("*damaged*"))


def _until_killed(path: Path, life: str, lines: int) -> list[tuple[str, str]]:
    """Let a process write until it has reported so much, kill it, and return all that it reported."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path, life], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if len(told) >= lines:
                break
        process.send_signal(signal.SIGKILL)
        told += [line for line in process.stdout if line.endswith("\n")]
    assert process.returncode == -signal.SIGKILL
    return [(word, id) for word, id in (line.split() for line in told)]


async def _check(responses: Responses, told: list[tuple[str, str]], abandoned: set[str]) -> None:
    words: dict[str, set[str]] = {}
    for word, id in told:
        words.setdefault(word, set()).add(id)
    deleting, deleted = words.get("deleting", set()), words.get("deleted", set())
    for id in deleted:
        assert await responses.history("local", id) is None
    for id in words.get("begun", set()) - words.get("done", set()) - deleting:
        # What came between the last report and the kill may have happened or not.
        assert await responses.inputs("local", id) is not None
    for id in words.get("done", set()) - deleting:
        name, _, number = id.rpartition(".")
        history = await responses.history("local", id)
        assert history is not None
        assert history.status == "completed"
        assert [item["id"] for item in history.items] == [
            f"{side}.{name}.{at}" for at in range(int(number) + 1) for side in ("in", "out")
        ]
        stored = await responses.get("local", id)
        assert stored is not None
        assert [item["id"] for item in stored.output] == [f"out.{id}"]
        if id.startswith("back"):
            assert await responses.replay(id, -1, 9) == [(0, b"0"), (1, b"1"), (2, b"2")]
    for id in words.get("talked", set()):
        history = await responses.history("local", id)
        assert history is not None
        assert [item["id"] for item in history.items[-2:]] == [f"in.{id}", f"out.{id}"]
    # One may have been begun whose report did not come through any more.
    assert len(abandoned - words.get("begun", set())) <= 1


# --- full, and held by others -------------------------------------------------------------------------------


def item(id: str, length: int = 10) -> Item:
    """Return an item with this much text."""
    return {"type": "message", "id": id, "content": [{"type": "input_text", "text": "x" * length}]}


def done(id: str, origin: Origin | None = None, *, length: int = 10) -> Done:
    """Return the end of a response with an answer of this length."""
    given, answer = (item(f"in_{id}"),), (item(f"out_{id}", length),)
    return Done(id, "local", "completed", b"{}", 1.0, None, given, answer, (), origin or Origin())


def draft(id: str, origin: Origin | None = None, *, length: int = 10) -> Draft:
    """Return a streamed background response with a question of this length."""
    return Draft(id, "local", b"{}", 1.0, None, (item(f"in_{id}", length),), (), origin or Origin(), True)


LONG = 30_000
"""Text that needs several pages."""

Action = Callable[[Responses, Conversations], Awaitable[object]]

ACTIONS: dict[str, Action] = {
    "begin": lambda responses, _: responses.begin(draft("new", Origin(previous="a"), length=LONG)),
    "finish": lambda responses, _: responses.finish(done("new", Origin(previous="a"), length=LONG)),
    "finish in a conversation": lambda responses, _: responses.finish(
        msgspec.structs.replace(done("new", Origin(conversation="c"), length=LONG), before=(item("first"),))
    ),
    "finish what was begun": lambda responses, _: responses.finish(done("run", length=LONG)),
    "log": lambda responses, _: responses.log("run", [(at, b"x" * 1000) for at in range(20)]),
    "beat": lambda responses, _: responses.beat(["run"], 5.0),
    "delete": lambda responses, _: responses.delete("local", "b"),
    "sweep": lambda responses, _: responses.sweep(100.0),
    "create": lambda _, conversations: conversations.create("local", "d", {}, [item("d1", LONG)], 1.0),
    "add": lambda _, conversations: conversations.add("local", "c", [item("c2", LONG)]),
    "update": lambda _, conversations: conversations.update("local", "c", {"k": "x" * LONG}),
    "remove": lambda _, conversations: conversations.remove("local", "c", "first"),
    "delete a conversation": lambda _, conversations: conversations.delete("local", "c"),
}
NEEDS_ROOM = {
    "begin",
    "finish",
    "finish in a conversation",
    "finish what was begun",
    "log",
    "create",
    "add",
    "update",
}
TABLES = ("item", "link", "chain", "response", "run", "log", "conversation", "garbage")


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    """Give a store with a few responses: one to go on from, one that has expired, one at work."""
    async with Database.open(tmp_path / "modeld.db", SystemClock()) as opened:
        responses, conversations = Responses(opened, "life"), Conversations(opened)
        await responses.finish(done("a"))
        await responses.finish(done("b", Origin(previous="a")))
        await responses.finish(msgspec.structs.replace(done("old", Origin(previous="a")), expires=50.0))
        await responses.begin(draft("run", Origin(previous="b")))
        await conversations.create("local", "c", {}, [item("first")], 1.0)
        await responses.finish(
            msgspec.structs.replace(done("c1", Origin(conversation="c")), before=(item("first"),))
        )
        yield opened


async def _all(db: Database) -> list[list[Row]]:
    """Return everything that is stored."""
    return [await db.fetch(f"SELECT * FROM {table}") for table in TABLES]


@pytest.mark.parametrize("name", ACTIONS)
async def test_a_full_disk_leaves_nothing_half_done(db: Database, name: str) -> None:
    """With no room, then with a page more each time: an action fails and nothing changes, or it is done."""
    responses, conversations = Responses(db, "life"), Conversations(db)
    before = await _all(db)
    ((pages,),) = await db.fetch("PRAGMA page_count")
    failed = 0
    for more in range(100):
        await db.fetch(f"PRAGMA max_page_count = {pages + more}")
        with contextlib.suppress(StoreFailed):
            await ACTIONS[name](responses, conversations)
            break
        assert await _all(db) == before
        failed += 1
    assert (failed > 3) is (name in NEEDS_ROOM)
    assert await _all(db) != before
    await db.fetch("PRAGMA max_page_count = 1000000")
    await _still_works(responses)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Have another process hold the file's write lock."""
    program = (
        "import sqlite3, sys\n"
        "held = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "held.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        assert process.stdin is not None
        process.stdin.close()


async def test_a_file_held_by_another_process_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write fails after the time of waiting with nothing changed, reading goes on, and afterwards all
    of them work.
    """
    monkeypatch.setattr(database, "BUSY_S", 0.02)
    path = tmp_path / "modeld.db"
    async with Database.open(path, SystemClock()) as db:
        responses, conversations = Responses(db, "life"), Conversations(db)
        await responses.finish(done("a"))
        await responses.finish(done("b", Origin(previous="a")))
        await responses.finish(msgspec.structs.replace(done("old"), expires=50.0))
        await responses.begin(draft("run"))
        await conversations.create("local", "c", {}, [item("first")], 1.0)
        before = await _all(db)
        with _held(path):
            for action in ACTIONS.values():
                with pytest.raises(StoreFailed, match=r"another process has held the file for 0\.02 s"):
                    await action(responses, conversations)
            assert await _all(db) == before
            history = await responses.history("local", "b")
            assert history is not None
            assert [each["id"] for each in history.items] == ["in_a", "out_a", "in_b", "out_b"]
            assert await conversations.item("local", "c", "first") == item("first")
        for name, action in ACTIONS.items():
            if name != "finish in a conversation":  # of the same id
                await action(responses, conversations)
        await _still_works(responses)


async def _still_works(responses: Responses) -> None:
    """Store, continue, delete; nothing is left lying about."""
    assert await responses.finish(done("late", Origin(previous="a")))
    history = await responses.history("local", "late")
    assert history is not None
    assert [each["id"] for each in history.items] == ["in_a", "out_a", "in_late", "out_late"]
    assert await responses.delete("local", "late")
    await responses.sweep(100.0)
    assert await responses._db.fetch(LOOSE) == [(0,)] * 5

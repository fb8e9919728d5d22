from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from modeld.errors import ModeldError, StartupError, StoreFailed
from modeld.store import db as room
from modeld.store.db import Database
from tests.fakes.clock import FakeClock

CLOCK = FakeClock()
"""2023-11-14 22:13:20 UTC."""

PROGRAM = """
import asyncio, sys
from pathlib import Path
from modeld.clock import SystemClock
from modeld.store.db import Database

async def main():
    async with Database.open(Path(sys.argv[1]), SystemClock()) as db:
        await db.execute("CREATE TABLE mark (n INTEGER)")
        n = 0
        while True:
            async with db.write() as transaction:
                await transaction.execute("INSERT INTO mark VALUES (?)", (n,))
                await transaction.execute("INSERT INTO mark VALUES (?)", (-n,))
            print(n, flush=True)
            n += 1

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the path of a file that is not there yet."""
    return tmp_path / "modeld.db"


async def test_a_new_file_is_private_and_ready(path: Path) -> None:
    """The file and its log have mode 0600, WAL and foreign keys are on, the schema is this version's."""
    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (n INTEGER)")
        for file in (path, path.with_name("modeld.db-wal")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert await db.fetch("PRAGMA journal_mode") == [("wal",)]
        assert await db.fetch("PRAGMA foreign_keys") == [(1,)]
        assert await db.fetch("PRAGMA synchronous") == [(1,)]
        assert await db.fetch("PRAGMA user_version") == [(max(room._migrations()),)]


async def test_an_open_file_is_made_private(path: Path) -> None:
    """A file that others could read is closed to them."""
    path.touch(0o644)
    async with Database.open(path, CLOCK):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_closing_leaves_nothing(path: Path) -> None:
    """No thread, and no file but the one, stays behind; what was written is there the next time."""
    threads = set(threading.enumerate())
    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (n INTEGER)")
        await db.execute("INSERT INTO t VALUES (?)", (7,))
    assert set(threading.enumerate()) <= threads
    assert os.listdir(path.parent) == ["modeld.db"]
    async with Database.open(path, CLOCK) as db:
        assert await db.fetch("SELECT n FROM t") == [(7,)]


async def test_a_failed_block_is_undone(path: Path) -> None:
    """A transaction whose block raises leaves nothing, and the next one works."""

    async def fail() -> None:
        async with db.write() as transaction:
            assert await transaction.execute("INSERT INTO t VALUES (1)") == 1
            raise KeyError

    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (n INTEGER)")
        with pytest.raises(KeyError):
            await fail()
        assert await db.fetch("SELECT * FROM t") == []
        await db.execute("INSERT INTO t VALUES (2)")
        assert await db.fetch("SELECT * FROM t") == [(2,)]


async def test_a_cancelled_block_is_undone(path: Path) -> None:
    """A transaction cancelled between two statements leaves nothing, and the next one works."""
    reached = asyncio.Event()

    async def half() -> None:
        async with db.write() as transaction:
            await transaction.execute("INSERT INTO t VALUES (1)")
            reached.set()
            await asyncio.Event().wait()

    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (n INTEGER)")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(half())
            await reached.wait()
            task.cancel()
        await db.execute("INSERT INTO t VALUES (2)")
        assert await db.fetch("SELECT * FROM t") == [(2,)]


async def test_many_writers_take_turns(path: Path) -> None:
    """200 tasks that read, add one and write lose no step and meet no "locked"."""

    async def add() -> None:
        async with db.write() as transaction:
            ((n,),) = await transaction.fetch("SELECT n FROM t")
            await transaction.execute("UPDATE t SET n = ?", (n + 1,))

    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (n INTEGER)")
        await db.execute("INSERT INTO t VALUES (0)")
        async with asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(add())
        assert await db.fetch("SELECT n FROM t") == [(200,)]


async def test_another_process_with_the_lock_is_waited_for(path: Path) -> None:
    """While someone else holds the file the event loop goes on, and the write happens afterwards."""
    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (n INTEGER)")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(db.execute("INSERT INTO t VALUES (1)"))
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not task.done()
            other.execute("COMMIT")
        other.close()
        assert await db.fetch("SELECT * FROM t") == [(1,)]


async def test_a_lock_held_too_long_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit of waiting the caller gets one sentence and a code, and the store goes on."""
    monkeypatch.setattr(room, "BUSY_S", 0.05)
    async with Database.open(path, CLOCK) as db:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ModeldError, match=r"another process has held the file for 0\.05 s") as caught:
            await db.execute("CREATE TABLE t (n INTEGER)")
        assert caught.value.code == "store_failed"
        other.execute("ROLLBACK")
        other.close()
        await db.execute("CREATE TABLE t (n INTEGER)")


async def test_a_full_disk_is_told_and_leaves_the_rest(path: Path) -> None:
    """A write for which there is no room is undone and explained; reading and small writes go on."""
    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (x BLOB)")
        await db.execute("INSERT INTO t VALUES (1)")
        ((pages,),) = await db.fetch("PRAGMA page_count")
        await db.fetch(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(ModeldError, match="the disk is full; make room"):
            await db.execute("INSERT INTO t VALUES (zeroblob(100000))")
        assert await db.fetch("SELECT x FROM t") == [(1,)]
        await db.execute("UPDATE t SET x = 2")


def test_nothing_committed_is_lost_by_a_kill(path: Path) -> None:
    """After SIGKILL in the middle of writing, all that was reported as written is there, and no half."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 50:
                break
        process.send_signal(signal.SIGKILL)
        told = [int(line), *(int(rest) for rest in process.stdout)][-1]

    async def look() -> list[room.Row]:
        async with Database.open(path, CLOCK) as db:
            return await db.fetch("SELECT sum(n), max(n), count(*) FROM mark")

    ((total, most, count),) = asyncio.run(look())
    assert (total, count) == (0, 2 * (most + 1))
    assert most >= told >= 50


async def _filled(path: Path) -> None:
    async with Database.open(path, CLOCK) as db:
        await db.execute("CREATE TABLE t (x TEXT)")
        async with db.write() as transaction:
            await transaction.execute_many("INSERT INTO t VALUES (?)", [("x" * 500,)] * 400)


@pytest.mark.parametrize("kind", ["page", "header", "foreign"])
async def test_a_damaged_file_is_set_aside(path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is moved away unchanged, told in one warning with its new name, and a new one works."""
    await _filled(path)
    content = bytearray(path.read_bytes())
    if kind == "page":
        content[4096 * 10 : 4096 * 30] = b"\xa5" * (4096 * 20)
    elif kind == "header":
        content[:100] = bytes(100)
    else:
        content = bytearray(b"this is no database\n" * 100)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "modeld.store"):
        async with Database.open(path, CLOCK) as db:
            assert await db.fetch("SELECT name FROM sqlite_master WHERE name = 't'") == []
            await db.execute("CREATE TABLE t (n INTEGER)")
    aside = path.with_name("modeld.db.damaged-20231114T221320Z")
    assert aside.read_bytes() == content
    (record,) = caplog.records
    assert str(aside) in record.getMessage()
    assert "\n" not in record.getMessage()
    assert sorted(os.listdir(path.parent)) == ["modeld.db", aside.name]


async def test_a_large_file_is_looked_through_once_damage_was_met(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file too large to be looked through at each start is opened as it is; a statement that meets damage
    fails and leaves word of it, and the next start sets the file aside.
    """
    await _filled(path)
    content = bytearray(path.read_bytes())
    content[-4096 * 20 :] = b"\xa5" * (4096 * 20)
    path.write_bytes(content)
    monkeypatch.setattr("modeld.store.db.CHECKED_BYTES", 4096)
    async with Database.open(path, CLOCK) as db:
        with pytest.raises(StoreFailed, match="damaged"):
            await db.fetch("SELECT sum(length(x)) FROM t")
    assert path.with_name("modeld.db.suspect").exists()
    async with Database.open(path, CLOCK) as db:
        assert await db.fetch("SELECT name FROM sqlite_master WHERE name = 't'") == []
    assert sorted(os.listdir(path.parent)) == ["modeld.db", "modeld.db.damaged-20231114T221320Z"]


async def test_two_damaged_files_are_both_kept(path: Path) -> None:
    """A second damaged file of the same second does not replace the first."""
    for text in (b"first " * 200, b"second " * 200):
        path.write_bytes(text)
        async with Database.open(path, CLOCK):
            pass
    aside = path.with_name("modeld.db.damaged-20231114T221320Z")
    assert aside.read_bytes() == b"first " * 200
    assert aside.with_name(aside.name + "-2").read_bytes() == b"second " * 200


async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    """The error names both schema versions; not a byte of the file changes, and no thread stays."""
    async with Database.open(path, CLOCK) as db:
        await db.execute("PRAGMA user_version = 999")
    before, threads = path.read_bytes(), set(threading.enumerate())
    known = max(room._migrations())
    with pytest.raises(StartupError, match=rf"newer modeld \(schema 999, this version knows {known}\); run"):
        async with Database.open(path, CLOCK):
            pass
    assert path.read_bytes() == before
    assert set(threading.enumerate()) <= threads


async def test_a_migration_that_fails_changes_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts run in order, each whole or not at all; the file stays at the last one that worked."""
    scripts = tmp_path / "migrations"
    scripts.mkdir()
    (scripts / "001_a.sql").write_text("CREATE TABLE a (n INTEGER);")
    (scripts / "002_b.sql").write_text("CREATE TABLE b (n INTEGER); INSERT INTO missing VALUES (1);")
    monkeypatch.setattr(room, "MIGRATIONS", scripts)
    with pytest.raises(StartupError, match="no such table: missing"):
        async with Database.open(path, CLOCK):
            pass
    (scripts / "002_b.sql").write_text("CREATE TABLE b (n INTEGER); INSERT INTO a VALUES (1);")
    async with Database.open(path, CLOCK) as db:
        assert await db.fetch("PRAGMA user_version") == [(2,)]
        assert await db.fetch("SELECT n FROM a") == [(1,)]


def test_migrations_are_numbered_without_a_gap() -> None:
    """The numbers run from 1 up, so that no schema version is skipped."""
    assert sorted(room._migrations()) == list(range(1, len(room._migrations()) + 1))


@pytest.mark.parametrize("kind", ["no directory", "a directory", "under a file"])
async def test_a_path_that_cannot_be_written_is_one_line(path: Path, kind: str) -> None:
    """The error names the path, the reason and the way out, in one line."""
    if kind == "no directory":
        path = path / "missing" / "modeld.db"
    elif kind == "a directory":
        path.mkdir()
    else:
        path.write_text("a file")
        path = path / "modeld.db"
    with pytest.raises(
        StartupError, match=r"^cannot write .*modeld\.db: .*; fix that, or choose another"
    ) as caught:
        async with Database.open(path, CLOCK):
            pass
    assert "\n" not in str(caught.value)


def test_no_room_at_start_is_one_line(path: Path) -> None:
    """A process that may write no more bytes cannot start; it says so, and leaves no thread that hangs it."""
    code = (
        "import asyncio, resource, sys\nfrom pathlib import Path\nfrom modeld.clock import SystemClock\n"
        "from modeld.errors import StartupError\nfrom modeld.store.db import Database\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "async def main():\n"
        "    async with Database.open(Path(sys.argv[1]), SystemClock()): pass\n"
        "try: asyncio.run(main())\n"
        "except StartupError as error: print(error)\n"
    )
    command = [sys.executable, "-B", "-c", code, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.startswith(f"cannot use {path}: ")
    assert ended.stdout.count("\n") == 1

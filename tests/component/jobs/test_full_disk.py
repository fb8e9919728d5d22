"""A disk that is full: SQLite itself says so, by a limit on its file; files are written as on a full one."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from modeld.jobs import patience, runner
from modeld.jobs.batches import leading
from modeld.jobs.files.shelf import Part
from modeld.store.db import Database
from modeld.store.files import Files
from modeld.store.jobs import Jobs
from tests.component.jobs import batches_served
from tests.component.jobs.batches_served import chats
from tests.component.jobs.served import USER, WAIT_S, JobPool, counted, number_of, serving, texts
from tests.fakes.pool import said

PAUSE_S = 0.02
BIG = "x" * 100_000
"""More than there is room for in the pages that the store has."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon what a disk did not take."""
    monkeypatch.setattr(patience, "PAUSE_S", PAUSE_S)
    monkeypatch.setattr(leading, "PAUSE_S", PAUSE_S)
    monkeypatch.setattr(runner, "PAUSE_S", (PAUSE_S, PAUSE_S))


async def fill(database: Database) -> None:
    """Let the store grow no further."""
    await database.fetch("PRAGMA max_page_count = 1")  # never less than there are


async def grow(database: Database) -> None:
    """Write more than there is room for. Raises StoreFailed when the store is full."""
    await database.execute("CREATE TABLE ballast AS SELECT zeroblob(100000)")


async def make_room(database: Database) -> None:
    """Let it grow again."""
    await database.fetch("PRAGMA max_page_count = 1000000")


class Tries:
    """Counts calls, of any thread, and waits for them."""

    def __init__(self) -> None:
        self.count = 0
        self.begun = time.monotonic()
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def one(self) -> None:
        """Count one."""
        self.count += 1
        self._loop.call_soon_threadsafe(self._more.set)

    async def until(self, count: int) -> None:
        """Wait for so many."""
        async with asyncio.timeout(WAIT_S):
            while self.count < count:
                self._more.clear()
                await self._more.wait()

    def check(self, side_by_side: int) -> None:
        """See that each of so many waited between its tries: no machine is so slow that they are more."""
        shortest = PAUSE_S * 0.9  # timers go by whole milliseconds
        assert self.count <= side_by_side * ((time.monotonic() - self.begun) / shortest + 1)


async def test_what_is_done_while_the_disk_is_full_is_stored_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, nothing done twice, nothing hurried; submissions are refused in plain words meanwhile,
    and what is refused leaves nothing.
    """
    finish, tries = Jobs.finish, Tries()

    async def counting(self: Jobs, *args: Any, **options: Any) -> Any:
        tries.one()
        return await finish(self, *args, **options)

    monkeypatch.setattr(Jobs, "finish", counting)
    pool = JobPool(answer=lambda model, task: [], free=2)
    async with serving(tmp_path, pool) as api:
        id = await api.batch(5)
        await pool.until(lambda: len(pool.begun) == 2 and pool.open_calls == 3)
        await fill(api.database)
        for stream in pool.begun[:2]:
            stream.feed(*said(f"{number_of(stream.task)} {BIG}"))
        await tries.until(6)
        tries.check(2)
        body = {"model": "tiny", "messages": [{**USER, "content": BIG}]}
        response, answer = await api.ask("POST", "Chat", body)
        assert (response.status, "the disk is full; make room" in answer["error"]) == (503, True)
        assert await api.rows("job") == 1
        assert api.room.queue.unfinished == 1
        await make_room(api.database)
        for at in range(2, 5):
            await pool.until(lambda at=at: len(pool.begun) > at)  # type: ignore[misc]
            pool.begun[at].feed(*said(str(at)))
        assert [text.split()[0] for text in texts(await api.over(id))] == ["0", "1", "2", "3", "4"]
        assert counted(pool) == {at: 1 for at in range(5)}
        pool.answer = lambda model, task: said()
        assert (await api.over(await api.chat()))["status"] == "done"


async def test_an_item_whose_begin_cannot_be_noted_is_begun_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives its slot back meanwhile; a life that ends then leaves it to the next."""
    begin, tries, full = Jobs.begin, Tries(), [True]

    async def failing(self: Jobs, item: Any) -> bool:
        tries.one()
        if full:
            await grow(self._db)
        return await begin(self, item)

    monkeypatch.setattr(Jobs, "begin", failing)
    async with serving(tmp_path, JobPool(free=1)) as api:
        await fill(api.database)
        id = await api.chat()
        await tries.until(3)
        tries.check(1)
        assert await api.status(id) == "pending"
        await api.pool.until(lambda: api.pool.free == 1)
    full.clear()
    later = JobPool()
    async with serving(tmp_path, later) as api:
        assert (await api.over(id))["status"] == "done"
        assert len(later.begun) == 1


@contextmanager
def full_at(monkeypatch: pytest.MonkeyPatch, where: str) -> Iterator[Tries]:
    """Fail as a full disk does: in the middle of a file's `write`, or at its `keep`; `store`: where
    it is noted.
    """
    tries, write = Tries(), Part.write

    def failing_write(self: Part, data: bytes) -> None:
        write(self, data[: len(data) // 2])
        tries.one()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing_keep(self: Part, id: str) -> None:
        self._file.flush()
        tries.one()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def failing_add(self: Files, *_: Any) -> Any:
        await fill(self._db)
        try:
            await grow(self._db)
        finally:
            await make_room(self._db)

    with monkeypatch.context() as patch:
        match where:
            case "write":
                patch.setattr(Part, "write", failing_write)
            case "keep":
                patch.setattr(Part, "keep", failing_keep)
            case _:
                patch.setattr(Files, "add", failing_add)
        yield tries


@pytest.mark.parametrize("where", ["write", "keep", "store"])
async def test_an_upload_that_finds_the_disk_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """503, worth another try, in plain words, wherever it is met; the same upload is taken later."""
    name = {"Idempotency-Key": "k1"}
    data = b"z" * (3 << 19)
    async with batches_served.serving(tmp_path) as api:
        with (
            full_at(monkeypatch, where),
            pytest.raises(openai.InternalServerError, match="the disk is full; make room") as caught,
        ):
            await api.upload(data, extra_headers=name)
        assert caught.value.status_code == 503
        assert list(api.folder.iterdir()) == []
        assert await api.rows("file") == 0
        file = await api.upload(data, extra_headers=name)
        assert (await api.client.files.content(file.id)).content == data


@pytest.mark.parametrize("where", ["write", "keep"])
async def test_a_batch_whose_output_finds_the_disk_full_is_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It waits with its answers in the store, asks nothing again, and leaves no half files."""
    pool = JobPool(answer=lambda name, task: [], free=3)
    async with batches_served.serving(tmp_path, pool) as api:
        batch = await api.until(await api.begin(chats(3)), "in_progress")
        await pool.until(lambda: len(pool.begun) == 3)
        with full_at(monkeypatch, where) as tries:
            for stream in pool.begun:
                stream.feed(*said(str(number_of(stream.task))))
            await tries.until(3)
            tries.check(1)
            assert (await api.client.batches.retrieve(batch.id)).status == "finalizing"
        batch = await api.over(batch)
        assert batch.status == "completed"
        assert [one["custom_id"] for one in await api.lines(batch.output_file_id)] == [
            "line-0",
            "line-1",
            "line-2",
        ]
        assert counted(pool) == {0: 1, 1: 1, 2: 1}
        assert {entry.name for entry in api.folder.iterdir()} == {batch.input_file_id, batch.output_file_id}

"""The daemon's SQLite file: opened, brought to this version's schema, and set aside when it is damaged."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import aiosqlite

from modeld.clock import Clock
from modeld.errors import StartupError, StoreFailed

BUSY_S = 10.0
"""Seconds a statement waits for another process that holds the file, a backup say."""

MIGRATIONS = Path(__file__).with_name("migrations")
"""NNN_name.sql, NNN being the schema version that the script brings the file to. Each is one transaction."""

CHECKED_BYTES = 64 * 1024**2
"""Files up to this size are looked through at every start, in 0.2 s at most; larger ones only when damage was
met in an earlier life, which a file beside them says.
"""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BESIDE = ("-wal", "-shm")
"""What SQLite keeps beside a file; a damaged file takes its log with it."""

Row: TypeAlias = tuple[Any, ...]
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("modeld.store")


class Damaged(Exception):
    """The file is not a sound SQLite database; the text is SQLite's finding."""


class Transaction:
    """An open write transaction: all of it happens, or nothing."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> int:
        """Run one statement and return how many rows it changed."""
        async with self._connection.execute(sql, parameters) as cursor:
            return cursor.rowcount

    async def execute_many(self, sql: str, rows: Iterable[Iterable[Any]]) -> None:
        """Run one statement for each row of parameters."""
        async with self._connection.executemany(sql, rows):
            pass

    async def fetch(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        """Return a query's rows, with what this transaction has changed so far."""
        return list(await self._connection.execute_fetchall(sql, parameters))  # type: ignore[arg-type]


class Block:
    """A write transaction that is one function on SQLite's thread: it waits for the event loop only once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run one statement and return how many rows it changed."""
        return self._connection.execute(sql, parameters).rowcount

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of parameters."""
        self._connection.executemany(sql, rows)

    def insert(self, sql: str, parameters: Parameters = ()) -> int:
        """Add one row and return its key."""
        return int(self._connection.execute(sql, parameters).lastrowid or 0)

    def fetch(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Return a query's rows, with what this transaction has changed so far."""
        return self._connection.execute(sql, parameters).fetchall()


class Database:
    """The one connection to the file; SQLite runs on a thread of its own, never on the event loop.

    What is committed survives the death of the process; the last moments before a power cut may be lost, but
    the file stays sound (WAL with synchronous=NORMAL). Statements run one transaction after the other, in the
    order in which they were asked for. Trouble at run time (disk full, file locked by others for BUSY_S) is
    StoreFailed, and leaves nothing half done.
    """

    def __init__(self, path: Path, clock: Clock, connection: aiosqlite.Connection) -> None:
        self.path = path
        self.clock = clock
        self._connection = connection
        self._turn = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, clock: Clock) -> AsyncIterator[Database]:
        """Open the file, made with mode 0600 when it is missing; its directory must be there.

        A damaged file is moved to NAME.damaged-<UTC time>, with a warning in the log, and a new one is made.
        Raises StartupError, in one line, for a file of a newer version (which is left as it is), and for one
        that cannot be opened or written.
        """
        try:
            connection = await _opened(path)
        except Damaged as damage:
            aside = _set_aside(path, clock.time())
            _log.warning(
                "the store is damaged (%s); it was moved to %s and a new one is made: learned footprints, "
                "the last effective configuration, stored responses, conversations and jobs start afresh",
                damage,
                aside,
            )
            try:
                connection = await _opened(path)
            except Damaged as again:
                raise StartupError(f"{path} was made anew and is damaged again: {again}") from again
        try:
            yield cls(path, clock, connection)
        finally:
            await _closed(connection)

    async def fetch(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        """Return a query's rows, of what is committed."""
        async with self._turn:
            with _explained(self.path):
                return list(await self._connection.execute_fetchall(sql, parameters))  # type: ignore[arg-type]

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> int:
        """Run one statement as a transaction of its own; returns how many rows it changed."""
        async with self.write() as transaction:
            return await transaction.execute(sql, parameters)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        """Give a write transaction: committed when the block ends, undone when it raises or is cancelled."""
        async with self._turn:
            with _explained(self.path):
                try:
                    await self._statement("BEGIN IMMEDIATE")
                    yield Transaction(self._connection)
                    await self._connection.commit()
                except BaseException:
                    # Statements reach the thread in order: whatever was cut off is over before this one, and
                    # this one before the next transaction, even if nobody waits for it.
                    await self._connection.rollback()
                    raise

    async def transact(self, work: Callable[Concatenate[Block, P], T], *args: P.args, **more: P.kwargs) -> T:
        """Run a function as a write transaction on SQLite's thread, and return its result.

        Committed when it returns, undone when it raises. Where many statements follow each other this is much
        faster than `write` when the event loop is busy. A caller who is cancelled while it runs does not stop
        it: all of it still happens, or nothing.
        """

        def whole() -> T:
            connection = self._connection._conn
            try:
                connection.execute("BEGIN IMMEDIATE")
                result = work(Block(connection), *args, **more)
                connection.commit()
            except BaseException:
                connection.rollback()
                raise
            return result

        async with self._turn:
            with _explained(self.path):
                # aiosqlite has no public name for this. What it is given runs in the order in which it came.
                return cast(T, await self._connection._execute(whole))  # type: ignore[no-untyped-call]

    async def _statement(self, sql: str) -> None:
        async with self._connection.execute(sql):
            pass


def _suspect(path: Path) -> Path:
    """Return the file whose being there says that damage was met."""
    return path.with_name(path.name + ".suspect")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) in _DAMAGED:
            with suppress(OSError):
                _suspect(path).touch(mode=0o600)
        raise StoreFailed(f"the store {path} failed: {_words(error)}") from error


def _words(error: sqlite3.Error) -> str:
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return "the disk is full; make room"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"another process has held the file for {BUSY_S:g} s"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return f"the file is damaged ({error}); at its next start modeld sets it aside"
        case _:
            return str(error)


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, 0 for what Python's own module refuses."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


# --- opening and closing ------------------------------------------------------------------------------------


async def _opened(path: Path) -> aiosqlite.Connection:
    """Return a connection to the file in this version's schema. Raises Damaged or StartupError."""
    _make(path)
    connecting = aiosqlite.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        connection = await connecting
        try:
            await _prepared(connection, path)
        except BaseException:
            await connection.close()
            raise
    except sqlite3.Error as error:
        _joined(connecting)
        if _code(error) in _DAMAGED:
            raise Damaged(str(error)) from error
        raise StartupError(
            f"cannot use {path}: {_words(error)}; fix that, or choose another --state-dir"
        ) from error
    except BaseException:
        _joined(connecting)
        raise
    return connection


async def _prepared(connection: aiosqlite.Connection, path: Path) -> None:
    # The version comes first: the file of a newer modeld is not written to at all.
    have, scripts = await _value(connection, "PRAGMA user_version"), _migrations()
    known = max(scripts)
    if have > known:
        raise StartupError(
            f"{path} was written by a newer modeld (schema {have}, this version knows {known}); "
            "run that version, or give this one a --state-dir of its own"
        )
    suspect = _suspect(path)
    if suspect.exists() or path.stat().st_size <= CHECKED_BYTES:
        verdict = await _value(connection, "PRAGMA quick_check(1)")
        if verdict != "ok":
            raise Damaged(" ".join(str(verdict).split()))
        suspect.unlink(missing_ok=True)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON", "secure_delete = ON"):
        await _value(connection, f"PRAGMA {pragma}")
    for version in range(have + 1, known + 1):
        script = (
            f"BEGIN IMMEDIATE;\n{scripts[version].read_text()}\nPRAGMA user_version = {version};\nCOMMIT;"
        )
        try:
            await connection.executescript(script)
        except BaseException:
            await connection.rollback()
            raise


async def _value(connection: aiosqlite.Connection, sql: str) -> Any:
    rows = list(await connection.execute_fetchall(sql))
    return rows[0][0] if rows else None


def _migrations() -> dict[int, Path]:
    return {int(path.name.partition("_")[0]): path for path in MIGRATIONS.glob("[0-9]*_*.sql")}


async def _closed(connection: aiosqlite.Connection) -> None:
    try:
        await connection.close()
    finally:
        _joined(connection)


def _joined(connection: aiosqlite.Connection) -> None:
    """Wait until the connection's thread has ended; it has been told to, and has nothing left to do.

    aiosqlite 0.22 does not join it and has no public name for it, and a thread that is not a daemon keeps the
    process alive.
    """
    if connection._thread.ident is not None:
        connection._thread.join()


def _make(path: Path) -> None:
    """Make the file, or make it private; SQLite gives the files beside it the same mode."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in (errno.EACCES, errno.EPERM):
            why = f"uid {os.geteuid()} may not write it or its directory"
        raise StartupError(f"cannot write {path}: {why}; fix that, or choose another --state-dir") from error


def _set_aside(path: Path, now: float) -> Path:
    """Move the file, and what SQLite keeps beside it, out of the way; returns its new path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    count = 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{count}")
    try:
        os.rename(path, aside)
        _suspect(path).unlink(missing_ok=True)
        for ending in _BESIDE:
            beside = path.with_name(path.name + ending)
            if beside.exists():
                os.rename(beside, aside.with_name(aside.name + ending))
    except OSError as error:
        raise StartupError(
            f"{path} is damaged and cannot be moved to {aside.name}: {error.strerror}; move it away"
        ) from error
    return aside

"""Stored jobs: submitted whole, taken up item by item, and kept for a while when they are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from modeld.store import job_ends, job_intake
from modeld.store.db import Database, Transaction
from modeld.store.job_records import (
    Added,
    Candidate,
    Depth,
    ItemFailure,
    ItemResult,
    Job,
    JobDraft,
    TakenItem,
)

STATES: tuple[Literal["waiting", "working", "done", "failed", "cancelled"], ...] = (
    "waiting",
    "working",
    "done",
    "failed",
    "cancelled",
)
"""By the number in the table."""

_JOB = (
    "key, id, identity, kind, model, detail, status, items, waiting, taken, done, failed, code, error, "
    "created, begun, ended, deadline, expires"
)
_THERE = "(expires IS NULL OR expires > :now)"
_LIVE = "status IN ('pending', 'processing')"

_CANDIDATES = """
WITH RECURSIVE who (name) AS (
  SELECT min(identity) FROM job WHERE waiting > 0 AND model = :model
  UNION ALL
  SELECT (SELECT min(identity) FROM job WHERE waiting > 0 AND model = :model AND identity > who.name)
  FROM who WHERE who.name IS NOT NULL
)
SELECT who.name,
  (SELECT key FROM job WHERE waiting > 0 AND model = :model AND identity = who.name
   ORDER BY taken, key LIMIT 1),
  (SELECT key FROM job WHERE waiting > 0 AND model = :model AND identity = who.name ORDER BY key LIMIT 1)
FROM who WHERE who.name IS NOT NULL
"""
"""For each caller with something that waits for a model: its job that has got least, and its oldest. All of
it is read from indices, so that it takes no longer when many jobs wait.
"""

_MODELS = """
WITH RECURSIVE busy (name) AS (
  SELECT min(model) FROM job WHERE waiting > 0
  UNION ALL
  SELECT (SELECT min(model) FROM job WHERE waiting > 0 AND model > busy.name)
  FROM busy WHERE busy.name IS NOT NULL
)
SELECT name FROM busy WHERE name IS NOT NULL
"""


class Jobs:
    """The jobs of all callers; each sees only those of its own identity.

    `owner` names this life of the daemon. All methods raise StoreFailed, and then nothing is half done.
    """

    def __init__(self, db: Database, owner: str) -> None:
        self._db = db
        self._owner = owner

    # --- submitted ------------------------------------------------------------------------------------------

    async def add(self, drafts: Sequence[JobDraft]) -> list[Added]:
        """Store jobs, all in one transaction; say of each what became of it.

        A draft whose token its caller has used before is not stored again.
        """
        return await job_intake.add(self._db, drafts)

    # --- taken up -------------------------------------------------------------------------------------------

    async def models(self) -> list[str]:
        """Return the models that items wait for."""
        return [name for (name,) in await self._db.fetch(_MODELS)]

    async def candidates(self, model: str) -> list[Candidate]:
        """Return the callers whose items wait for a model."""
        return [Candidate(*row) for row in await self._db.fetch(_CANDIDATES, {"model": model})]

    async def take(self, job: int) -> TakenItem | None:
        """Take the first item of a job that waits; None when there is none any more."""
        async with self._db.write() as transaction:
            rows = await transaction.fetch(
                "SELECT item.key, item.job, job.id, identity, kind, model, detail, place, attempts, request, "
                "created FROM job_item AS item JOIN job ON job.key = item.job "
                "WHERE item.job = ? AND state = 0 ORDER BY place LIMIT 1",
                (job,),
            )
            if not rows:
                return None
            item = TakenItem(*rows[0])
            await transaction.execute("UPDATE job_item SET state = 1 WHERE key = ?", (item.key,))
            await transaction.execute(
                "UPDATE job SET waiting = waiting - 1, taken = taken + 1, owner = ?, beat = ? WHERE key = ?",
                (self._owner, self._db.clock.time(), job),
            )
            return item

    async def begin(self, item: TakenItem) -> bool:
        """Note that an engine begins with an item; False when it is not ours any more: cancelled, say."""
        async with self._db.write() as transaction:
            changed = await transaction.execute(
                "UPDATE job_item SET attempts = attempts + 1 WHERE key = ? AND state = 1", (item.key,)
            )
            if changed:
                await transaction.execute(
                    "UPDATE job SET status = 'processing', begun = coalesce(begun, ?) "
                    f"WHERE key = ? AND {_LIVE}",
                    (self._db.clock.time(), item.job),
                )
            return bool(changed)

    async def commit(self, item: TakenItem) -> bool:
        """Note that an item must not be begun anew; False when it is not ours any more."""
        return bool(
            await self._db.execute("UPDATE job_item SET final = 1 WHERE key = ? AND state = 1", (item.key,))
        )

    async def give_back(self, item: TakenItem, *, counted: bool) -> bool:
        """Let an item wait again; unless `counted`, as if no engine had begun with it.

        False when it is not ours any more.
        """
        async with self._db.write() as transaction:
            attempts = "" if counted else f", attempts = {int(item.attempts)}"
            changed = await transaction.execute(
                f"UPDATE job_item SET state = 0{attempts} WHERE key = ? AND state = 1", (item.key,)
            )
            if changed:
                await transaction.execute("UPDATE job SET waiting = waiting + 1 WHERE key = ?", (item.job,))
            return bool(changed)

    async def finish(self, item: TakenItem, body: bytes, *, failed: bool, keep_s: float | None) -> Job | None:
        """Store how an item ended; return its job as it is then, None when it is not ours any more.

        The job is over with its last item, and kept for `keep_s` seconds then (None: for ever).
        """
        async with self._db.write() as transaction:
            changed = await transaction.execute(
                "UPDATE job_item SET state = ?, result = ?, request = NULL WHERE key = ? AND state = 1",
                (3 if failed else 2, body, item.key),
            )
            if not changed:
                return None
            await transaction.execute(
                "UPDATE job SET done = done + ?, failed = failed + ? WHERE key = ?",
                (not failed, failed, item.job),
            )
            await job_ends.settle(transaction, item.job, self._db.clock.time(), keep_s)
            return await _job(transaction, item.job)

    async def reclaim(self, most_attempts: int, keep_s: float | None) -> tuple[int, list[Job]]:
        """Let what an earlier life of the daemon was working on wait again.

        An item that engines have begun with `most_attempts` times fails instead, and so does one that must
        not be begun anew. Returns how many wait again, and the jobs that are over by this.
        """
        return await job_ends.reclaim(self._db, self._owner, most_attempts, keep_s, _job)

    async def beat(self) -> None:
        """Note that this daemon still works on what it has taken."""
        await self._db.execute(
            f"UPDATE job SET beat = ? WHERE owner = ? AND {_LIVE}", (self._db.clock.time(), self._owner)
        )

    # --- ended otherwise ------------------------------------------------------------------------------------

    async def cancel(self, identity: str | None, id: str, keep_s: float | None) -> Job | None:
        """End a job that is not over as cancelled, and return it; None when there is no such job.

        `identity` None: whoever's. Items that have ended stay as they ended.
        """
        async with self._db.write() as transaction:
            job = await _named(transaction, identity, id)
            if job is None:
                return None
            await job_ends.end_rest(
                transaction, job.key, "cancelled", None, None, self._db.clock.time(), keep_s
            )
            return await _job(transaction, job.key)

    async def overdue(self, now: float, keep_s: float | None) -> list[Job]:
        """End what has passed its deadline as an error, what has not ended of it as failed; return those."""
        return await job_ends.overdue(self._db, now, keep_s, _job)

    async def release(self, id: str, keep_s: float | None) -> None:
        """Let a job that is over and was held expire; its results go at once, but for some failures."""
        await job_ends.release(self._db, id, keep_s)

    async def withdraw(self, key: int) -> None:
        """Forget a job that nobody knows of yet."""
        async with self._db.write() as transaction:
            await job_ends.forget(transaction, key)

    async def sweep(self, now: float) -> int:
        """Forget the jobs whose time is over; in small transactions, since others write in between."""
        gone = 0
        while rows := await self._db.fetch("SELECT key FROM job WHERE expires <= ? LIMIT 50", (now,)):
            async with self._db.write() as transaction:
                for (key,) in rows:
                    await job_ends.forget(transaction, key)
            gone += len(rows)
        return gone

    # --- read -----------------------------------------------------------------------------------------------

    async def get(self, identity: str | None, id: str) -> Job | None:
        """Return a job; None when it is unknown, forgotten or another's. `identity` None: whoever's."""
        rows = await self._db.fetch(
            f"SELECT {_JOB} FROM job "
            f"WHERE id = :id AND identity = coalesce(:identity, identity) AND {_THERE}",
            {"id": id, "identity": identity, "now": self._db.clock.time()},
        )
        return Job(*rows[0]) if rows else None

    async def results(self, key: int, after: int = -1, limit: int = -1) -> list[ItemResult]:
        """Return a job's items after a place, in order, at most `limit` of them (-1: all)."""
        rows = await self._db.fetch(
            "SELECT place, state, result FROM job_item WHERE job = ? AND place > ? ORDER BY place LIMIT ?",
            (key, after, limit),
        )
        return [ItemResult(place, STATES[state], result) for place, state, result in rows]

    async def failures(self, key: int, limit: int) -> list[ItemFailure]:
        """Return how items of a job failed, in order, at most `limit` of them."""
        rows = await self._db.fetch(
            "SELECT place, result FROM job_item WHERE job = ? AND state = 3 ORDER BY place LIMIT ?",
            (key, limit),
        )
        failures = [(place, msgspec.json.decode(result)) for place, result in rows]
        return [ItemFailure(place, told["code"], told["message"]) for place, told in failures]

    async def newest(self, limit: int, *, unfinished: bool = False) -> list[Job]:
        """Return jobs of all callers, the newest first."""
        where = f"{_LIVE}" if unfinished else _THERE
        rows = await self._db.fetch(
            f"SELECT {_JOB} FROM job WHERE {where} ORDER BY key DESC LIMIT :limit",
            {"now": self._db.clock.time(), "limit": limit},
        )
        return [Job(*row) for row in rows]

    async def depth(self) -> dict[str, Depth]:
        """Say how much there is to do, by kind; kinds of which there is nothing to do are not there."""
        rows = await self._db.fetch(
            "SELECT kind, sum(status = 'pending'), sum(status = 'processing'), sum(waiting), min(created) "
            f"FROM job WHERE {_LIVE} GROUP BY kind"
        )
        return {kind: Depth(*figures) for kind, *figures in rows}


async def _named(transaction: Transaction, identity: str | None, id: str) -> Job | None:
    rows = await transaction.fetch(
        f"SELECT {_JOB} FROM job WHERE id = ? AND identity = coalesce(?, identity) AND {_LIVE}",
        (id, identity),
    )
    return Job(*rows[0]) if rows else None


async def _job(transaction: Transaction, key: int) -> Job | None:
    rows = await transaction.fetch(f"SELECT {_JOB} FROM job WHERE key = ?", (key,))
    return Job(*rows[0]) if rows else None

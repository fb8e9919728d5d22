"""How jobs end: with their last item, by being cancelled, by a deadline, and by a life of the daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from modeld.store.db import Database, Transaction
from modeld.store.job_records import Job

LATE = (
    "the job had not ended by its deadline, {} s after its submission (for batches 24h, for other jobs "
    "jobs.patience in the configuration)"
)
FEW = 20
"""Failures of a job that was held that are kept for who looks at it."""
FINAL = (
    "modeld ended while it worked on this, after it had begun to call tools; it is not tried again, since "
    "they would be called twice"
)

_Read = Callable[[Transaction, int], Awaitable[Job | None]]


def failure(code: str, message: str, **more: str | int | None) -> bytes:
    """Return the JSON of an item that failed; `more` is for who reads the kind's results."""
    return msgspec.json.encode({"code": code, "message": message, **more})


async def settle(transaction: Transaction, key: int, now: float, keep_s: float | None) -> None:
    """End a job whose items have all ended; one that has nothing but failures is an error, with the first."""
    expires = None if keep_s is None else now + keep_s
    await transaction.execute(
        "UPDATE job SET status = CASE WHEN failed = items THEN 'error' ELSE 'done' END, ended = ?, "
        "expires = CASE WHEN held THEN NULL ELSE ? END, owner = NULL, beat = NULL "
        "WHERE key = ? AND status IN ('pending', 'processing') AND done + failed = items",
        (now, expires, key),
    )
    rows = await transaction.fetch(
        "SELECT result FROM job JOIN job_item ON job_item.job = job.key "
        "WHERE job.key = ? AND status = 'error' AND job.error IS NULL AND state = 3 ORDER BY place LIMIT 1",
        (key,),
    )
    for (result,) in rows:
        body = msgspec.json.decode(result)
        await transaction.execute(
            "UPDATE job SET code = ?, error = ? WHERE key = ?", (body["code"], body["message"], key)
        )


async def end_rest(
    transaction: Transaction,
    key: int,
    status: Literal["error", "cancelled"],
    code: str | None,
    error: str | None,
    now: float,
    keep_s: float | None,
) -> None:
    """End a job with what has not ended of it: cancelled, or failed with this code and error."""
    if status == "cancelled":
        await transaction.execute(
            "UPDATE job_item SET state = 4, request = NULL WHERE job = ? AND state IN (0, 1)", (key,)
        )
        failed = 0
    else:
        failed = await transaction.execute(
            "UPDATE job_item SET state = 3, result = ?, request = NULL WHERE job = ? AND state IN (0, 1)",
            (failure(code or "error", error or ""), key),
        )
    await transaction.execute(
        "UPDATE job SET status = ?, code = ?, error = ?, failed = failed + ?, waiting = 0, ended = ?, "
        "expires = CASE WHEN held THEN NULL ELSE ? END, owner = NULL, beat = NULL "
        "WHERE key = ? AND status IN ('pending', 'processing')",
        (status, code, error, failed, now, None if keep_s is None else now + keep_s, key),
    )


async def reclaim(
    db: Database, owner: str, most_attempts: int, keep_s: float | None, read: _Read
) -> tuple[int, list[Job]]:
    """See `Jobs.reclaim`. One transaction for each job."""
    again, ended = 0, []
    left = await db.fetch(
        "SELECT key FROM job WHERE owner IS NOT NULL AND owner <> ? AND status IN ('pending', 'processing')",
        (owner,),
    )
    for (key,) in left:
        async with db.write() as transaction:
            job = await read(transaction, key)
            if job is None or job.over:  # meanwhile
                continue
            failed = await transaction.execute(
                "UPDATE job_item SET state = 3, result = ?, request = NULL "
                "WHERE job = ? AND state = 1 AND final",
                (failure("interrupted", FINAL), key),
            )
            text = f"modeld ended {most_attempts} times while it worked on this, so it is not tried again"
            failed += await transaction.execute(
                "UPDATE job_item SET state = 3, result = ?, request = NULL "
                "WHERE job = ? AND state = 1 AND attempts >= ?",
                (failure("too_many_attempts", text), key, most_attempts),
            )
            waiting = await transaction.execute(
                "UPDATE job_item SET state = 0 WHERE job = ? AND state = 1", (key,)
            )
            await transaction.execute(
                "UPDATE job SET failed = failed + ?, waiting = waiting + ?, owner = NULL, beat = NULL "
                "WHERE key = ?",
                (failed, waiting, key),
            )
            await settle(transaction, key, db.clock.time(), keep_s)
            again += waiting
            job = await read(transaction, key)
            if job is not None and job.over:
                ended.append(job)
    return again, ended


async def overdue(db: Database, now: float, keep_s: float | None, read: _Read) -> list[Job]:
    """See `Jobs.overdue`. One transaction for each job."""
    late = await db.fetch(
        "SELECT key FROM job WHERE status IN ('pending', 'processing') AND deadline <= ? LIMIT 100", (now,)
    )
    ended: list[Job] = []
    for (key,) in late:
        async with db.write() as transaction:
            job = await read(transaction, key)
            if job is None or job.over:  # meanwhile
                continue
            text = LATE.format(round((job.deadline or now) - job.created))
            await end_rest(transaction, key, "error", "expired", text, db.clock.time(), keep_s)
            ended += [job] if (job := await read(transaction, key)) is not None else []
    return ended


async def release(db: Database, id: str, keep_s: float | None) -> None:
    """See `Jobs.release`."""
    async with db.write() as transaction:
        await transaction.execute(
            "DELETE FROM job_item WHERE job = (SELECT key FROM job WHERE id = :id AND held) AND place NOT IN "
            "(SELECT place FROM job_item WHERE job = (SELECT key FROM job WHERE id = :id) AND state = 3 "
            "ORDER BY place LIMIT :few)",
            {"id": id, "few": FEW},
        )
        await transaction.execute(
            "UPDATE job SET held = 0, expires = ended + :keep WHERE id = :id AND held",
            {"id": id, "keep": keep_s},
        )


async def forget(transaction: Transaction, key: int) -> None:
    """Remove a job and its items."""
    await transaction.execute("DELETE FROM job_item WHERE job = ?", (key,))
    await transaction.execute("DELETE FROM job WHERE key = ?", (key,))

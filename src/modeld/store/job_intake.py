"""How jobs come in: several in one transaction, each once however often its caller sends it."""

from __future__ import annotations

from collections.abc import Sequence

from modeld.store.db import Database, Row, Transaction
from modeld.store.job_records import Added, JobDraft


async def add(db: Database, drafts: Sequence[JobDraft]) -> list[Added]:
    """See `Jobs.add`."""
    added: list[Added] = []
    async with db.write() as transaction:
        key = await _next_key(transaction)
        jobs: list[tuple[object, ...]] = []
        items: list[tuple[object, ...]] = []
        here: dict[tuple[str, str], Added] = {}
        digests: dict[str, bytes | None] = {}
        for draft in drafts:
            if draft.token is not None:
                name = (draft.identity, draft.token)
                known = here.get(name)
                digest = None if known is None else digests[known.id]
                if known is None:
                    known, digest = await _by_token(transaction, draft, db.clock.time())
                if known is not None:
                    added.append(Added(known.id, known.key, False, digest != draft.digest))
                    continue
                here[name] = Added(draft.id, key)
                digests[draft.id] = draft.digest
            count = len(draft.requests)
            jobs.append(
                (
                    key,
                    draft.id,
                    draft.identity,
                    draft.kind,
                    draft.model,
                    draft.detail,
                    count,
                    count,
                    draft.created,
                    draft.deadline,
                    draft.token,
                    draft.digest,
                    draft.held,
                )
            )
            items += [(key, place, request) for place, request in enumerate(draft.requests)]
            added.append(Added(draft.id, key))
            key += 1
        await transaction.execute_many(
            "INSERT INTO job (key, id, identity, kind, model, detail, status, items, waiting, created, "
            "deadline, token, digest, held) VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?, ?)",
            jobs,
        )
        await transaction.execute_many("INSERT INTO job_item (job, place, request) VALUES (?, ?, ?)", items)
    return added


async def _next_key(transaction: Transaction) -> int:
    rows = await transaction.fetch("SELECT seq FROM sqlite_sequence WHERE name = 'job'")
    return int(rows[0][0]) + 1 if rows else 1


async def _by_token(
    transaction: Transaction, draft: JobDraft, now: float
) -> tuple[Added | None, bytes | None]:
    """Return the job that a caller has given this draft's token, and its digest."""
    rows: list[Row] = await transaction.fetch(
        "SELECT id, key, digest, expires FROM job WHERE identity = ? AND token = ?",
        (draft.identity, draft.token),
    )
    for id, key, digest, expires in rows:
        if expires is not None and expires <= now:  # its name is free again
            await transaction.execute("UPDATE job SET token = NULL WHERE key = ?", (key,))
            continue
        return Added(id, key), digest
    return None, None

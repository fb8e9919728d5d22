"""How jobs come in: several in one transaction, each once however often its caller sends it."""

from __future__ import annotations

from collections.abc import Sequence

from modeld.store import tokens
from modeld.store.db import Block, Database
from modeld.store.job_records import Added, JobDraft
from modeld.store.tokens import Known


async def add(db: Database, drafts: Sequence[JobDraft]) -> list[Added]:
    """See `Jobs.add`."""
    return await db.transact(_add, drafts, db.clock.time())


def _add(block: Block, drafts: Sequence[JobDraft], now: float) -> list[Added]:
    added: list[Added] = []
    key = _next_key(block)
    jobs: list[tuple[object, ...]] = []
    items: list[tuple[object, ...]] = []
    here: dict[tuple[str, str], Known] = {}
    for draft in drafts:
        if draft.token is not None:
            name = (draft.identity, draft.token)
            known = here.get(name) or tokens.known(block, "job", *name, now)
            if known is not None:
                added.append(Added(known.id, known.key, False, known.digest != draft.digest))
                continue
            here[name] = Known(draft.id, key, draft.digest)
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
    block.execute_many(
        "INSERT INTO job (key, id, identity, kind, model, detail, status, items, waiting, created, "
        "deadline, token, digest, held) VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?, ?)",
        jobs,
    )
    block.execute_many("INSERT INTO job_item (job, place, request) VALUES (?, ?, ?)", items)
    return added


def _next_key(block: Block) -> int:
    rows = block.fetch("SELECT seq FROM sqlite_sequence WHERE name = 'job'")
    return int(rows[0][0]) + 1 if rows else 1

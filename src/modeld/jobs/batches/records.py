"""What a batch is: as callers see it, and what is remembered beside that."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from modeld.store.job_records import Job

Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

OVER = frozenset({"failed", "completed", "expired", "cancelled"})
"""Statuses after which nothing happens any more."""

KIND = "batch"
"""The kind of a batch's job; its id is the batch's."""


class Counts(msgspec.Struct):
    """Requests of a batch, by how they ended."""

    total: int = 0
    completed: int = 0
    failed: int = 0


def counts_of(job: Job) -> Counts:
    """Return how many requests of a batch's job have ended, and how."""
    return Counts(total=job.items, completed=job.done, failed=job.failed)


class Mistake(msgspec.Struct):
    """Something wrong with an input file. `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Mistakes(msgspec.Struct):
    """All that is wrong with an input file, as far as it is told."""

    data: list[Mistake]
    object: str = "list"


class CachedTokens(msgspec.Struct):
    """Part of the tokens read."""

    cached_tokens: int = 0


class ReasoningTokens(msgspec.Struct):
    """Part of the tokens written."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct):
    """Tokens of all requests together."""

    input_tokens: int = 0
    input_tokens_details: CachedTokens = msgspec.field(default_factory=CachedTokens)
    output_tokens: int = 0
    output_tokens_details: ReasoningTokens = msgspec.field(default_factory=ReasoningTokens)
    total_tokens: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """A batch as callers see it; times are whole seconds since the Unix epoch."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = None
    errors: Mistakes | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = msgspec.field(default_factory=Counts)
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None


class Record(msgspec.Struct, kw_only=True):
    """A batch as it is stored. `gateway`: where it came in, and its models are. `keep_s`: seconds for which
    its output is kept, None for ever. `sha256`: of its input. `refusal`: why its input cannot be used at all.
    """

    batch: Batch
    gateway: str
    keep_s: float | None
    sha256: str = ""
    refusal: Mistake | None = None


class Detail(msgspec.Struct):
    """What a batch's job remembers."""

    endpoint: str
    gateway: str


class Place(msgspec.Struct, array_like=True):
    """Where in the input file an item's line is: what the queue holds in its stead."""

    offset: int
    length: int

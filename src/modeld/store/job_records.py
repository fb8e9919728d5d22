"""What a job is to the store: as it is submitted, as it is taken up item by item, as it is read.

Times are seconds since the Unix epoch. `identity` is the caller's, `model` the pool's key of the model.
`kind` says how requests are done and results are read; the store does not look into either.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

JobStatus: TypeAlias = Literal["pending", "processing", "done", "error", "cancelled"]

UNFINISHED = ("pending", "processing")
"""Statuses of a job that is not over."""


class JobDraft(msgspec.Struct, frozen=True):
    """A job as it is submitted: one request for each item.

    `detail`: JSON that the kind wants to find again. `deadline`: when what has not ended fails, None: never.
    `token` with `digest`: the caller's own name for this submission, and what tells another one apart that
    goes by the same name. `held`: the job never expires; who submitted it clears it away.
    """

    id: str
    identity: str
    kind: str
    model: str
    requests: tuple[bytes, ...]
    created: float
    detail: bytes = b"null"
    deadline: float | None = None
    token: str | None = None
    digest: bytes | None = None
    held: bool = False


class Job(msgspec.Struct, frozen=True):
    """A job as it is. `waiting`, `done` and `failed` count items; what is left of `items` is at work.

    `code` and `error` are those of a job that ended in error. `begun`: when an engine first took up one of
    its items. `expires`: when it is forgotten, None for as long as it is not over.
    """

    key: int
    id: str
    identity: str
    kind: str
    model: str
    detail: bytes
    status: JobStatus
    items: int
    waiting: int
    taken: int
    done: int
    failed: int
    code: str | None
    error: str | None
    created: float
    begun: float | None
    ended: float | None
    deadline: float | None
    expires: float | None

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status not in UNFINISHED


class Added(msgspec.Struct, frozen=True):
    """What became of a draft: `id` and `key` of its job. `new` False: it was there by the caller's own name.

    `conflict`: that name was used for something else; the job is the other one's.
    """

    id: str
    key: int
    new: bool = True
    conflict: bool = False


class Candidate(msgspec.Struct, frozen=True):
    """A caller with items that wait for a model: the keys of the job that has got least so far, and of the
    oldest one.
    """

    identity: str
    least: int
    oldest: int


class TakenItem(msgspec.Struct, frozen=True):
    """An item that somebody works on now. `attempts`: how often an engine had begun with it before."""

    key: int
    job: int
    job_id: str
    identity: str
    kind: str
    model: str
    detail: bytes
    place: int
    attempts: int
    request: bytes
    created: float


class ItemResult(msgspec.Struct, frozen=True):
    """An item as it is: `state` is waiting, working, done, failed or cancelled.

    `body` is JSON: the result of one that is done, {"code", "message"} of one that failed, else None.
    """

    place: int
    state: Literal["waiting", "working", "done", "failed", "cancelled"]
    body: bytes | None


class ItemFailure(msgspec.Struct, frozen=True):
    """How an item failed."""

    place: int
    code: str
    message: str


class Depth(msgspec.Struct, frozen=True):
    """How much of one kind is to do: jobs by status, items that wait, when the oldest unfinished job came."""

    pending: int = 0
    processing: int = 0
    waiting: int = 0
    oldest: float | None = None

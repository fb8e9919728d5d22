"""What the admin room needs from the supervisor: outcomes and snapshots, never its insides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Protocol

from modeld.admin.schemas import Change, ChangePlan, ChangeResult, DevicesReply, EstimateReply
from modeld.store.job_records import ItemFailure, Job
from modeld.supervisor.events import EventFeed
from modeld.supervisor.log_ring import LogLine
from modeld.supervisor.states import Status


class Supervisor(Protocol):
    """The pool, as seen from the admin socket.

    Every method that takes a name raises NotFound for one that is not configured. The three moves return the
    outcome or raise a ModeldError; cancelling the caller stops the waiting and never the move itself.
    """

    @property
    def feed(self) -> EventFeed:
        """What happens to which model, as it happens."""
        ...

    def statuses(self) -> tuple[Status, ...]:
        """Return a snapshot of every model."""
        ...

    def status(self, name: str) -> Status:
        """Return a snapshot of one model."""
        ...

    async def load(self, name: str, *, force: bool = False) -> Status:
        """Bring a model up; returns when it is READY. `force` evicts busy models too, if it must."""
        ...

    async def unload(self, name: str) -> Status:
        """Drain and stop a model; returns when it is STOPPED."""
        ...

    async def restart(self, name: str) -> Status:
        """Stop a model and bring it up again; returns when it is READY."""
        ...

    def log_lines(self, name: str) -> list[LogLine]:
        """Return the kept lines of the model's worker, oldest first."""
        ...

    def follow_log(self, name: str) -> AbstractContextManager[AsyncIterator[LogLine]]:
        """Give an endless iterator over the lines from now on, without the kept ones."""
        ...


class Jobs(Protocol):
    """The jobs of all callers; `identity` None asks as the owner of the daemon."""

    async def newest(self, limit: int, *, unfinished: bool) -> list[Job]:
        """Return at most `limit` jobs, the newest first; with `unfinished` no others."""
        ...

    async def get(self, identity: str | None, id: str) -> Job | None:
        """Return a job, None when there is none of that id."""
        ...

    async def failures(self, job: Job, limit: int) -> list[ItemFailure]:
        """Return how items of a job failed, in order."""
        ...

    async def cancel(self, identity: str | None, id: str) -> bool:
        """End a job that is not over; False when there is none."""
        ...

    def follow(self, identity: str | None, id: str) -> AsyncIterator[Job]:
        """Give a job as it is, and again whenever an item has ended, until it is over or gone."""
        ...


class Control(Protocol):
    """What changes the daemon's models, and knows its machine."""

    async def plan(self, change: Change) -> ChangePlan:
        """Return what a change would do. Raises ConfigError or UsageError for one that cannot be."""
        ...

    async def apply(self, change: Change) -> ChangeResult:
        """Carry a change out; one at a time. Raises as `plan` does, and then nothing has changed.

        Cancelling the caller stops the waiting and never the change itself.
        """
        ...

    async def devices(self) -> DevicesReply:
        """Look at the machine now."""
        ...

    async def estimate(self, name: str) -> EstimateReply:
        """Return a model's footprint, line by line. Raises NotFound, LoadFailed (no file to look at)."""
        ...

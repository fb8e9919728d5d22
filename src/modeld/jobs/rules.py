"""The decisions about jobs: whose item is next, and what a failed try means. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from modeld.errors import LinkError, ModelUnavailable, Overloaded, StoreFailed, WorkerDied
from modeld.store.job_records import Candidate
from modeld.supervisor.admission import GaveWay

MOST_ATTEMPTS = 3
"""How often an engine may begin with an item that takes the worker or the daemon down; then it has failed."""

MOST_YIELDS = 8
"""How often an item gives its slot to an interactive request and begins anew; after that it keeps the slot.

This keeps jobs from starving, with three bounds of the supervisor: an item that waits for a slot is let in
after `admission.BACKGROUND_EVERY` interactive requests that waited too, one that waits for memory counts as
any request after `memory.PATIENCE_S`, and no slot is kept from jobs but one, where a model has several, while
people are about (`admission.PRESENT_S`).
"""

OLDEST_EVERY = 4
"""Of a caller's jobs the one that has got least goes first, so that a short one does not wait for a long one;
every so many turns it is the oldest one's turn, so that a long one ends although short ones keep coming.
"""


class Next(enum.Enum):
    """What becomes of an item after a try that failed."""

    FAIL = "fail"  # trying again would change nothing, or has been tried often enough
    AGAIN = "again"  # the try counts
    YIELD = "yield"  # it gave way: the try does not count
    WAIT = "wait"  # its model cannot take it now: the try does not count, and a pause is due


def after(error: Exception, attempts: int) -> Next:
    """Say what an error of a try means; `attempts` counts the tries before this one."""
    if isinstance(error, GaveWay):
        return Next.YIELD
    if isinstance(error, Overloaded | ModelUnavailable | StoreFailed):
        return Next.WAIT
    if isinstance(error, WorkerDied | LinkError):
        return Next.AGAIN if attempts + 1 < MOST_ATTEMPTS else Next.FAIL
    return Next.FAIL


def choose(
    candidates: Sequence[Candidate], at_work: Mapping[str, int], served: Mapping[str, int], turn: int
) -> int:
    """Return the key of the job whose item is next.

    Callers take turns: first who has the fewest items at work (`at_work`), then who was served longest ago
    (`served`: the turn of each one's last item). `candidates` is not empty.
    """
    who = min(
        candidates,
        key=lambda one: (at_work.get(one.identity, 0), served.get(one.identity, -1), one.identity),
    )
    return who.oldest if turn % OLDEST_EVERY == OLDEST_EVERY - 1 else who.least

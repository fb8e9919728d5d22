"""Who may go in: a request meets a model in some state, with some queue. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from modeld.errors import ModeldError, ModelFailed, ModelUnavailable, Overloaded
from modeld.supervisor.states import State


class GaveWay(Overloaded):
    """A call was cut off because an interactive request needs its slot; it was opened on that condition."""

    default_code = "gave_way"


class Priority(enum.IntEnum):
    """Lower goes first; within one priority, first come, first served."""

    INTERACTIVE = 0
    BACKGROUND = 1


@dataclass(frozen=True)
class Situation:
    """What the decision is made of.

    `wanted`: the owner wants the model up (it may be on its way, or being restarted).
    """

    model: str
    state: State
    wanted: bool
    in_flight: int
    slots: int
    queued: int
    max_queue: int
    message: str = ""


DAEMON_STOPS = "the daemon is stopping"
"""The message of models that end with the daemon: there is nothing to be done about it."""


class Verdict(enum.Enum):
    """What happens to the request when it is not refused."""

    GRANT = "grant"
    WAIT = "wait"


def decide(now: Situation) -> Verdict | ModeldError:
    """Return GRANT, WAIT, or the error to refuse with (queue full, failed, stopped)."""
    if now.state is State.FAILED:
        return ModelFailed(f"model {now.model!r} failed: {now.message}", param="model")
    if now.state is State.READY and not now.queued and now.in_flight < now.slots:
        return Verdict.GRANT
    if not now.wanted:
        why = f"model {now.model!r} is {now.state}: {now.message or 'it is not loaded'}"
        if now.message != DAEMON_STOPS:
            why += f"; load it with: modeld ctl load {now.model}"
        return ModelUnavailable(why, param="model")
    if now.queued >= now.max_queue:
        return Overloaded(
            f"{now.queued} requests wait for model {now.model!r} and its queue holds {now.max_queue}; "
            "try again later",
            param="model",
        )
    return Verdict.WAIT


def gives_way(waiting: int, leaving: int, yielding: Sequence[int]) -> int | None:
    """Return which call gives its slot to an interactive request: the youngest, which loses least; None for
    none.

    `waiting`: interactive requests without a slot. `leaving`: calls that were cut off and still hold one.
    `yielding`: the numbers of the calls that hold a slot on this condition.
    """
    return max(yielding, default=None) if waiting > leaving else None


PRESENT_S = 60.0
"""Seconds after an interactive request in which another one is expected."""


def kept_free(slots: int, yielding: int, since_people_s: float) -> bool:
    """Say whether a slot is kept free for the next interactive request, and not given to a call that yields.

    To cut a call off takes an engine a step or two; where somebody is about, that is saved. `yielding`: such
    calls that hold a slot. A model of one slot keeps none: it would do no background work at all.
    """
    return slots > 1 and since_people_s < PRESENT_S and yielding >= slots - 1


BACKGROUND_EVERY = 8
"""Interactive requests that go before a background request that waits; then it is its turn."""


def next_in_line(waiting: tuple[Priority, ...], passed: int = 0) -> int | None:
    """Return the position of the request to let in next, None when nobody waits.

    `passed`: interactive requests let in since a background request last began to wait or was let in. Every
    BACKGROUND_EVERY of them, one background request goes, so that background work gets on.
    """
    due = passed >= BACKGROUND_EVERY
    return min(
        range(len(waiting)),
        key=lambda at: (due and waiting[at] is Priority.INTERACTIVE, waiting[at], at),
        default=None,
    )

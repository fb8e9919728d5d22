"""The states of a model and the moves between them: a table, no clock, no I/O."""

from __future__ import annotations

import enum

import msgspec

from modeld.protocol.messages import Facts


class State(enum.StrEnum):
    """Where a model is in its life."""

    STOPPED = "stopped"
    WAITING = "waiting"  # for memory
    STARTING = "starting"  # fetching files, spawning the worker
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


MOVES: dict[State, frozenset[State]] = {
    State.STOPPED: frozenset({State.WAITING, State.STARTING}),
    State.WAITING: frozenset({State.STARTING, State.STOPPED, State.FAILED}),
    State.STARTING: frozenset(
        {State.WAITING, State.LOADING, State.BACKOFF, State.FAILED, State.STOPPING, State.STOPPED}
    ),
    State.LOADING: frozenset({State.READY, State.BACKOFF, State.FAILED, State.STOPPING}),
    State.READY: frozenset({State.DRAINING, State.STOPPING, State.BACKOFF, State.FAILED}),
    State.DRAINING: frozenset({State.STOPPING, State.BACKOFF, State.FAILED, State.STOPPED}),
    State.STOPPING: frozenset({State.STOPPED}),
    State.BACKOFF: frozenset({State.WAITING, State.STARTING, State.STOPPED, State.FAILED}),
    State.FAILED: frozenset({State.WAITING, State.STARTING, State.STOPPED}),
}
"""Every move there is; anything else is a defect of the actor."""

COMING = frozenset({State.WAITING, State.STARTING, State.LOADING, State.BACKOFF})
"""States that lead to READY by themselves: a request may wait for them."""


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One copy of a model. Fields as in `Status`; `devices` maps device ids to the bytes promised to it."""

    state: State
    cause: str
    message: str
    since: float
    run_id: str | None = None
    pid: int | None = None
    progress: float | None = None
    bytes_used: int = 0
    devices: dict[str, int] = {}
    in_flight: int = 0


class Status(msgspec.Struct, frozen=True):
    """An immutable snapshot of one model; `ctl status` prints exactly this.

    `state`, `cause`, `message`, `since`, `run_id`, `pid` and `progress` are those of the replica that is
    furthest on the way. `message` explains the state in one human sentence. `since` is UTC seconds since the
    epoch. `bytes_used` is the measured memory of all its workers' process trees (resident, and on GPUs), 0
    when none runs; `footprint` what modeld expects one replica to take. `progress` is 0..1 during STARTING
    and LOADING when known. `idle_unload_at`: UTC seconds at which it is unloaded if no request comes.
    `served_name` and `aliases` are what callers use at the gateway `gateway` ("" is the default one).
    """

    name: str
    usecase: str
    loader: str
    state: State
    cause: str
    message: str
    since: float
    run_id: str | None = None
    pid: int | None = None
    progress: float | None = None
    bytes_used: int = 0
    in_flight: int = 0
    queued: int = 0
    restarts: int = 0
    facts: Facts | None = None
    served_name: str = ""
    gateway: str = ""
    aliases: tuple[str, ...] = ()
    on_demand: bool = False
    pinned: bool = False
    footprint: int = 0
    idle_unload_at: float | None = None
    replicas: tuple[ReplicaStatus, ...] = ()


def check_move(current: State, to: State) -> None:
    """Raise ValueError for a move that is not in the table."""
    if to not in MOVES[current]:
        raise ValueError(f"a model cannot go from {current} to {to}")

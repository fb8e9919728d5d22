"""What a model shows of its replicas: one state, one sentence, and the sums. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modeld.protocol.messages import Facts
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import ReplicaStatus, State, Status

NEAREST: tuple[State, ...] = (
    State.READY,
    State.DRAINING,
    State.LOADING,
    State.STARTING,
    State.WAITING,
    State.BACKOFF,
    State.STOPPING,
    State.FAILED,
    State.STOPPED,
)
"""Whose state a model shows when its replicas differ: the first of these."""

_RANK = {state: rank for rank, state in enumerate(NEAREST)}


@dataclass(frozen=True)
class Copy:
    """A replica as far as a summary needs it; `footprint` in bytes, 0 when it is not known yet."""

    status: ReplicaStatus
    facts: Facts | None
    footprint: int


def summarise(
    spec: ModelSpec, copies: Sequence[Copy], *, wanted: int, restarts: int, held: bool = False
) -> Status:
    """Return the model's status, without its queue's figures.

    `wanted`: the number of replicas there should be. `held`: it may not start yet, since the one that it
    replaces has to end first.
    """
    nearest = min(copies, key=lambda copy: _RANK[copy.status.state])
    lead = nearest.status
    message = lead.message
    if len(copies) > 1:
        ready = sum(copy.status.state is State.READY for copy in copies)
        message = f"{ready} of {wanted or len(copies)} replicas are ready; {message}"
    by_request = spec.on_demand or spec.scaling.initial == 0
    if lead.state is State.STOPPED and lead.cause == "start" and by_request:
        message = "not loaded yet: the first request loads it"
    if held:
        message = "the worker that it replaces ends first"
    return Status(
        spec.name,
        spec.usecase,
        spec.loader,
        lead.state,
        lead.cause,
        message,
        lead.since,
        run_id=lead.run_id,
        pid=lead.pid,
        progress=lead.progress,
        bytes_used=sum(copy.status.bytes_used for copy in copies),
        restarts=restarts,
        facts=nearest.facts,
        served_name=spec.served_name,
        gateway=spec.gateway,
        aliases=spec.aliases,
        on_demand=spec.on_demand,
        pinned=spec.pinned,
        footprint=nearest.footprint,
        replicas=tuple(copy.status for copy in copies),
    )

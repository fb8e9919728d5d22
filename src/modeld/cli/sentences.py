"""One sentence for each state of a model: what it does, why, and what will happen next. Pure.

A sentence has no capital and no full stop, so that it can stand after a name and a colon. What the supervisor
said is always in it, with its numbers; what it left out is filled in from the rest of the snapshot.
"""

from __future__ import annotations

from modeld.cli.words import count, duration, memory, one_line
from modeld.supervisor.states import ReplicaStatus, State, Status

_OWN_WORDS: dict[State, str] = {
    State.WAITING: "waits for memory",
    State.STARTING: "its worker starts",
    State.LOADING: "the engine reads the model",
    State.DRAINING: "finishes its calls and takes no new ones",
    State.STOPPING: "its worker stops; its memory counts as free when it is seen free",
    State.BACKOFF: "its worker ended; it is started again by itself",
}
"""What a state means when the supervisor gives no message."""

_CALLED_BACK = frozenset({"evicted", "idle", "left", "memory", "scaled"})
"""Causes for which modeld itself stopped a model: any request brings it back, not those on demand alone."""


def sentence(status: Status, now: float) -> str:
    """Explain a model's state; `now` is UTC seconds since the epoch. Never empty, one printable line."""
    if status.state is State.READY:
        parts = _ready(status, now)
    elif status.state is State.STOPPED:
        parts = [said(status.message) or "not loaded", _way_back(status)]
    elif status.state is State.FAILED:
        parts = [said(status.message) or f"failed ({said(status.cause) or 'no reason given'})"]
        parts.append(f"`modeld ctl load {one_line(status.name)}` tries again")
    else:
        parts = [_on_its_way(status, status.footprint)]
        if status.state is State.DRAINING and status.in_flight:
            parts.append(f"{count(status.in_flight, 'call')} left")
        if status.state is State.BACKOFF:
            parts.append(_restarts(status))
    if status.queued and status.state is not State.READY:
        parts.append(_waiting(status.queued))
    return "; ".join(part for part in parts if part)


def replica_sentence(replica: ReplicaStatus) -> str:
    """Explain the state of one copy of a model; may be empty for a READY one that is idle."""
    if replica.state is State.READY:
        calls = f"serves {count(replica.in_flight, 'call')}" if replica.in_flight else ""
        return "; ".join(part for part in (calls, said(replica.message)) if part)
    if replica.state in (State.STOPPED, State.FAILED):
        return said(replica.message) or said(replica.cause) or str(replica.state)
    return _on_its_way(replica, sum(replica.devices.values()))


def said(message: str) -> str:
    """Return a message as one printable line without a closing full stop; an ellipsis stays."""
    text = one_line(message)
    return text if text.endswith("..") else text.removesuffix(".").rstrip()


def _on_its_way(status: Status | ReplicaStatus, needs: int) -> str:
    words = said(status.message)
    if not words:
        words = _OWN_WORDS[status.state]
        if status.state is State.WAITING and needs:
            words = f"waits for {memory(needs)} of memory"
        cause = said(status.cause)
        if cause and status.state in (State.BACKOFF, State.WAITING):
            words += f" ({cause})"
    return words


def _ready(status: Status, now: float) -> list[str]:
    ready = sum(replica.state is State.READY for replica in status.replicas) or 1
    slots = status.facts.slots * ready if status.facts is not None else 0
    if status.in_flight and slots >= status.in_flight:
        doing = f"serves {status.in_flight} of {count(slots, 'slot')}"
    elif status.in_flight:
        doing = f"serves {count(status.in_flight, 'call')}" + (f" on {count(slots, 'slot')}" if slots else "")
    else:
        doing = f"idle, {count(slots, 'slot')} free" if slots else "idle"
    parts = [doing]
    if status.queued:
        parts.append(_waiting(status.queued))
    if len(status.replicas) > 1:
        parts.append(f"{ready} of {len(status.replicas)} replicas are ready")
    if status.idle_unload_at is not None:
        left = status.idle_unload_at - now
        parts.append(f"unloads in {duration(left)} if idle" if left >= 1 else "unloads as soon as it is idle")
    if status.restarts:
        parts.append(_restarts(status))
    if words := said(status.message):
        # It may begin with what is already here, e.g. the number of replicas.
        parts = [*(part for part in parts if part not in words), words]
    return parts


def _way_back(status: Status) -> str:
    """Say how a stopped model comes up again."""
    if status.message.rstrip(".").endswith("request loads it"):
        return ""
    if status.on_demand or status.cause in _CALLED_BACK:
        return "the next request loads it"
    if status.cause == "start":
        return "its turn comes"
    return f"`modeld ctl load {one_line(status.name)}` loads it"


def _restarts(status: Status) -> str:
    return f"restarted {count(status.restarts, 'time')} so far" if status.restarts else ""


def _waiting(queued: int) -> str:
    return f"{count(queued, 'request')} wait{'s' if queued == 1 else ''}"

"""What `ctl` shows of models and events. Text in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modeld.admin.schemas import StatusReply
from modeld.cli.sentences import replica_sentence, sentence
from modeld.cli.table import BELOW, Row, Screen, table
from modeld.cli.words import cell, clock, duration, memory, memory_of, one_line
from modeld.hardware.machine import HOST
from modeld.protocol.messages import Facts
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import ReplicaStatus, State, Status

COLOURS: dict[State, str] = {
    State.READY: "green",
    State.FAILED: "red",
    State.BACKOFF: "yellow",
    State.WAITING: "yellow",
    State.STARTING: "cyan",
    State.LOADING: "cyan",
    State.DRAINING: "magenta",
    State.STOPPING: "magenta",
}
"""Colour of a state; without one it is printed as it is."""

HEADINGS = ("MODEL", "STATE", "CAUSE", "SINCE", "MEMORY", "IN-FLIGHT", "QUEUE")
WORDS = 3
"""So many of the columns hold words."""

CAUSE_MAX = 14
"""A longer cause moves to the line below the row, where the sentence is."""


def event_line(event: FeedEvent) -> str:
    """Return one line for an event."""
    what = event.state or event.kind
    percent = f" {event.progress:.0%}" if event.progress is not None else ""
    cause = f" ({one_line(event.cause)})" if event.cause else ""
    message = f": {one_line(event.message)}" if event.message else ""
    return f"{clock(event.time)} {one_line(event.model) or '-'} {one_line(what)}{percent}{cause}{message}"


def outcome_line(status: Status) -> str:
    """Return one line for the outcome of a move."""
    uses = f", {memory(status.bytes_used)}" if status.bytes_used else ""
    return f"{one_line(status.name)} is {status.state}{uses}"


def status_page(
    reply: StatusReply, screen: Screen, *, now: float, labels: Mapping[str, str] | None = None
) -> str:
    """Return the daemon in one line and its models as a table; `now` is UTC seconds since the epoch.

    Under each row stands the sentence that explains it, then what else is set for the model; then a row for
    each replica when there are several. `labels` are the devices' short names by id. MEMORY is what is used
    of what is expected. On a terminal no line is wider than the screen (of at least 80 columns): long names,
    causes and sentences get lines of their own. Piped, each model, and each replica, is exactly one line.
    """
    head = f"modeld {reply.version}, pid {reply.pid}, up {duration(reply.uptime)}, {reply.address}"
    if not reply.models:
        return f"{head}\nno models are configured"
    rows = [row for status in reply.models for row in _rows(status, screen, now, labels or {})]
    return "\n".join([*screen.fold(head), *table(HEADINGS, WORDS, rows, screen)])


def facts_lines(facts: Facts, screen: Screen) -> list[str]:
    """Return what a loaded model really is and uses, a fact a line."""
    told = {
        "loader": facts.loader,
        "device": facts.device,
        "memory": memory(facts.bytes_used),
        "at once": str(facts.slots),
        "context": f"{facts.context_length} tokens" if facts.context_length else "",
        "can do": ", ".join(facts.capabilities),
        "dimensions": str(facts.dimensions or ""),
        "voices": ", ".join(facts.voices),
        **facts.detail,
    }
    told = {key: value for key, value in told.items() if value}
    width = max(map(len, told)) + 2
    lines = []
    for key, value in told.items():
        lines += screen.fold(one_line(value), f"  {one_line(key).ljust(width)}", " " * (width + 2))
    return lines


def traits(status: Status, labels: Mapping[str, str]) -> str:
    """Return what is set for a model and where it lies, e.g. "pinned, on demand, alias gpt-4o, on GPU 0"."""
    parts = []
    if status.pinned:
        parts.append("pinned")
    if status.on_demand:
        parts.append("on demand")
    if status.gateway:
        parts.append(
            f"gateway {cell(status.gateway)}, called {cell(status.served_name or status.name)} there"
        )
    if status.aliases:
        parts.append(f"alias{'es' if len(status.aliases) > 1 else ''} {', '.join(map(cell, status.aliases))}")
    if len(status.replicas) == 1 and (places := _places(status.replicas[0], labels)):
        parts.append(places)
    return ", ".join(parts)


def _rows(status: Status, screen: Screen, now: float, labels: Mapping[str, str]) -> Iterator[Row]:
    copies = max(len(status.replicas), 1)
    yield _row(
        cell(status.name),
        status,
        screen,
        now,
        memory_of(status.bytes_used, status.footprint * copies),
        str(status.queued),
        [sentence(status, now), traits(status, labels)],
    )
    if copies == 1:
        return
    for number, replica in enumerate(status.replicas):  # from 0, as `ctl devices` names them
        # Whoever greps a pipe for the model's name wants its replicas as well.
        name = f"  #{number}" if screen.width is not None else f"{cell(status.name)}#{number}"
        below = [replica_sentence(replica), _places(replica, labels)]
        expected = memory_of(replica.bytes_used, sum(replica.devices.values()))
        yield _row(name, replica, screen, now, expected, "", below, BELOW + "  ")


def _row(
    name: str,
    of: Status | ReplicaStatus,
    screen: Screen,
    now: float,
    used: str,
    queued: str,
    below: list[str],
    indent: str = BELOW,
) -> Row:
    state = str(of.state)
    if of.progress is not None and of.state in (State.STARTING, State.LOADING):
        state += f" {of.progress:.0%}"
    cause = one_line(of.cause) or "-"
    if screen.width is not None and len(cause) > CAUSE_MAX:
        first, *others = below
        # Often the sentence is made of it already.
        below = [first if cause in first else f"{cause}: {first}" if first else cause, *others]
        cause = "↓"
    cells = (name, state, cause, duration(now - of.since), used, str(of.in_flight), queued)
    return Row(cells, below, COLOURS.get(of.state), indent)


def _places(replica: ReplicaStatus, labels: Mapping[str, str]) -> str:
    """Name the GPUs a replica lies on; that it also takes RAM goes without saying."""
    names = [cell(labels.get(device, device)) for device in sorted(replica.devices) if device != HOST]
    return f"on {', '.join(names)}" if names else ""

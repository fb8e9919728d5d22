"""Which replica starts next, where, and who must go for it: the whole view in, a plan out. Pure.

`plan` is level-triggered: it is called whenever something changed and knows nothing but the view, so that
calling it twice, or after a missed change, does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modeld.supervisor.placement import Demand, Holding, Refusal, Space

OVERTAKES = 16
"""Requests that may go before a waiting claim's oldest request although they came later: the bound of
unfairness. A model that others wait for goes on serving until so many have overtaken; then it is closed.
"""


@dataclass(frozen=True)
class Claim:
    """A replica that wants memory.

    `active`: somebody waits for it (a request, or the owner's `ctl load`), so idle models may be evicted for
    it; a passive claim (eager models at start, further replicas) only takes what is free. `since`: the pool-
    wide sequence number of the oldest waiting request, or of the owner's order. `forced`: busy models may be
    evicted too. `victims`: those the last plan chose for it; kept as long as they still make room, so that
    the choice does not wander.
    """

    replica: str
    model: str
    demand: Demand
    active: bool = False
    since: int = 0
    priority: int = 0
    forced: bool = False
    victims: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class View:
    """Everything a decision rests on. `cores`: CPU cores, the bound of parallel loads on the host.

    `sizing`: some eager model's footprint is still being worked out, so passive claims wait: the order of
    loads is by size, and the largest may not be known yet.
    """

    spaces: tuple[Space, ...]
    holdings: tuple[Holding, ...]
    claims: tuple[Claim, ...]
    cores: int = 1
    sizing: bool = False


@dataclass(frozen=True)
class Start:
    """Promise these bytes to the replica, and start it now."""

    replica: str
    devices: Mapping[str, int]


@dataclass(frozen=True)
class Eviction:
    """Stop this replica for that one. `reason` is for people and names both models and the bytes."""

    replica: str
    claimant: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to do now.

    `victims`: for each claim that waits for replicas to go, which ones: those in flight, and those already
    leaving. `waits`: for each claim that does not start, a sentence why. `refusals`: for each claim whose
    waiting cannot end by itself, why (a claim may be in both); the owner of an EVER refusal gives up, that of
    an active claim tells its requests. Every claim is in `starts`, or in `waits`.
    """

    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    victims: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waits: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


def plan(view: View) -> Plan:
    """Decide. Deterministic; see the rules in this module's tests."""
    raise NotImplementedError

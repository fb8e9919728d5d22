"""Which replica starts next, where, and who must go for it: the whole view in, a plan out. Pure.

`plan` is level-triggered: it is called whenever something changed and knows nothing but the view, so that
calling it twice, or after a missed change, does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from modeld.supervisor.scheduling.books import LEAVING, LOADING, Books, Entry
from modeld.supervisor.scheduling.demand import Demand, Holding, Never, Refusal, Space, gib
from modeld.supervisor.scheduling.placement import Place, search
from modeld.supervisor.scheduling.shortage import NAMED, explain
from modeld.supervisor.scheduling.turns import Turns
from modeld.supervisor.scheduling.victims import Search

OVERTAKES = 16
"""Requests that may go before a waiting claim's oldest request although they came later: the bound of
unfairness. A model that others wait for goes on serving until so many have overtaken; then it is closed.
"""


COUNTED = 8
"""Claims that stand behind others and are told who is in their way, those that wait longest."""


@dataclass(frozen=True)
class Claim:
    """A replica that wants memory.

    `active`: somebody waits for it (a request, or the owner's `ctl load`), so idle models may be evicted for
    it; a passive claim (eager models at start, further replicas) only takes what is free. `since`: the pool-
    wide sequence number of the oldest waiting request, or of the owner's order. `forced`: busy models may be
    evicted too. `victims`: those the last plan chose for it; kept as long as they still make room, so that
    the choice does not wander (but an idle replica that makes room at once goes before a busy one that was
    chosen). `overtaken`: requests that have gone before its oldest one since then; from OVERTAKES on it goes
    before every other claim, whatever their priority. `paid`: replicas were evicted for it; what they held is
    kept for it, also from claims of a higher priority, which would else take it, be evicted in turn, and so
    on without anybody being served.
    """

    replica: str
    model: str
    demand: Demand
    active: bool = False
    since: int = 0
    priority: int = 0
    forced: bool = False
    victims: frozenset[str] = field(default_factory=frozenset)
    overtaken: int = 0
    paid: bool = False


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
    leaving; for the oldest that stand behind other claims, those in their way. `waits`: for each claim that
    does not start, a sentence why. `refusals`: for each claim whose waiting cannot end by itself, why (a
    claim may be in both); the owner of an EVER refusal gives up, that of an active claim tells its requests.
    Every claim is in `starts`, or in `waits`.
    """

    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    victims: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waits: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


UNSIZED = "waits until the size of every model is known"
"""Why a claim waits though nothing is said yet of its chances."""


def plan(view: View) -> Plan:
    """Decide, claim by claim in order: each finds its place in what earlier ones leave.

    A claim starts when it fits beside everything that is held now and does not delay an earlier claim that
    waits. One that waits keeps its place and those who must go for it. Deterministic: the order of the view's
    tuples does not matter.
    """
    books = Books(view.spaces, view.holdings)
    turns = Turns(books, view.cores)
    draft = _Draft()
    for claim in _in_order(view, books):
        if view.sizing and not claim.active:
            draft.waits[claim.replica] = UNSIZED
            continue
        place = search(books, _search(claim, turns.taken))
        if place is None:
            _refuse(draft, books, claim)
        elif place.leavers:
            _make_room(draft, books, claim, place)
        elif blocker := turns.blocker(place.devices):
            books.speak_for(claim.model, place.devices, ())
            turns.keep(place.devices)
            draft.waits[claim.replica] = f"waits for its turn: {blocker}"
        else:
            _start(draft, books, turns, claim, place)
    _count_overtaking(draft, view)
    return Plan(tuple(draft.starts), tuple(draft.evictions), draft.victims, draft.waits, draft.refusals)


@dataclass
class _Draft:
    """A plan in the making."""

    starts: list[Start] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    victims: dict[str, frozenset[str]] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)


def _start(draft: _Draft, books: Books, turns: Turns, claim: Claim, place: Place) -> None:
    draft.starts.append(
        Start(claim.replica, {books.spaces[at].id: size for at, size in place.devices.items()})
    )
    exclusive = bool(claim.demand.gpus)
    books.start(claim.replica, claim.model, place.devices, exclusive=exclusive)
    turns.start(claim.model, place.devices)


def _refuse(draft: _Draft, books: Books, claim: Claim) -> None:
    refusal = explain(books, claim.demand)
    draft.waits[claim.replica] = refusal.message
    if refusal.never is not Never.NO:
        draft.refusals[claim.replica] = refusal


def _search(claim: Claim, shun: Collection[int] = ()) -> Search:
    return Search(claim.demand, claim.active, claim.victims, claim.model, shun if claim.active else ())


def _count_overtaking(draft: _Draft, view: View) -> None:
    """Name who would go for each claim that stands behind others, if it were first.

    They are not sent away for it, but what they serve meanwhile overtakes it, and that has to be counted:
    else claims of a higher priority could go before it for ever.
    """
    behind = [
        claim
        for claim in view.claims
        if claim.active
        and claim.replica in draft.waits
        and claim.replica not in draft.victims
        and claim.replica not in draft.refusals
    ]
    if not behind:
        return
    books = Books(view.spaces, view.holdings)
    for claim in sorted(behind, key=lambda claim: (claim.since, claim.model, claim.replica))[:COUNTED]:
        place = search(books, _search(claim))
        if place is not None and place.leavers:
            draft.victims[claim.replica] = _victims(place.leavers)


def _victims(leavers: Iterable[Entry]) -> frozenset[str]:
    return frozenset(entry.key for entry in leavers if entry.phase is not LOADING)


def _make_room(draft: _Draft, books: Books, claim: Claim, place: Place) -> None:
    """Keep the place, and send away those who may go at once."""
    loading = any(entry.phase is LOADING for entry in place.leavers)
    need = _size(books, place)
    sent = set()
    if not loading:  # else the memory would lie idle until that load has ended and served
        for entry in place.leavers:
            if entry.going or (entry.holding.in_flight and not claim.forced):
                continue
            books.send_away(entry)
            sent.add(entry.key)
            reason = f"{entry.model} makes room for {claim.model}, which needs {need}"
            draft.evictions.append(Eviction(entry.key, claim.replica, reason))
    draft.victims[claim.replica] = _victims(place.leavers)
    draft.waits[claim.replica] = f"needs {need}: waits for {_named(place.leavers, sent)}"
    books.speak_for(claim.model, place.devices, place.leavers)


# --- the order of claims ------------------------------------------------------------------------------------


def _in_order(view: View, books: Books) -> list[Claim]:
    """Return the claims in the order in which they get memory."""
    active = [claim for claim in view.claims if claim.active]
    passive = [claim for claim in view.claims if not claim.active]
    active.sort(key=lambda claim: (*_standing(claim), claim.since, claim.model, claim.replica))
    most = max((books.usable[at] for at in books.good_gpus), default=0)
    largest = max(books.good_gpus, key=lambda at: books.spaces[at].total, default=None)

    def size(claim: Claim) -> tuple[int, int, int, int, int, str, str]:
        demand = claim.demand
        gpus = demand.gpus or (-(-demand.vram // most) if demand.spread and demand.vram > most > 0 else 0)
        vram = demand.vram if largest is None else books.gpu_bytes(demand, largest)
        return (-claim.priority, -gpus, -bool(demand.gpus), -vram, -demand.ram, claim.model, claim.replica)

    passive.sort(key=size)
    return active + passive


def _standing(claim: Claim) -> tuple[int, int]:
    """Say how an active claim stands before `since` counts: overdue, paid for, or by its priority."""
    if claim.overtaken >= OVERTAKES:
        return (0, 0)
    return (1 if claim.paid else 2, -claim.priority)


# --- words --------------------------------------------------------------------------------------------------


def _size(books: Books, place: Place) -> str:
    """Say how much a claim takes, and where: on GPUs, unless it is the host's memory that is lacking."""
    gpus = [at for at in place.devices if books.is_gpu[at]]
    if not any(entry.held.get(at) for at in gpus for entry in place.leavers):
        gpus = [at for at in place.devices if not books.is_gpu[at]]
    labels = " and ".join(books.spaces[at].label for at in gpus)
    return f"{gib(sum(place.devices[at] for at in gpus))} on {labels}"


def _named(leavers: Sequence[Entry], sent: set[str]) -> str:
    """Say who is waited for, and what each is doing."""
    words = []
    for entry in leavers[:NAMED]:
        if entry.phase is LEAVING or entry.key in sent or entry.going:
            doing = "is stopping"
        elif entry.phase is LOADING:
            doing = "is loading"
        elif entry.holding.in_flight == 1:
            doing = "has 1 request in flight"
        elif entry.holding.in_flight:
            doing = f"has {entry.holding.in_flight} requests in flight"
        else:
            doing = "is idle"
        words.append(f"{entry.model}, which holds {gib(sum(entry.held.values()))} and {doing}")
    if len(leavers) > NAMED:
        words.append(f"{len(leavers) - NAMED} more")
    return "; ".join(words)

"""A pool of models without workers: what `plan` decides is carried out as its contract says, event by event.

Nothing here decides about memory. Requests are numbers in the order of their arrival.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from modeld.supervisor.scheduling.placement import Demand, Holding, Never, Phase, Space
from modeld.supervisor.scheduling.scheduler import OVERTAKES, Claim, View, plan
from tests.unit.supervisor.views import free_bytes


@dataclass(frozen=True)
class Model:
    """A model as configured. `eager`: it is loaded without being asked for."""

    name: str
    demand: Demand
    slots: int = 2
    priority: int = 0
    pinned: bool = False
    eager: bool = False
    copies: int = 1


@dataclass
class Replica:
    """A copy that holds memory."""

    key: str
    model: Model
    held: dict[str, int]
    phase: Phase = Phase.LOADING
    in_flight: list[int] = field(default_factory=list)
    idle_since: int = 0


@dataclass
class Waiting:
    """A claim as its owner remembers it between plans."""

    key: str
    model: Model
    since: int = 0
    victims: frozenset[str] = frozenset()
    overtaken: int = 0
    forced: bool = False
    paid: bool = False


class Pool:
    """Models, their replicas, claims and queues; each public method is an event, after which it settles."""

    def __init__(self, models: list[Model], spaces: tuple[Space, ...], cores: int = 2) -> None:
        self.models = {model.name: model for model in models}
        self.spaces = {space.id: space for space in spaces}
        self.cores = cores
        self.replicas: dict[str, Replica] = {}
        self.claims: dict[str, Waiting] = {}
        self.queues: dict[str, list[int]] = {name: [] for name in self.models}
        self.answers: dict[int, str] = {}
        self.open: dict[int, str] = {}
        self.now = 0
        self.lives = 0
        self.number = 0
        self.served = dict.fromkeys(self.models, 0)
        self.loads = 0
        self.evicted = 0
        self.most_overtaken = 0
        self.waits: dict[str, str] = {}
        self.settle()

    # --- events ---------------------------------------------------------------------------------------------

    def arrive(self, name: str) -> int:
        """A request comes."""
        self.number += 1
        self.open[self.number] = name
        self.queues[name].append(self.number)
        self.settle()
        return self.number

    def end(self, key: str) -> None:
        """A replica's oldest request is answered."""
        replica = self.replicas[key]
        self._answer(replica.in_flight.pop(0), "done")
        self.served[replica.model.name] += 1
        self._touched(replica)
        self.settle()

    def leave(self, name: str, at: int) -> None:
        """A client that waits goes away."""
        self._answer(self.queues[name].pop(at), "left")
        self.settle()

    def force(self, name: str) -> None:
        """The owner wants a model now, whoever is busy."""
        for claim in self.claims.values():
            if claim.model.name == name:
                claim.forced = True
        self.settle()

    def loaded(self, key: str) -> None:
        """A load ends well."""
        self.replicas[key].phase = Phase.SERVING
        self.replicas[key].idle_since = self.now
        self.settle()

    def crash(self, key: str) -> None:
        """A worker dies; its memory comes back later."""
        self._stop(self.replicas[key])
        self.settle()

    def returned(self, key: str) -> None:
        """The memory of a stopped worker is seen free."""
        del self.replicas[key]
        self.settle()

    def foreign(self, id_: str, usable: int) -> None:
        """Other programs take or give back memory."""
        self.spaces[id_] = dataclasses.replace(self.spaces[id_], usable=usable, others="some used by others")
        self.settle()

    # --- what the pool does ---------------------------------------------------------------------------------

    def _answer(self, number: int, how: str) -> None:
        assert number not in self.answers, "a request is answered once"
        self.answers[number] = how
        del self.open[number]

    def _touched(self, replica: Replica) -> None:
        replica.idle_since = self.now

    def _stop(self, replica: Replica) -> None:
        for number in replica.in_flight:
            self._answer(number, "broken off")
        replica.in_flight = []
        replica.phase = Phase.LEAVING

    def settle(self) -> None:
        """Let requests in, decide, carry out, and let in again; then check what must always hold."""
        self.now += 1
        self._grant()
        self._ask()
        self._decide()
        self._grant()
        self._check()

    def _closed(self, key: str, number: int) -> bool:
        return any(
            key in claim.victims and number > claim.since and claim.overtaken >= OVERTAKES
            for claim in self.claims.values()
        )

    def _grant(self) -> None:
        for name, queue in self.queues.items():
            for number in list(queue):
                replica = next(
                    (
                        replica
                        for replica in self.replicas.values()
                        if replica.model.name == name
                        and replica.phase is Phase.SERVING
                        and len(replica.in_flight) < replica.model.slots
                        and not self._closed(replica.key, number)
                    ),
                    None,
                )
                if replica is None:
                    continue
                queue.remove(number)
                replica.in_flight.append(number)
                for claim in self.claims.values():
                    if replica.key in claim.victims and number > claim.since:
                        claim.overtaken += 1

    def _ask(self) -> None:
        """Make the claims that models have now: one that must serve somebody, further ones that may wait."""
        for model in self.models.values():
            mine = [
                one for one in self.replicas.values() if one.model is model and one.phase is not Phase.LEAVING
            ]
            claims = [claim for claim in self.claims.values() if claim.model is model]
            wanted = model.copies if mine or self.queues[model.name] or model.eager else 0
            for claim in claims[max(wanted - len(mine), 0) :]:
                del self.claims[claim.key]
            for _ in range(wanted - len(mine) - len(claims)):
                self.lives += 1
                key = f"{model.name}~{self.lives}"
                self.claims[key] = Waiting(key, model)

    def _active(self, claim: Waiting) -> bool:
        model = claim.model
        serving = any(
            replica.model is model and replica.phase is Phase.SERVING for replica in self.replicas.values()
        )
        first = next(one for one in self.claims.values() if one.model is model)
        loading = any(
            replica.model is model and replica.phase is Phase.LOADING for replica in self.replicas.values()
        )
        return bool(self.queues[model.name]) and not serving and not loading and claim is first

    def view(self) -> View:
        """Return the facts."""
        claims = []
        for claim in self.claims.values():
            active = self._active(claim)
            since = self.queues[claim.model.name][0] if active else 0
            if since != claim.since or not active:
                claim.since, claim.overtaken = since, 0
            claims.append(
                Claim(
                    claim.key,
                    claim.model.name,
                    claim.model.demand,
                    active,
                    since,
                    claim.model.priority,
                    claim.forced and active,
                    claim.victims,
                    claim.overtaken,
                    claim.paid,
                )
            )
        return View(tuple(self.spaces.values()), self._holdings(), tuple(claims), self.cores)

    def _holdings(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(
                replica.key,
                replica.model.name,
                replica.held,
                replica.phase,
                len(replica.in_flight),
                0.0 if replica.in_flight else float(self.now - replica.idle_since),
                replica.model.pinned,
                replica.model.priority,
                10.0,
                bool(replica.model.demand.gpus),
            )
            for replica in self.replicas.values()
        )

    def _decide(self) -> None:
        view = self.view()
        decided = plan(view)
        for start in decided.starts:
            claim = self.claims.pop(start.replica)
            self.replicas[start.replica] = Replica(start.replica, claim.model, dict(start.devices))
            self.loads += 1
            free = free_bytes(self.spaces.values(), self._holdings())
            assert all(free[id_] >= 0 for id_, size in start.devices.items() if size), "over capacity"
        for eviction in decided.evictions:
            replica = self.replicas[eviction.replica]
            assert not replica.model.pinned
            assert replica.phase is Phase.SERVING
            assert not replica.in_flight or self.claims[eviction.claimant].forced
            self._stop(replica)
            self.claims[eviction.claimant].paid = True
            self.evicted += 1
        self.waits = dict(decided.waits)
        for key, claim in list(self.claims.items()):
            claim.victims = decided.victims.get(key, frozenset())
            refusal = decided.refusals.get(key)
            if refusal is None or not self._active(claim):
                continue
            assert refusal.never is not Never.NO
            for number in self.queues[claim.model.name]:
                self._answer(number, "refused")
            self.queues[claim.model.name] = []
            if not claim.model.eager:
                del self.claims[key]

    def _check(self) -> None:
        """Check what must hold between any two events."""
        for claim in self.claims.values():
            self.most_overtaken = max(self.most_overtaken, claim.overtaken)
            assert claim.overtaken <= OVERTAKES, f"{claim.key} was overtaken {claim.overtaken} times"
        queued = [number for queue in self.queues.values() for number in queue]
        flying = [number for replica in self.replicas.values() for number in replica.in_flight]
        assert sorted(queued + flying) == sorted(self.open), "a request is in one place"
        assert len(self.answers) + len(self.open) == self.number, "no request is lost"
        again = plan(self.view())
        assert not again.evictions, "asked again, the plan sends nobody else away"

    # --- the end --------------------------------------------------------------------------------------------

    def drain(self) -> int:
        """Let everything go on without new requests; return the events it took until nobody waits."""
        events = 0
        while self.open:
            events += 1
            assert events < 10_000, f"nothing moves: {self.waits}"
            if serving := [key for key, replica in self.replicas.items() if replica.in_flight]:
                self.end(serving[0])
            elif loading := [key for key, one in self.replicas.items() if one.phase is Phase.LOADING]:
                self.loaded(loading[0])
            elif leaving := [key for key, one in self.replicas.items() if one.phase is Phase.LEAVING]:
                self.returned(leaving[0])
            else:
                raise AssertionError(f"deadlock: {self.queues} {self.waits}")
        return events

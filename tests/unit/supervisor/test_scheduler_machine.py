from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from modeld.supervisor.scheduling.placement import Demand, Phase
from modeld.supervisor.scheduling.scheduler import OVERTAKES
from tests.unit.supervisor.simulation import Model, Pool
from tests.unit.supervisor.views import gpu, host

demands = st.one_of(
    st.builds(Demand, ram=st.integers(5, 90)),
    st.builds(Demand, ram=st.integers(0, 10), vram=st.integers(5, 60)),
    st.builds(Demand, ram=st.integers(0, 10), vram=st.integers(50, 90), spread=st.just(True)),
    st.builds(Demand, gpus=st.integers(1, 2)),
)


class Traffic(RuleBasedStateMachine):
    """Any models under any traffic: requests, ends, loads, crashes, memory that is late or taken."""

    pool: Pool

    @initialize(
        needs=st.lists(demands, min_size=2, max_size=6),
        pinned=st.booleans(),
        eager=st.booleans(),
        copies=st.integers(1, 2),
        priorities=st.booleans(),
        cores=st.integers(1, 3),
    )
    def begin(
        self, needs: list[Demand], pinned: bool, eager: bool, copies: int, priorities: bool, cores: int
    ) -> None:
        """Configure the models; on demand some are pinned, loaded at start, doubled, or more urgent."""
        models = [
            Model(
                f"m{at}",
                need,
                slots=1 + at % 2,
                priority=at % 2 if priorities else 0,
                pinned=pinned and at == 1,
                eager=eager and at < 3,
                copies=copies if at == 0 else 1,
            )
            for at, need in enumerate(needs)
        ]
        self.pool = Pool(models, (host(100), gpu(0, 60), gpu(1, 60)), cores)

    def _pick(self, phase: Phase, *, busy: bool = False) -> list[str]:
        return [
            key
            for key, replica in self.pool.replicas.items()
            if replica.phase is phase and (replica.in_flight or not busy)
        ]

    @rule(data=st.data(), count=st.integers(1, 4))
    def requests_come(self, data: st.DataObject, count: int) -> None:
        """Several requests come for one model."""
        name = data.draw(st.sampled_from(sorted(self.pool.models)))
        for _ in range(count):
            self.pool.arrive(name)

    @precondition(lambda self: self._pick(Phase.SERVING, busy=True))
    @rule(data=st.data())
    def a_request_ends(self, data: st.DataObject) -> None:
        """A request is answered."""
        self.pool.end(data.draw(st.sampled_from(self._pick(Phase.SERVING, busy=True))))

    @precondition(lambda self: self._pick(Phase.LOADING))
    @rule(data=st.data())
    def a_load_ends(self, data: st.DataObject) -> None:
        """A model is ready."""
        self.pool.loaded(data.draw(st.sampled_from(self._pick(Phase.LOADING))))

    @precondition(lambda self: self._pick(Phase.LEAVING))
    @rule(data=st.data())
    def memory_comes_back(self, data: st.DataObject) -> None:
        """The memory of a stopped worker is seen free."""
        self.pool.returned(data.draw(st.sampled_from(self._pick(Phase.LEAVING))))

    @precondition(lambda self: self._pick(Phase.SERVING) or self._pick(Phase.LOADING))
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        """A worker dies, loading or serving."""
        alive = self._pick(Phase.SERVING) + self._pick(Phase.LOADING)
        self.pool.crash(data.draw(st.sampled_from(alive)))

    @precondition(lambda self: any(self.pool.queues.values()))
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        """Somebody in a queue goes away."""
        name = data.draw(st.sampled_from([name for name, queue in self.pool.queues.items() if queue]))
        self.pool.leave(name, data.draw(st.integers(0, len(self.pool.queues[name]) - 1)))

    @precondition(lambda self: self.pool.claims)
    @rule(data=st.data())
    def the_owner_insists(self, data: st.DataObject) -> None:
        """A load is forced."""
        self.pool.force(
            data.draw(st.sampled_from(sorted(claim.model.name for claim in self.pool.claims.values())))
        )

    @rule(id_=st.sampled_from(["host", "GPU-0", "GPU-1"]), share=st.integers(0, 4))
    def others_use_memory(self, id_: str, share: int) -> None:
        """Other programs take memory, or give it back; what models hold may then be more than is usable."""
        self.pool.foreign(id_, self.pool.spaces[id_].total * share // 4)

    def teardown(self) -> None:
        """When arrivals stop, everybody is answered: no deadlock, nobody forgotten."""
        if hasattr(self, "pool"):
            self.pool.drain()
            assert len(self.pool.answers) == self.pool.number


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40)


def _busy_pool(chance: random.Random) -> Pool:
    """Ten models on the host, of which about three fit."""
    models = [
        Model(f"m{at}", Demand(ram=chance.randint(25, 35)), slots=chance.randint(1, 3), priority=at == 0)
        for at in range(10)
    ]
    return Pool(models, (host(100),), 2)


@pytest.mark.parametrize("seed", [1])
def test_ten_models_share_room_for_three(seed: int) -> None:
    """10,000 random events: never over capacity, each request answered once, none starved, all drained."""
    chance = random.Random(seed)
    pool = _busy_pool(chance)
    came: dict[int, int] = {}
    longest = 0
    for step in range(10_000):
        phases = {phase: [key for key, one in pool.replicas.items() if one.phase is phase] for phase in Phase}
        busy = [key for key in phases[Phase.SERVING] if pool.replicas[key].in_flight]
        match chance.choices(["come", "end", "load", "return", "leave", "crash"], [30, 35, 15, 20, 1, 0.3])[
            0
        ]:
            case "come" if len(pool.open) < 60:
                came[pool.arrive(f"m{min(int(chance.expovariate(0.4)), 9)}")] = step
            case "end" if busy:
                pool.end(chance.choice(busy))
            case "load" if phases[Phase.LOADING]:
                pool.loaded(chance.choice(phases[Phase.LOADING]))
            case "return" if phases[Phase.LEAVING]:
                pool.returned(chance.choice(phases[Phase.LEAVING]))
            case "leave" if any(pool.queues.values()):
                name = chance.choice([name for name, queue in pool.queues.items() if queue])
                pool.leave(name, chance.randrange(len(pool.queues[name])))
            case "crash" if phases[Phase.SERVING]:
                pool.crash(chance.choice(phases[Phase.SERVING]))
            case _:
                pass
        waiting = [number for queue in pool.queues.values() for number in queue]
        longest = max(longest, step - min((came[number] for number in waiting), default=step))
    pool.drain()
    assert len(pool.answers) == pool.number
    assert all(pool.served.values())
    assert pool.most_overtaken <= OVERTAKES
    # Nobody waits longer than it takes all ten models to have their turn, each overtaken as often as may be.
    assert longest < 10 * OVERTAKES * 10


def _turns(pool: Pool, names: list[str], events: int) -> dict[str, int]:
    """Keep two requests open for each model without pause, while everything goes on step by step; return how
    many each had answered.
    """
    for _ in range(events):
        for name in names:
            while sum(who == name for who in pool.open.values()) < 2:
                pool.arrive(name)
        for key, replica in list(pool.replicas.items()):
            if replica.phase is Phase.SERVING and replica.in_flight:
                pool.end(key)
            elif replica.phase is Phase.LOADING:
                pool.loaded(key)
            elif replica.phase is Phase.LEAVING:
                pool.returned(key)
    return pool.served


def test_models_that_compete_without_pause_are_served_in_batches() -> None:
    """A B A B…: neither starves, and a load serves up to OVERTAKES requests, so that they do not thrash."""
    pool = Pool([Model("a", Demand(ram=60)), Model("b", Demand(ram=60))], (host(100),))
    served = _turns(pool, ["a", "b"], 300)
    assert min(served.values()) > 0.4 * sum(served.values())
    assert sum(served.values()) > OVERTAKES / 2 * pool.loads


def test_priority_starves_nobody() -> None:
    """Two urgent models that always have requests, a modest one, room for one: the modest one is served."""
    models = [
        Model("vip-1", Demand(ram=60), priority=1),
        Model("vip-2", Demand(ram=60), priority=1),
        Model("meek", Demand(ram=60)),
    ]
    pool = Pool(models, (host(100),))
    served = _turns(pool, ["vip-1", "vip-2", "meek"], 300)
    assert served["meek"] > 0.1 * sum(served.values())
    assert pool.loads < sum(served.values()) / 4


def test_an_urgent_model_does_not_take_back_what_was_freed_for_another() -> None:
    """The urgent model is idle and makes room; its next request comes while it leaves: one swap, not many."""
    pool = Pool([Model("vip", Demand(ram=60), priority=1), Model("meek", Demand(ram=60))], (host(100),))
    for _ in range(20):
        pool.arrive("vip")
        pool.drain()
        meek = pool.arrive("meek")
        pool.arrive("vip")
        loads = pool.loads
        while meek in pool.open:
            key, replica = next(iter(pool.replicas.items()))
            if replica.phase is Phase.LEAVING:
                pool.returned(key)
            elif replica.phase is Phase.LOADING:
                pool.loaded(key)
            else:
                pool.end(key)
        assert pool.loads == loads + 1
        pool.drain()


def test_a_large_model_gets_its_turn_among_small_ones() -> None:
    """Four small models that always have requests never leave room by chance for one that needs it all."""
    models = [Model(f"small-{at}", Demand(ram=25)) for at in range(4)] + [Model("large", Demand(ram=100))]
    pool = Pool(models, (host(100),), 4)
    served = _turns(pool, [model.name for model in models], 300)
    assert served["large"] > 0.05 * sum(served.values())
    assert min(served.values()) > 0

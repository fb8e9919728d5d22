"""Ten models, room for three, and everything at once: what must hold whatever the order of things.

The pool is the real one; only the processes are not there. What happens next is drawn from a seed, in virtual
time, so that each test goes the same way every time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from modeld.errors import ModelFailed, ModelUnavailable, WorkerDied
from modeld.hardware.machine import HOST
from modeld.ids import LOCAL
from modeld.supervisor import memory
from modeld.supervisor.admission import GaveWay, Priority
from modeld.supervisor.pool import Pool
from modeld.supervisor.restart import RestartPolicy
from modeld.supervisor.scheduling.scheduler import OVERTAKES
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import Pools, ask, read, spec
from tests.fakes.machine import GIB
from tests.fakes.supervision import Recorder
from tests.fakes.worker_link import chat, text_of
from tests.fakes.workers import Workers

NAMES = "abcdefghij"
ROOM = 3
SLOTS = 2
FORGIVING = RestartPolicy(budget=1_000_000, base_s=0.0, cap_s=0.0)


class Traffic:
    """Draws what happens, and checks after each step what must hold."""

    def __init__(self, pool: Pool, workers: Workers, seed: int) -> None:
        self.pool = pool
        self.workers = workers
        self.random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.open: dict[int, asyncio.Task[None]] = {}
        self.asked = 0
        self._group: asyncio.TaskGroup | None = None

    async def run(self, steps: int) -> None:
        """Do so many steps, then let everything come to its end."""
        async with asyncio.TaskGroup() as self._group:
            for _ in range(steps):
                self.step()
                self.check()
                for _ in range(self.random.randrange(8)):
                    await asyncio.sleep(0)
            # Nothing new comes: everybody who waits must be answered, without any further help but answers.
            async with asyncio.timeout(60):
                while self.open:
                    self.finish_calls(1.0)
                    self.check()
                    await asyncio.sleep(0)

    def step(self) -> None:
        """Let one thing happen."""
        kinds = {"ask": 300, "finish": 600, "leave": 30, "die": 20, "unload": 1, "load": 10}
        (kind,) = self.random.choices(list(kinds), list(kinds.values()))
        match kind:
            case "ask" if len(self.open) < 60:
                self.ask()
            case "finish":
                self.finish_calls(0.5)
            case "leave" if self.open:
                self.random.choice(list(self.open.values())).cancel()
            case "die" if self.workers.running:
                self.random.choice(self.workers.running).die()
            case "unload":
                self.background(self.pool.unload(self.random.choice(NAMES)))
            case "load":
                self.background(self.pool.load(self.random.choice(NAMES)))

    def ask(self) -> None:
        """Send a request, mostly for a model that is asked for often."""
        name = self.random.choice(NAMES[:4] if self.random.random() < 0.6 else NAMES)
        self.asked += 1
        number = self.asked
        assert self._group is not None
        task = self.open[number] = self._group.create_task(self.one(name))

        def ended(task: asyncio.Task[None]) -> None:
            del self.open[number]
            if task.cancelled():
                self.outcomes["left"] += 1

        task.add_done_callback(ended)

    async def one(self, name: str) -> None:
        """One request: it ends in exactly one way."""
        try:
            async with ask(self.pool, name) as stream:
                text = text_of(await read(stream))
            assert text == "ok"
            self.outcomes["answered"] += 1
        except (WorkerDied, ModelFailed, ModelUnavailable) as error:
            self.outcomes[error.code] += 1

    def background(self, doing: object) -> None:
        """Ask for something as the owner, and take whatever comes of it."""

        async def take() -> None:
            try:
                async with asyncio.timeout(0.05):
                    await doing  # type: ignore[misc]  # a coroutine of the pool
            except (ModelFailed, ModelUnavailable, TimeoutError):
                pass

        assert self._group is not None
        self._group.create_task(take())

    def finish_calls(self, share: float) -> None:
        """End some of the calls that run."""
        for worker in self.workers.running:
            for call in worker.calls:
                if not call.over.done() and self.random.random() < share:
                    call.end()
            worker.calls = [call for call in worker.calls if not call.over.done()]

    def check(self) -> None:
        """Check what holds at every moment."""
        assert sum(self.pool.memory.held(HOST).values()) <= ROOM * GIB
        assert len(self.workers.running) <= ROOM
        assert all(claim.overtaken <= OVERTAKES for claim in self.pool.memory._claims.values())
        counts = Counter(worker.spec.name for worker in self.workers.running if worker.spec is not None)
        assert not counts or counts.most_common(1)[0][1] == 1
        for worker in self.workers.running:
            assert worker.open_calls <= SLOTS


def models() -> list[ModelSpec]:
    """Return models of one GiB each; every third is eager, the others come on demand."""
    return [
        spec(name, footprint=GIB, on_demand=index % 3 != 0, max_queue=1000)
        for index, name in enumerate(NAMES)
    ]


@pytest.mark.parametrize(("seed", "steps"), [(1, 4_000), (2, 2_000), (3, 2_000), (4, 2_000)])
async def test_random_traffic_is_answered_within_the_memory(pools: Pools, seed: int, steps: int) -> None:
    """Never over capacity, one worker a model; every request ends exactly once, and all do in the end."""
    workers, observer = Workers(slots=SLOTS, load_steps=3), Recorder()
    async with pools(
        models(),
        capacity=ROOM * GIB,
        workers=workers,
        observer=observer,
        policy=FORGIVING,
        drain_s=0.5,
    ) as pool:
        traffic = Traffic(pool, workers, seed)
        await traffic.run(steps)
        assert sum(traffic.outcomes.values()) == traffic.asked
        assert traffic.outcomes["answered"] > traffic.asked / 2
        for status in pool.statuses():
            assert (status.in_flight, status.queued) == (0, 0)
        assert len(observer.evictions) > 10
        # What is left comes to rest: nobody loads for nobody, and what waits for memory being freed gets it.
        await pool.settled()
        at_rest = (State.READY, State.STOPPED)
        async with asyncio.timeout(60):
            for index, name in enumerate(NAMES):
                if index % 3 != 0:  # on demand; of the eager ones there are more than fit
                    await pool.roster[name].until(lambda status: status.state in at_rest)


async def test_nobody_starves(pools: Pools) -> None:
    """Under endless requests for other models every claim is met, and few later requests go first."""
    workers = Workers(slots=SLOTS, load_steps=2)
    async with asyncio.timeout(60), pools(models(), capacity=ROOM * GIB, workers=workers) as pool:
        flooding = 9

        async def flood(name: str) -> None:
            nonlocal flooding
            while not done:
                async with ask(pool, name) as stream:
                    await read(stream)
            flooding -= 1

        async def serve() -> None:
            while flooding:
                assert all(claim.overtaken <= OVERTAKES for claim in pool.memory._claims.values())
                for worker in workers.running:
                    for call in worker.calls:
                        call.end()
                    worker.calls.clear()
                await asyncio.sleep(0)

        done = False
        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            for name in "abcabcabc":
                group.create_task(flood(name))
            for name in "ghighi":
                async with ask(pool, name) as stream:
                    assert text_of(await read(stream)) == "ok"
            done = True


class _Mixed(Traffic):
    """Traffic of which a third are jobs, which begin anew when they have given way."""

    async def one(self, name: str) -> None:
        """One request or job: it ends in exactly one way."""
        if self.random.random() < 2 / 3:
            await super().one(name)
            return
        try:
            while True:
                try:
                    async with self.pool.open(
                        name, chat(), LOCAL, Priority.BACKGROUND, yields=True
                    ) as stream:
                        assert text_of(await read(stream)) == "ok"
                    self.outcomes["answered"] += 1
                    return
                except GaveWay:
                    self.gave_way += 1
        except (WorkerDied, ModelFailed, ModelUnavailable) as error:
            self.outcomes[error.code] += 1

    gave_way = 0


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_everybody_is_answered_in_a_mix_of_people_and_jobs(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Over ten models with room for three: within the memory, each once, and all in the end; no slot is lost
    by giving way.
    """
    monkeypatch.setattr(memory, "QUIET_S", 0.0)
    monkeypatch.setattr(memory, "PATIENCE_S", 0.05)
    workers = Workers(slots=SLOTS, load_steps=3)
    async with pools(models(), capacity=ROOM * GIB, workers=workers, policy=FORGIVING, drain_s=0.5) as pool:
        traffic = _Mixed(pool, workers, seed)
        await traffic.run(2000)
        assert sum(traffic.outcomes.values()) == traffic.asked
        assert traffic.outcomes["answered"] > traffic.asked / 2
        assert traffic.gave_way > 10
        for status in pool.statuses():
            assert (status.in_flight, status.queued) == (0, 0)

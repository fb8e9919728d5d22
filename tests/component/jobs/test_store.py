from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from modeld.store.db import Database
from modeld.store.job_ends import FINAL, LATE, failure
from modeld.store.job_records import Depth, JobDraft, TakenItem
from modeld.store.jobs import Jobs
from tests.fakes.clock import FakeClock

MOST = 2
KEEP_S = 100.0
T = TypeVar("T")

CALLERS = ("a", "b")
MODELS = ("m", "n")


@dataclass
class Item:
    """What is known of an item: `by` is the life that has it."""

    state: str = "waiting"
    attempts: int = 0
    final: bool = False
    body: bytes | None = None


@dataclass
class Known:
    """What is known of a job."""

    id: str
    identity: str
    model: str
    items: list[Item]
    token: str | None
    deadline: float | None
    status: str = "pending"
    taken: int = 0
    order: int = 0
    ended: float | None = None

    def settle(self, now: float) -> bool:
        """End it if all has ended, and say whether that was so."""
        if self.status in ("pending", "processing") and all(item.body is not None for item in self.items):
            self.status = "error" if all(item.state == "failed" for item in self.items) else "done"
            self.ended = now
            return True
        return False

    def rest(self, state: str, body: bytes | None) -> None:
        """End what has not ended."""
        for item in self.items:
            if item.state in ("waiting", "working"):
                item.state, item.body = state, body


@dataclass
class Hand:
    """An item that the present life has taken."""

    taken: TakenItem
    job: Known
    item: Item = field(default_factory=Item)


class Lives(RuleBasedStateMachine):
    """The stored jobs over several lives of the daemon, beside plain Python that says what they should be."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.stack = AsyncExitStack()
        self.db = self.do(
            self.stack.enter_async_context(
                Database.open(Path(self.folder.name) / "modeld.sqlite3", self.clock)
            )
        )
        self.life = 0
        self.jobs = Jobs(self.db, "life0")
        self.known: list[Known] = []
        self.hands: list[Hand] = []
        self.count = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.do(self.stack.aclose())
            self.loop.close()
            self.folder.cleanup()

    @rule(
        identity=st.sampled_from(CALLERS),
        model=st.sampled_from(MODELS),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        token=st.none() | st.sampled_from(["x", "y"]),
        digest=st.sampled_from([b"1", b"2"]),
        patience=st.none() | st.just(50.0),
    )
    def submit(
        self,
        identity: str,
        model: str,
        sizes: list[int],
        token: str | None,
        digest: bytes,
        patience: float | None,
    ) -> None:
        now = self.clock.time()
        deadline = None if patience is None else now + patience
        drafts = []
        for size in sizes:
            self.count += 1
            requests = tuple(f"{self.count}/{at}".encode() for at in range(size))
            drafts.append(
                JobDraft(
                    f"job{self.count}",
                    identity,
                    "chat",
                    model,
                    requests,
                    now,
                    deadline=deadline,
                    token=token,
                    digest=digest,
                )
            )
        added = self.do(self.jobs.add(drafts))
        for draft, entry in zip(drafts, added, strict=True):
            before = next(
                (
                    job
                    for job in self.known
                    if token is not None
                    and (job.identity, job.token) == (identity, token)
                    and (job.ended is None or job.ended + KEEP_S > now)
                ),
                None,
            )
            assert entry.new == (before is None)
            if before is None:
                for job in self.known:
                    if token is not None and (job.identity, job.token) == (identity, token):
                        job.token = None
                items = [Item() for _ in draft.requests]
                job = Known(draft.id, identity, model, items, token, deadline, order=entry.key)
                self.known.append(job)
                self.digests = {**getattr(self, "digests", {}), draft.id: digest}
                assert entry.id == draft.id
                assert not entry.conflict
            else:
                assert entry.id == before.id
                assert entry.conflict == (self.digests[before.id] != digest)

    @rule(model=st.sampled_from(MODELS), oldest=st.booleans())
    def take(self, model: str, oldest: bool) -> None:
        waiting = [
            job
            for job in self.known
            if job.model == model and any(item.state == "waiting" for item in job.items)
        ]
        candidates = {one.identity: one for one in self.do(self.jobs.candidates(model))}
        assert set(candidates) == {job.identity for job in waiting}
        for identity, candidate in candidates.items():
            theirs = [job for job in waiting if job.identity == identity]
            assert candidate.oldest == min(job.order for job in theirs)
            assert candidate.least == min(theirs, key=lambda job: (job.taken, job.order)).order
        if not candidates:
            return
        chosen = candidates[min(candidates)]
        job = next(job for job in self.known if job.order == (chosen.oldest if oldest else chosen.least))
        taken = self.do(self.jobs.take(job.order))
        assert taken is not None
        at = next(at for at, item in enumerate(job.items) if item.state == "waiting")
        assert (taken.job_id, taken.place, taken.attempts) == (job.id, at, job.items[at].attempts)
        assert taken.request.endswith(f"/{at}".encode())
        job.items[at].state = "working"
        job.taken += 1
        self.hands.append(Hand(taken, job, job.items[at]))

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def begin_with_one(self, data: st.DataObject) -> None:
        hand = data.draw(st.sampled_from(self.hands))
        ours = hand.item.state == "working"
        assert self.do(self.jobs.begin(hand.taken)) == ours
        if ours:
            hand.item.attempts += 1
            hand.job.status = "processing"

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        hand = data.draw(st.sampled_from(self.hands))
        ours = hand.item.state == "working"
        assert self.do(self.jobs.commit(hand.taken)) == ours
        hand.item.final = hand.item.final or ours

    @precondition(lambda self: any(not hand.item.final for hand in self.hands))
    @rule(data=st.data(), counted=st.booleans())
    def give_back(self, data: st.DataObject, counted: bool) -> None:
        hand = data.draw(st.sampled_from([hand for hand in self.hands if not hand.item.final]))
        self.hands.remove(hand)
        ours = hand.item.state == "working"
        assert self.do(self.jobs.give_back(hand.taken, counted=counted)) == ours
        if ours:
            hand.item.state = "waiting"
            if not counted:
                hand.item.attempts = hand.taken.attempts

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), failed=st.booleans(), again=st.booleans())
    def finish(self, data: st.DataObject, failed: bool, again: bool) -> None:
        hand = data.draw(st.sampled_from(self.hands))
        if not again:  # else it is finished a second time later on, which must change nothing
            self.hands.remove(hand)
        body = failure("x", "why") if failed else hand.taken.request
        job = self.do(self.jobs.finish(hand.taken, body, failed=failed, keep_s=KEEP_S))
        assert (job is not None) == (hand.item.state == "working")
        if job is not None:
            hand.item.state, hand.item.body = ("failed" if failed else "done"), body
            hand.job.settle(self.clock.time())
            assert job.over == (hand.job.ended is not None)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), identity=st.sampled_from([*CALLERS, None]))
    def cancel(self, data: st.DataObject, identity: str | None) -> None:
        job = data.draw(st.sampled_from(self.known))
        theirs = job.ended is None and identity in (None, job.identity)
        assert (self.do(self.jobs.cancel(identity, job.id, KEEP_S)) is not None) == theirs
        if theirs:
            job.rest("cancelled", None)
            job.status, job.ended = "cancelled", self.clock.time()

    @rule(seconds=st.sampled_from([10.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock.time()
        late = [
            job
            for job in self.known
            if job.ended is None and job.deadline is not None and job.deadline <= now
        ]
        assert {job.id for job in self.do(self.jobs.overdue(now, KEEP_S))} == {job.id for job in late}
        for job in late:
            job.rest("failed", failure("expired", LATE.format(50)))
            job.status, job.ended = "error", now

    @rule()
    def sweep(self) -> None:
        now = self.clock.time()
        gone = [job for job in self.known if job.ended is not None and job.ended + KEEP_S <= now]
        assert self.do(self.jobs.sweep(now)) == len(gone)
        self.known = [job for job in self.known if job not in gone]
        self.hands = [hand for hand in self.hands if hand.job not in gone]

    @rule()
    def die_and_live_again(self) -> None:
        self.life += 1
        self.jobs = Jobs(self.db, f"life{self.life}")
        self.hands = []
        again = 0
        over: set[str] = set()
        for job in self.known:
            for item in job.items:
                if item.state == "working" and item.final:
                    item.state, item.body = "failed", failure("interrupted", FINAL)
                elif item.state == "working" and item.attempts >= MOST:
                    item.state = "failed"
                    item.body = failure(
                        "too_many_attempts",
                        f"modeld ended {MOST} times while it worked on this, so it is not tried again",
                    )
                elif item.state == "working":
                    item.state = "waiting"
                    again += 1
            if job.settle(self.clock.time()):
                over.add(job.id)
        count, ended = self.do(self.jobs.reclaim(MOST, KEEP_S))
        assert (count, {job.id for job in ended}) == (again, over)

    @invariant()
    def what_is_stored_is_what_should_be(self) -> None:
        now = self.clock.time()
        unfinished = [job for job in self.known if job.ended is None]
        depths = self.do(self.jobs.depth())
        assert set(depths) == ({"chat"} if unfinished else set())
        depth = depths.get("chat", Depth())
        statuses = [job.status for job in unfinished]
        assert (depth.pending, depth.processing) == (statuses.count("pending"), statuses.count("processing"))
        assert depth.waiting == sum(item.state == "waiting" for job in unfinished for item in job.items)
        for job in self.known:
            found = self.do(self.jobs.get(job.identity, job.id))
            if job.ended is not None and job.ended + KEEP_S <= now:
                assert found is None
                continue
            assert found is not None
            states = [item.state for item in job.items]
            assert found.status == job.status
            assert found.waiting == states.count("waiting")
            assert (found.done, found.failed) == (states.count("done"), states.count("failed"))
            stored = self.do(self.jobs.results(found.key))
            assert [(item.state, item.body) for item in stored] == [
                (item.state, item.body) for item in job.items
            ]
            other = "b" if job.identity == "a" else "a"
            assert self.do(self.jobs.get(other, job.id)) is None


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)

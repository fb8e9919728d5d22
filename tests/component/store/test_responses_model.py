"""Whatever is done in whatever order, the store holds what a few lists in plain Python hold."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from modeld.store.chains import Item
from modeld.store.conversations import Conversations
from modeld.store.db import Database
from modeld.store.responses import Done, Draft, History, Origin, Responses
from tests.fakes.clock import FakeClock

TABLES = ("item", "chain", "link", "response", "run", "log", "conversation", "garbage")
IDENTITIES = st.sampled_from(["local", "local", "local", "key_2"])
SOURCES = st.sampled_from(["response"] * 4 + ["conversation"] * 3 + ["nothing", "memory"])
FEW = st.integers(0, 3)
PICK = st.integers(0, 1000)

LOOSE = """
    SELECT count(*) FROM link WHERE place >= coalesce((
      SELECT max(upto) FROM (
        SELECT upto FROM response WHERE response.chain = link.chain
        UNION ALL SELECT upto FROM conversation WHERE conversation.chain = link.chain
        UNION ALL SELECT at FROM chain WHERE chain.parent = link.chain)), -1)
    UNION ALL SELECT count(*) FROM item WHERE key NOT IN (SELECT item FROM link)
    UNION ALL SELECT count(*) FROM log WHERE response NOT IN (SELECT key FROM response WHERE logged)
    """
"""Counts what nobody holds."""


class Kept(msgspec.Struct):
    """A response as the model knows it."""

    identity: str
    before: tuple[Item, ...]
    inputs: tuple[Item, ...]
    origin: Origin
    streamed: bool = False
    status: str = "queued"
    outputs: tuple[Item, ...] = ()
    expires: float | None = None
    log: list[tuple[int, bytes]] = []
    log_expires: float | None = None


class Store(RuleBasedStateMachine):
    """Two callers, responses that go on from anything, conversations, deletes, restarts and time."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.clock = FakeClock()
        self.kept: dict[str, Kept] = {}
        self.open: dict[str, Kept] = {}
        """Foreground responses that are being worked on."""
        self.begun: dict[str, Kept] = {}
        """Background ones, those that were deleted meanwhile too."""
        self.over: list[str] = []
        self.talks: dict[str, tuple[str, list[Item]]] = {}
        self.made = 0
        self.lives = 0

    @initialize()
    def start(self) -> None:
        """Open an empty store."""
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.db = self.run(
            self.stack.enter_async_context(Database.open(Path(self.folder) / "modeld.db", self.clock))
        )
        self.conversations = Conversations(self.db)
        self.restart()

    def run(self, action: Any) -> Any:
        """Wait for a coroutine."""

        async def waited() -> Any:
            return await action

        return self.runner.run(waited())

    def new(self, prefix: str) -> str:
        """Return an id that was never there."""
        self.made += 1
        return f"{prefix}_{self.made}"

    def items(self, count: int) -> tuple[Item, ...]:
        """Return new items."""
        ids = [self.new("msg") for _ in range(count)]
        return tuple({"type": "message", "id": id, "content": [{"text": f"№ {id}"}]} for id in ids)

    def there(self, kept: Kept) -> bool:
        """Whether a response has not expired."""
        return kept.status == "queued" or kept.expires is None or kept.expires > self.clock.time()

    def restart(self) -> None:
        """Begin another life of the daemon."""
        self.lives += 1
        self.responses = Responses(self.db, f"life {self.lives}")

    # --- responses ------------------------------------------------------------------------------------------

    @rule(
        identity=IDENTITIES,
        source=SOURCES,
        pick=PICK,
        count=FEW,
        background=st.booleans(),
        streamed=st.booleans(),
    )
    def ask(
        self, identity: str, source: str, pick: int, count: int, background: bool, streamed: bool
    ) -> None:
        """Begin a response that goes on from something."""
        self.begin(identity, source, pick, count, background, streamed)

    def begin(
        self, identity: str, source: str, pick: int, count: int, background: bool, streamed: bool = False
    ) -> str:
        """Begin a response and return its id."""
        origin = Origin()
        before: tuple[Item, ...] = ()
        if source == "response":
            ids = [id for id, kept in self.kept.items() if kept.identity == identity]
            id = ids[pick % len(ids)] if ids else "resp_none"
            found = self.run(self.responses.history(identity, id))
            if found is not None and found.status != "queued":
                origin, before = Origin(previous=id), found.items
        elif source == "conversation":
            ids = [id for id, (owner, _) in self.talks.items() if owner == identity]
            if ids:
                id = ids[pick % len(ids)]
                origin, before = Origin(conversation=id), self.run(self.conversations.items(identity, id))
        elif source == "memory":
            origin, before = Origin(previous=self.new("resp")), self.items(pick % 4)
        id, kept = self.new("resp"), Kept(identity, before, self.items(count), origin, streamed)
        if background:
            draft = Draft(id, identity, b'{"at": 0}', 1.0, None, kept.inputs, before, origin, streamed)
            self.run(self.responses.begin(draft))
            self.kept[id] = self.begun[id] = kept
        else:
            self.open[id] = kept
        return id

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, count=FEW)
    def note(self, pick: int, count: int) -> None:
        """Add to the log of a response, which may be deleted already."""
        id = sorted(self.begun)[pick % len(self.begun)]
        kept = self.begun[id]
        events = [(len(kept.log) + at, f"{id} {at}".encode()) for at in range(count)]
        self.run(self.responses.log(id, events))
        if kept.streamed:
            kept.log += events

    @precondition(lambda self: self.open or self.begun)
    @rule(
        pick=PICK,
        count=FEW,
        status=st.sampled_from(["completed", "incomplete", "failed", "cancelled"]),
        lasts=st.sampled_from([None, 0.0, 10.0]),
        keep=st.booleans(),
    )
    def end(self, pick: int, count: int, status: str, lasts: float | None, keep: bool) -> None:
        """Finish a response."""
        ids = [*self.open, *self.begun]
        self.finish(ids[pick % len(ids)], count, status, lasts, keep)

    @rule(
        identity=IDENTITIES,
        turns=st.lists(st.tuples(SOURCES, PICK, FEW, FEW, st.booleans()), min_size=1, max_size=6),
        at_once=st.booleans(),
    )
    def turns(self, identity: str, turns: list[tuple[str, int, int, int, bool]], at_once: bool) -> None:
        """Ask and answer a few times, one after the other or all at once."""
        asked = []
        for source, pick, given, answered, background in turns:
            asked.append((self.begin(identity, source, pick, given, background), answered))
            if not at_once:
                self.finish(*asked.pop(), "completed", None, keep=True)
        for id, answered in asked:
            self.finish(id, answered, "completed", None, keep=True)

    def finish(self, id: str, count: int, status: str, lasts: float | None, keep: bool) -> None:
        """Finish a response, and see that it is told whether it was still there."""
        foreground = id in self.open
        kept = self.open.pop(id, None) or self.begun.pop(id)
        outputs = self.items(count)
        expires = None if lasts is None else self.clock.time() + lasts
        last = (len(kept.log), b"last")
        done = Done(
            id,
            kept.identity,
            status,
            b'{"at": 1}',
            1.0,
            expires,
            kept.inputs,
            outputs,
            kept.before,
            kept.origin,
            keep=keep,
            log=(last,) if kept.streamed and not foreground else (),
            log_expires=expires,
        )
        there = foreground or id in self.kept
        assert self.run(self.responses.finish(done)) is there
        if not there:
            return
        talk = self.talks.get(kept.origin.conversation or "")
        if talk is not None and status in ("completed", "incomplete"):
            talk[1].extend([*kept.inputs, *outputs])
        if not keep:
            self.kept.pop(id, None)
            return
        kept.status, kept.outputs, kept.expires, kept.log_expires = status, outputs, expires, expires
        if foreground:
            kept.streamed = False
        elif kept.streamed:
            kept.log.append(last)
        self.kept[id] = kept
        self.over.append(id)

    @precondition(lambda self: self.over)
    @rule(pick=PICK)
    def end_again(self, pick: int) -> None:
        """Finish one that is over, and log for it: nothing changes."""
        id = self.over[pick % len(self.over)]
        if id not in self.kept:
            return  # a foreground response's id, once deleted, is as good as new
        kept = self.kept[id]
        changed = Done(
            id, kept.identity, "failed", b"{}", 2.0, 0.0, (), self.items(1), (), Origin(), log=((99, b"!"),)
        )
        assert not self.run(self.responses.finish(changed))
        self.run(self.responses.log(id, [(100, b"!")]))

    @precondition(lambda self: self.kept)
    @rule(pick=PICK, identity=IDENTITIES, at_work=st.booleans())
    def delete(self, pick: int, identity: str, at_work: bool) -> None:
        """Delete a response, or try that with another's."""
        ids = [id for id in self.begun if id in self.kept] if at_work else []
        ids = ids or sorted(self.kept)
        id = ids[pick % len(ids)]
        kept = self.kept[id]
        there = identity == kept.identity and self.there(kept)
        assert self.run(self.responses.delete(identity, id)) is there
        if there:
            del self.kept[id]

    @precondition(lambda self: self.begun)
    @rule()
    def begin_another_life(self) -> None:
        """The daemon restarts: what it worked on has failed, and what was in the foreground never was."""
        self.restart()
        self.open.clear()
        found = {each.id: each for each in self.run(self.responses.abandoned())}
        assert set(found) == {id for id in self.begun if id in self.kept}
        for id, each in found.items():
            kept = self.kept[id]
            assert (each.identity, each.streamed, each.background) == (kept.identity, kept.streamed, True)
            failed = Done(
                id, kept.identity, "failed", b'{"at": 1}', 1.0, None, (), (), (), Origin(), log_expires=None
            )
            assert self.run(self.responses.finish(failed))
            kept.status = "failed"
            self.over.append(id)
        self.begun.clear()
        assert self.run(self.responses.abandoned()) == []

    @rule(seconds=st.sampled_from([0.0, 6.0]))
    def sweep(self, seconds: float) -> None:
        """Time goes by; what has expired is cleared away, and nobody's rows with it."""
        self.clock.advance(seconds)
        gone = [id for id, kept in self.kept.items() if not self.there(kept)]
        assert self.run(self.responses.sweep(self.clock.time())) == len(gone)
        for id in gone:
            del self.kept[id]
        self.the_same_to_all_readers()
        assert self.run(self.db.fetch(LOOSE)) == [(0,)] * 3
        held = {
            (each.identity, item["id"]): item
            for each in self.kept.values()
            for item in (*each.before, *each.inputs, *each.outputs)
        }
        held |= {(owner, item["id"]): item for owner, items in self.talks.values() for item in items}
        every = [f"msg_{number}" for number in range(self.made + 1)]
        for identity in ("local", "key_2"):
            found = self.run(self.responses.find_items(identity, every))
            assert found == {id: item for (owner, id), item in held.items() if owner == identity}

    # --- conversations --------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.talks) < 3)
    @rule(identity=IDENTITIES, count=FEW)
    def talk(self, identity: str, count: int) -> None:
        """Begin a conversation."""
        id, items = self.new("conv"), self.items(count)
        self.run(self.conversations.create(identity, id, {"topic": id}, items, 1.0))
        self.talks[id] = (identity, list(items))

    @precondition(lambda self: self.talks)
    @rule(pick=PICK, identity=IDENTITIES, count=FEW)
    def add(self, pick: int, identity: str, count: int) -> None:
        """Add to a conversation, or try that with another's."""
        id = sorted(self.talks)[pick % len(self.talks)]
        owner, items = self.talks[id]
        more = self.items(count)
        assert self.run(self.conversations.add(identity, id, more)) is (owner == identity)
        if owner == identity:
            items.extend(more)

    @precondition(lambda self: any(items for _, items in self.talks.values()))
    @rule(pick=PICK, identity=IDENTITIES, at=PICK)
    def take_out(self, pick: int, identity: str, at: int) -> None:
        """Remove an item from a conversation, or try that with another's."""
        ids = [id for id, (_, items) in sorted(self.talks.items()) if items]
        id = ids[pick % len(ids)]
        owner, items = self.talks[id]
        item = items[at % len(items)]
        found = self.run(self.conversations.item(identity, id, item["id"]))
        assert found == (item if owner == identity else None)
        assert self.run(self.conversations.remove(identity, id, item["id"])) is (owner == identity)
        if owner == identity:
            items.remove(item)
            assert self.run(self.conversations.item(identity, id, item["id"])) is None

    @precondition(lambda self: self.talks)
    @rule(pick=PICK, identity=IDENTITIES)
    def end_talk(self, pick: int, identity: str) -> None:
        """Delete a conversation, or try that with another's."""
        id = sorted(self.talks)[pick % len(self.talks)]
        there = self.talks[id][0] == identity
        assert self.run(self.conversations.delete(identity, id)) is there
        if there:
            del self.talks[id]

    # --- what always holds ----------------------------------------------------------------------------------

    @rule()
    def the_same_to_all_readers(self) -> None:
        """Every response and conversation reads as the model has it, and only for its own caller."""
        for id, kept in self.kept.items():
            stranger = "local" if kept.identity == "key_2" else "key_2"
            for identity in (kept.identity, stranger):
                there = identity == kept.identity and self.there(kept)
                history = History((*kept.before, *kept.inputs, *kept.outputs), kept.status)
                assert self.run(self.responses.history(identity, id)) == (history if there else None)
                assert self.run(self.responses.inputs(identity, id)) == (kept.inputs if there else None)
                stored = self.run(self.responses.get(identity, id))
                if not there:
                    assert stored is None
                    continue
                assert (stored.status, stored.output) == (kept.status, kept.outputs)
                assert stored.body == (b'{"at": 0}' if kept.status == "queued" else b'{"at": 1}')
                assert stored.streamed == kept.streamed
                assert (stored.owner is None) == (kept.status != "queued")
            fresh = kept.log_expires is None or kept.log_expires > self.clock.time()
            log = kept.log if self.there(kept) and fresh else []
            assert self.run(self.responses.replay(id, -1, 1000)) == log
        for id, (owner, items) in self.talks.items():
            stranger = "local" if owner == "key_2" else "key_2"
            assert self.run(self.conversations.items(owner, id)) == tuple(items)
            assert self.run(self.conversations.items(stranger, id)) is None

    def teardown(self) -> None:
        """Delete everything: nothing is left."""
        try:
            if hasattr(self, "db"):
                self.leave_nothing()
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    def leave_nothing(self) -> None:
        """Delete everything."""
        self.the_same_to_all_readers()
        for id, kept in self.kept.items():
            assert self.run(self.responses.delete(kept.identity, id)) is self.there(kept)
        for id, (owner, _) in self.talks.items():
            assert self.run(self.conversations.delete(owner, id))
        self.restart()
        self.run(self.responses.sweep(self.clock.time()))
        for table in TABLES:
            assert self.run(self.db.fetch(f"SELECT * FROM {table}")) == [], table


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=30, stateful_step_count=40)

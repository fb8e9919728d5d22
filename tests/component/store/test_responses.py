from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from modeld.errors import StoreFailed
from modeld.store import garbage
from modeld.store.chains import Item
from modeld.store.conversations import Conversation, Conversations
from modeld.store.db import Database
from modeld.store.responses import Done, Draft, Origin, Responses
from tests.fakes.clock import FakeClock

NOW = 1_700_000_000.0
ME = "local"


def item(id: str) -> Item:
    """Return an item."""
    return {"type": "message", "id": id, "content": [{"type": "input_text", "text": f"I am {id}"}]}


def items(*ids: str) -> tuple[Item, ...]:
    """Return items."""
    return tuple(item(id) for id in ids)


def draft(id: str, *, before: tuple[Item, ...] = (), origin: Origin | None = None) -> Draft:
    """Return a streamed background response with one input item."""
    return Draft(
        id, ME, b'{"status":"queued"}', NOW, None, items(f"in_{id}"), before, origin or Origin(), True
    )


def done(id: str, *, before: tuple[Item, ...] = (), origin: Origin | None = None) -> Done:
    """Return the end of a response with one item of input and one of output."""
    return Done(
        id,
        ME,
        "completed",
        b'{"status":"completed"}',
        NOW,
        None,
        items(f"in_{id}"),
        items(f"out_{id}"),
        before,
        origin or Origin(),
    )


def after(id: str) -> Origin:
    """Return the origin of a response that goes on from another."""
    return Origin(previous=id)


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still at NOW."""
    return FakeClock(epoch=NOW)


@pytest.fixture
async def db(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Database]:
    """Give an open store."""
    async with Database.open(tmp_path / "modeld.db", clock) as opened:
        yield opened


@pytest.fixture
def responses(db: Database) -> Responses:
    """Give the responses of the store, in the first life of the daemon."""
    return Responses(db, "life 1")


@pytest.fixture
def conversations(db: Database) -> Conversations:
    """Give the conversations of the store."""
    return Conversations(db)


async def ids(responses: Responses, id: str) -> list[str]:
    """Return the ids of a response's history."""
    history = await responses.history(ME, id)
    assert history is not None
    return [each["id"] for each in history.items]


async def count(db: Database, table: str) -> int:
    """Return how many rows a table has."""
    ((rows,),) = await db.fetch(f"SELECT count(*) FROM {table}")
    return int(rows)


# --- what is stored -----------------------------------------------------------------------------------------


async def test_a_response_is_read_as_it_was_stored(responses: Responses) -> None:
    """Body, status, times, items in their order: all as given, and only for its own caller."""
    given = msgspec.structs.replace(
        done("a"), expires=NOW + 5, inputs=items("i1", "i2", "i3"), outputs=items("o1", "o2"), created=NOW - 1
    )
    assert await responses.finish(given)
    stored = await responses.get(ME, "a")
    assert stored is not None
    assert (stored.id, stored.status, stored.body) == ("a", "completed", given.body)
    assert (stored.created, stored.expires, stored.identity) == (NOW - 1, NOW + 5, ME)
    assert (stored.background, stored.streamed, stored.owner) == (False, False, None)
    assert stored.output == given.outputs
    assert await responses.inputs(ME, "a") == given.inputs
    for read in (responses.get, responses.inputs, responses.history):
        assert await read("key_2", "a") is None
        assert await read(ME, "b") is None
    assert not await responses.delete("key_2", "a")
    assert await responses.find_items("key_2", ["i1", "o1"]) == {}
    assert await responses.find_items(ME, ["i1", "o1", "x"]) == {"i1": item("i1"), "o1": item("o1")}


async def test_any_json_comes_back(responses: Responses) -> None:
    """Quotes, commas, brackets, emoji, NUL and a megabyte of text in items survive."""
    odd = {"type": "x", "id": 'q",[{', "a": 'x","y\\', "b": "\0 \u2028 🦊", "c": [1.5, None, {"": True}]}
    big = {"type": "x", "id": "big", "text": "é" * 500_000}
    await responses.finish(msgspec.structs.replace(done("a"), inputs=(odd,), outputs=(big, {"type": "bare"})))
    history = await responses.history(ME, "a")
    assert history is not None
    assert history.items == (odd, big, {"type": "bare"})


async def test_a_response_without_items_can_be_continued(responses: Responses) -> None:
    """Nothing asked and nothing answered is a history of nothing."""
    await responses.finish(msgspec.structs.replace(done("a"), inputs=(), outputs=()))
    await responses.finish(done("b", origin=after("a")))
    await responses.finish(done("c", origin=after("a")))
    assert await ids(responses, "a") == []
    assert await ids(responses, "b") == ["in_b", "out_b"]
    assert await ids(responses, "c") == ["in_c", "out_c"]


async def test_continuing_the_end_of_a_chain_adds_only_what_is_new(
    responses: Responses, db: Database
) -> None:
    """Three turns are one chain; going on from the first again is a second that shares the beginning."""
    await responses.finish(done("a"))
    await responses.finish(done("b", origin=after("a")))
    await responses.finish(done("c", origin=after("b")))
    assert (await count(db, "chain"), await count(db, "link"), await count(db, "item")) == (1, 6, 6)
    await responses.finish(done("d", origin=after("a")))
    assert (await count(db, "chain"), await count(db, "link"), await count(db, "item")) == (2, 8, 8)
    assert await ids(responses, "c") == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]
    assert await ids(responses, "d") == ["in_a", "out_a", "in_d", "out_d"]


async def test_deep_forks_are_read_in_order(responses: Responses) -> None:
    """A history through 50 forks, each at another place, is in order."""
    await responses.finish(done("r0"))
    for number in range(1, 50):
        await responses.finish(done(f"r{number}", origin=after(f"r{number - 1}")))
        await responses.finish(done(f"x{number}", origin=after(f"r{number - 1}")))
        await responses.finish(done(f"y{number}", origin=after(f"x{number}")))
        await responses.finish(done(f"r{number}b", origin=after(f"x{number}")))
    assert await ids(responses, "r49b") == [
        name for at in range(49) for name in (f"in_r{at}", f"out_r{at}")
    ] + ["in_x49", "out_x49", "in_r49b", "out_r49b"]


async def test_the_items_of_an_unknown_parent_are_stored_with_the_child(responses: Responses) -> None:
    """A parent that was never stored, or is somebody else's, gives its place to what the caller carried."""
    before = items("m1", "m2")
    await responses.finish(done("b", before=before, origin=after("never")))
    assert await ids(responses, "b") == ["m1", "m2", "in_b", "out_b"]
    assert await responses.inputs(ME, "b") == items("in_b")
    other = msgspec.structs.replace(
        done("c", before=before, origin=after("b")), identity="key_2", inputs=items("in_c")
    )
    await responses.finish(other)
    history = await responses.history("key_2", "c")
    assert history is not None
    assert [each["id"] for each in history.items] == ["m1", "m2", "in_c", "out_c"]


async def test_what_is_carried_along_is_stored_once(responses: Responses, db: Database) -> None:
    """An item that a caller sends again as it is takes no more room; a changed one of that id is another."""
    await responses.finish(done("a", before=items("m1", "m2"), origin=after("never")))
    await responses.finish(
        msgspec.structs.replace(done("b", before=items("m1", "m2"), origin=after("no")), inputs=items("m1"))
    )
    assert await count(db, "item") == 5
    changed = {**item("m1"), "status": "completed"}
    await responses.finish(msgspec.structs.replace(done("c"), inputs=(changed,)))
    assert await ids(responses, "b") == ["m1", "m2", "m1", "out_b"]
    assert await responses.inputs(ME, "c") == (changed,)
    assert await responses.inputs(ME, "b") == items("m1")
    assert await responses.find_items(ME, ["m1"]) == {"m1": changed}


async def test_equal_items_of_two_callers_are_two(responses: Responses, db: Database) -> None:
    """Neither caller's item is stored for the other, nor goes with the other's."""
    for identity in (ME, "key_2"):
        one = msgspec.structs.replace(done(f"a_{identity}"), inputs=items("same"), identity=identity)
        await responses.finish(one)
    assert await count(db, "item") == 4
    assert await responses.delete(ME, f"a_{ME}")
    assert await responses.find_items(ME, ["same"]) == {}
    assert await responses.find_items("key_2", ["same"]) == {"same": item("same")}
    assert await responses.inputs("key_2", "a_key_2") == items("same")


async def test_after_damage_responses_start_afresh(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says so, and new ones are stored."""
    path = tmp_path / "damaged.db"
    path.write_bytes(b"this is no database\n" * 100)
    with caplog.at_level(logging.WARNING, "modeld.store"):
        async with Database.open(path, clock) as db:
            assert await Responses(db, "life 1").finish(done("a"))
            assert await ids(Responses(db, "life 2"), "a") == ["in_a", "out_a"]
    assert "stored responses, conversations and jobs start afresh" in caplog.text


# --- deleted ------------------------------------------------------------------------------------------------


async def test_a_deleted_response_takes_its_own_items_along(responses: Responses, db: Database) -> None:
    """What only it held is gone from the file when the call returns; what it went on from is whole."""
    await responses.finish(done("a"))
    await responses.finish(done("b", origin=after("a")))
    assert await responses.delete(ME, "b")
    assert not await responses.delete(ME, "b")
    assert await responses.get(ME, "b") is None
    assert await responses.find_items(ME, ["in_b", "out_b", "in_a"]) == {"in_a": item("in_a")}
    assert await ids(responses, "a") == ["in_a", "out_a"]
    await responses.finish(done("c", origin=after("a")))
    assert await count(db, "chain") == 1
    for id in ("a", "c"):
        assert await responses.delete(ME, id)
    for table in ("item", "link", "chain", "garbage"):
        assert await count(db, table) == 0


async def test_a_response_stays_whole_when_what_it_goes_on_from_is_deleted(responses: Responses) -> None:
    """The parent cannot be read or continued any more; the child's history still has its items."""
    await responses.finish(done("a"))
    await responses.finish(done("b", origin=after("a")))
    assert await responses.delete(ME, "a")
    for read in (responses.get, responses.inputs, responses.history):
        assert await read(ME, "a") is None
    assert await ids(responses, "b") == ["in_a", "out_a", "in_b", "out_b"]
    assert await responses.delete(ME, "b")
    assert await responses.find_items(ME, ["in_a", "out_a"]) == {}


@pytest.mark.parametrize("background", [False, True])
async def test_a_parent_deleted_while_its_child_runs_is_still_in_its_history(
    responses: Responses, background: bool
) -> None:
    """The child is stored with all it was asked with."""
    await responses.finish(done("a"))
    origin, before = after("a"), items("in_a", "out_a")
    if background:
        await responses.begin(draft("b", before=before, origin=origin))
    assert await responses.delete(ME, "a")
    assert await responses.finish(done("b", before=before, origin=origin))
    assert await ids(responses, "b") == ["in_a", "out_a", "in_b", "out_b"]
    assert await responses.inputs(ME, "b") == items("in_b")


async def test_a_deletion_that_cannot_be_cleared_away_has_still_happened(
    responses: Responses, db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk fills up between the two: the response is out of reach, the log says why its rows are not gone
    yet, and the next sweep removes them.
    """

    async def fail(db: Database) -> None:
        raise StoreFailed("the disk is full")

    await responses.finish(done("a"))
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "modeld.store"):
        patch.setattr(garbage, "clear", fail)
        assert await responses.delete(ME, "a")
    assert "the disk is full" in caplog.text
    assert await responses.get(ME, "a") is None
    assert not await responses.delete(ME, "a")
    assert await count(db, "item") == 2
    await responses.sweep(NOW)
    assert await count(db, "item") == 0


async def test_clearing_away_lets_others_write(
    responses: Responses, db: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of a thousand rows is many transactions: who asks to write meanwhile comes before its end."""
    monkeypatch.setattr(garbage, "BATCH", 20)
    many = items(*(f"i{at}" for at in range(500)))
    await responses.finish(msgspec.structs.replace(done("a"), inputs=many, expires=NOW + 1))
    await responses.begin(draft("b"))
    await responses.log("b", [(at, b"event") for at in range(500)])
    await responses.finish(msgspec.structs.replace(done("b"), log_expires=NOW + 1))
    clock.advance(2)
    async with asyncio.TaskGroup() as group:
        sweep = group.create_task(responses.sweep(clock.time()))
        written = 0
        while not sweep.done():
            written += 1
            await responses.finish(done(f"c{written}"))
    assert sweep.result() == 1
    assert written > 30
    assert await count(db, "log") == 0
    assert await count(db, "item") == 2 * written + 2


# --- background ---------------------------------------------------------------------------------------------


async def test_a_run_is_queued_then_over(responses: Responses) -> None:
    """Its input can be read from the beginning, its output from the end; its owner is named while it runs."""
    await responses.finish(done("a"))
    await responses.begin(draft("b", origin=after("a")))
    stored = await responses.get(ME, "b")
    assert stored is not None
    assert (stored.status, stored.output, stored.owner) == ("queued", (), "life 1")
    assert (stored.background, stored.streamed, stored.body) == (True, True, b'{"status":"queued"}')
    assert await responses.inputs(ME, "b") == items("in_b")
    history = await responses.history(ME, "b")
    assert history is not None
    assert (history.status, len(history.items)) == ("queued", 3)
    # Another one goes on from the same place meanwhile: both are whole.
    await responses.finish(done("c", origin=after("a")))
    assert await responses.finish(done("b"))
    stored = await responses.get(ME, "b")
    assert stored is not None
    assert (stored.status, stored.output, stored.owner) == ("completed", items("out_b"), None)
    assert stored.background
    assert await ids(responses, "b") == ["in_a", "out_a", "in_b", "out_b"]
    assert await ids(responses, "c") == ["in_a", "out_a", "in_c", "out_c"]


async def test_what_goes_on_from_a_run_takes_what_it_carries(responses: Responses) -> None:
    """A response at work is no place to go on from: the items that were carried along are stored."""
    await responses.begin(draft("a"))
    await responses.finish(done("b", before=items("m"), origin=after("a")))
    assert await responses.finish(done("a"))
    assert await ids(responses, "b") == ["m", "in_b", "out_b"]
    assert await ids(responses, "a") == ["in_a", "out_a"]


async def test_a_run_that_is_not_to_be_kept_leaves_nothing(responses: Responses, db: Database) -> None:
    """It could be read while it was at work."""
    await responses.begin(draft("a"))
    await responses.log("a", [(0, b"zero")])
    assert await responses.get(ME, "a") is not None
    assert await responses.finish(msgspec.structs.replace(done("a"), keep=False))
    assert await responses.get(ME, "a") is None
    await responses.sweep(NOW)
    for table in ("item", "link", "chain", "response", "run", "log", "garbage"):
        assert await count(db, table) == 0


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("status", ["completed", "cancelled", "failed", "incomplete"])
async def test_how_a_response_ended_stays(responses: Responses, status: str, background: bool) -> None:
    """A second end is refused and changes nothing, whatever the two are."""
    if background:
        await responses.begin(draft("a"))
    assert await responses.finish(msgspec.structs.replace(done("a"), status=status))
    first, history = await responses.get(ME, "a"), await ids(responses, "a")
    for other in ("completed", "failed"):
        again = msgspec.structs.replace(
            done("a"), status=other, body=b"{}", outputs=items("z"), log=((9, b"z"),), keep=False
        )
        assert not await responses.finish(again)
    assert await responses.get(ME, "a") == first
    assert await ids(responses, "a") == history
    assert await responses.replay("a", -1, 10) == []
    assert await responses.find_items(ME, ["z"]) == {}


async def test_a_run_deleted_meanwhile_does_not_come_back(responses: Responses, db: Database) -> None:
    """Neither its end nor its later events are stored, and no row of it is left."""
    await responses.begin(draft("a"))
    await responses.log("a", [(0, b"zero")])
    assert await responses.delete(ME, "a")
    await responses.log("a", [(1, b"one")])
    assert not await responses.finish(done("a"))
    assert await responses.get(ME, "a") is None
    for table in ("item", "link", "chain", "response", "run", "log", "garbage"):
        assert await count(db, table) == 0


async def test_runs_of_an_earlier_life_are_found(responses: Responses, db: Database) -> None:
    """Those that are unfinished, with all that is needed to say that they failed; a deleted one is not."""
    for id in ("a", "b", "c", "d"):
        await responses.begin(draft(id))
    assert await responses.finish(done("b"))
    assert await responses.delete(ME, "c")
    await responses.log("d", [(0, b"zero"), (1, b"one")])
    assert await responses.abandoned() == []
    later = Responses(db, "life 2")
    found = await later.abandoned()
    assert [(each.id, each.identity, each.owner) for each in found] == [
        ("a", ME, "life 1"),
        ("d", ME, "life 1"),
    ]
    assert await later.last_logged("a") == -1
    assert await later.last_logged("d") == 1
    failed = Done("d", ME, "failed", b"{}", NOW, None, (), (), (), Origin(), log=((2, b"end"),))
    assert await later.finish(failed)
    assert [each.id for each in await later.abandoned()] == ["a"]
    assert await ids(later, "d") == ["in_d"]
    assert await later.replay("d", 0, 10) == [(1, b"one"), (2, b"end")]
    await db.execute("DELETE FROM run WHERE response = 'a'")
    assert [(each.id, each.owner) for each in await later.abandoned()] == [("a", None)]
    # What is left of the deleted one's run goes with the next sweep of another life.
    assert await count(db, "run") == 1
    await later.sweep(NOW)
    assert await count(db, "run") == 0


async def test_heartbeats_are_of_this_life_only(responses: Responses, db: Database, clock: FakeClock) -> None:
    """A beat moves the rows of this life; an earlier life's stay as they are."""
    await responses.begin(draft("a"))
    later = Responses(db, "life 2")
    await later.begin(draft("b"))
    clock.advance(5)
    await later.beat(["a", "b", "unknown"], clock.time())
    assert await db.fetch("SELECT response, beat FROM run ORDER BY response") == [
        ("a", NOW),
        ("b", NOW + 5),
    ]


# --- time ---------------------------------------------------------------------------------------------------


async def test_what_has_expired_is_gone_at_once_and_cleared_later(
    responses: Responses, db: Database, clock: FakeClock
) -> None:
    """From its time on it reads as unknown, a sweep removes it, and what goes on from it stays whole."""
    await responses.finish(msgspec.structs.replace(done("a"), expires=NOW + 10))
    await responses.finish(done("b", origin=after("a")))
    await responses.finish(msgspec.structs.replace(done("c"), expires=NOW + 20))
    assert await responses.sweep(clock.time()) == 0
    clock.advance(10)
    for read in (responses.get, responses.inputs, responses.history):
        assert await read(ME, "a") is None
    assert not await responses.delete(ME, "a")
    assert await responses.sweep(clock.time()) == 1
    assert await ids(responses, "b") == ["in_a", "out_a", "in_b", "out_b"]
    clock.advance(10)
    assert await responses.sweep(clock.time()) == 1
    assert await responses.find_items(ME, ["in_c", "out_c"]) == {}
    assert await count(db, "response") == 1


async def test_a_response_at_work_does_not_expire(responses: Responses, clock: FakeClock) -> None:
    """Its time counts once it is over, whatever the clock did meanwhile."""
    await responses.begin(msgspec.structs.replace(draft("a"), expires=NOW + 1))
    clock.advance(10 * 365 * 86400)
    assert await responses.sweep(clock.time()) == 0
    assert await responses.get(ME, "a") is not None
    assert await responses.finish(msgspec.structs.replace(done("a"), expires=clock.time() + 1))
    assert await responses.get(ME, "a") is not None
    clock.advance(1)
    assert await responses.get(ME, "a") is None


# --- the log ------------------------------------------------------------------------------------------------


async def test_a_log_is_read_in_pages_until_its_time(
    responses: Responses, db: Database, clock: FakeClock
) -> None:
    """From any number, in order, the last event with the end; after its time the response stays alone."""
    await responses.begin(draft("a"))
    events = [(at, f"event {at}".encode()) for at in range(10)]
    await responses.log("a", events[:4])
    await responses.log("a", events[2:9])
    assert await responses.replay("a", -1, 100) == events[:9]
    assert await responses.replay("a", 3, 2) == events[4:6]
    assert await responses.replay("a", 8, 100) == []
    end = msgspec.structs.replace(done("a"), log=(events[9],), log_expires=NOW + 600)
    assert await responses.finish(end)
    await responses.log("a", [(10, b"too late")])
    assert await responses.replay("a", -1, 100) == events
    stored = await responses.get(ME, "a")
    assert stored is not None
    assert stored.log_expires == NOW + 600
    clock.advance(600)
    assert await responses.replay("a", -1, 100) == []
    assert await responses.sweep(clock.time()) == 0
    assert await count(db, "log") == 0
    stored = await responses.get(ME, "a")
    assert stored is not None
    assert (stored.streamed, stored.log_expires) == (True, NOW + 600)


async def test_only_streamed_responses_have_a_log(responses: Responses, db: Database) -> None:
    """Events of one that was not asked for as a stream are not kept."""
    await responses.begin(msgspec.structs.replace(draft("a"), streamed=False))
    await responses.log("a", [(0, b"zero")])
    await responses.finish(msgspec.structs.replace(done("a"), log=((1, b"one"),)))
    assert await responses.replay("a", -1, 10) == []
    assert await count(db, "log") == 0


# --- conversations ------------------------------------------------------------------------------------------


async def test_a_conversation_is_kept_as_it_was_made(conversations: Conversations) -> None:
    """Metadata and items, for its own caller only; metadata are replaced as a whole."""
    made = await conversations.create(ME, "c", {"topic": "sea"}, items("a", "b"), NOW)
    assert made == Conversation("c", {"topic": "sea"}, NOW) == await conversations.get(ME, "c")
    assert await conversations.items(ME, "c") == items("a", "b")
    assert await conversations.add(ME, "c", items("d"))
    assert await conversations.items(ME, "c") == items("a", "b", "d")
    assert await conversations.item(ME, "c", "b") == item("b")
    assert await conversations.item(ME, "c", "x") is None
    assert await conversations.update(ME, "c", {"mood": "calm"}) == Conversation("c", {"mood": "calm"}, NOW)
    for stranger, id in (("key_2", "c"), (ME, "x")):
        assert await conversations.get(stranger, id) is None
        assert await conversations.update(stranger, id, {}) is None
        assert await conversations.items(stranger, id) is None
        assert await conversations.item(stranger, id, "a") is None
        assert not await conversations.add(stranger, id, items("z"))
        assert not await conversations.remove(stranger, id, "a")
        assert not await conversations.delete(stranger, id)
    assert await conversations.get(ME, "c") == Conversation("c", {"mood": "calm"}, NOW)
    assert await conversations.items(ME, "c") == items("a", "b", "d")


async def test_a_response_adds_to_its_conversation(
    responses: Responses, conversations: Conversations, db: Database
) -> None:
    """Input and output follow when it ends well, once; a failed one leaves the conversation alone."""
    await conversations.create(ME, "c", {}, items("a"), NOW)
    origin = Origin(conversation="c")
    assert await responses.finish(done("r", before=items("a"), origin=origin))
    whole = items("a", "in_r", "out_r")
    assert await conversations.items(ME, "c") == whole
    await responses.begin(draft("s", before=whole, origin=origin))
    assert await conversations.items(ME, "c") == whole
    failed = msgspec.structs.replace(done("s", before=whole, origin=origin), status="failed")
    assert await responses.finish(failed)
    assert await conversations.items(ME, "c") == whole
    assert await responses.finish(msgspec.structs.replace(done("t", before=whole, origin=origin), keep=False))
    assert await conversations.items(ME, "c") == (*whole, *items("in_t", "out_t"))
    assert await responses.get(ME, "t") is None
    assert await count(db, "item") == 7


@pytest.mark.parametrize("background", [False, True])
async def test_two_responses_at_once_in_one_conversation(
    responses: Responses, conversations: Conversations, background: bool
) -> None:
    """Each one's history is what it was asked with; the conversation has both, as they ended."""
    origin, before = Origin(conversation="c"), items("a")
    await conversations.create(ME, "c", {}, before, NOW)
    if background:
        for id in ("r", "s"):
            await responses.begin(draft(id, before=before, origin=origin))
    await conversations.add(ME, "c", items("b"))
    for id in ("s", "r"):
        assert await responses.finish(done(id, before=before, origin=origin))
    assert await ids(responses, "r") == ["a", "in_r", "out_r"]
    assert await ids(responses, "s") == ["a", "in_s", "out_s"]
    assert await conversations.items(ME, "c") == items("a", "b", "in_s", "out_s", "in_r", "out_r")


async def test_a_removed_item_stays_in_the_responses_that_were_made_with_it(
    responses: Responses, conversations: Conversations
) -> None:
    """The conversation is without it, and so is what comes after; the earlier response is whole."""
    origin = Origin(conversation="c")
    await conversations.create(ME, "c", {}, items("a", "b"), NOW)
    await responses.finish(done("r", before=items("a", "b"), origin=origin))
    assert await conversations.remove(ME, "c", "a")
    assert not await conversations.remove(ME, "c", "a")
    rest = items("b", "in_r", "out_r")
    assert await conversations.items(ME, "c") == rest
    assert await ids(responses, "r") == ["a", "b", "in_r", "out_r"]
    await responses.finish(done("s", before=rest, origin=origin))
    assert await conversations.items(ME, "c") == (*rest, *items("in_s", "out_s"))
    assert await ids(responses, "s") == ["b", "in_r", "out_r", "in_s", "out_s"]
    assert await responses.find_items(ME, ["a"]) == {"a": item("a")}
    assert await responses.delete(ME, "r")
    assert await responses.find_items(ME, ["a"]) == {}
    assert await conversations.items(ME, "c") == (*rest, *items("in_s", "out_s"))


async def test_all_items_of_an_id_are_removed(responses: Responses, conversations: Conversations) -> None:
    """An id that stands in a conversation twice is gone from it afterwards, held by a response or not."""
    origin, before = Origin(conversation="c"), items("a", "b", "a", "d")
    await conversations.create(ME, "c", {}, items("a"), NOW)
    assert await conversations.remove(ME, "c", "a")
    await conversations.add(ME, "c", before)
    await responses.finish(done("r", before=before, origin=origin))
    assert await conversations.remove(ME, "c", "a")
    assert await conversations.item(ME, "c", "a") is None
    assert await conversations.items(ME, "c") == items("b", "d", "in_r", "out_r")
    assert await ids(responses, "r") == ["a", "b", "a", "d", "in_r", "out_r"]
    await conversations.add(ME, "c", items("e", "f", "e"))
    assert await conversations.remove(ME, "c", "e")
    assert await conversations.items(ME, "c") == items("b", "d", "in_r", "out_r", "f")


async def test_items_removed_one_by_one_are_really_gone(conversations: Conversations, db: Database) -> None:
    """Nothing else holds them: each takes its row along, in whatever order they go."""
    names = [f"i{at}" for at in range(30)]
    await conversations.create(ME, "c", {}, items(*names), NOW)
    for at, name in enumerate(names[::2] + names[1::2], 1):
        assert await conversations.remove(ME, "c", name)
        assert (await count(db, "item"), await count(db, "link")) == (30 - at, 30 - at)
    assert await conversations.items(ME, "c") == ()
    await conversations.add(ME, "c", items("new"))
    assert await conversations.items(ME, "c") == items("new")


async def test_a_deleted_conversation_leaves_its_responses(
    responses: Responses, conversations: Conversations, db: Database
) -> None:
    """They stay whole, one that still runs as well; the last of them takes the last row along."""
    origin = Origin(conversation="c")
    await conversations.create(ME, "c", {}, items("a"), NOW)
    await responses.finish(done("r", before=items("a"), origin=origin))
    whole = items("a", "in_r", "out_r")
    await responses.begin(draft("s", before=whole, origin=origin))
    assert await conversations.delete(ME, "c")
    assert await conversations.get(ME, "c") is None
    assert await responses.finish(done("s", before=whole, origin=origin))
    assert await responses.finish(done("t", before=whole, origin=origin))
    assert await ids(responses, "r") == ["a", "in_r", "out_r"]
    for id in ("s", "t"):
        assert await ids(responses, id) == ["a", "in_r", "out_r", f"in_{id}", f"out_{id}"]
    for id in ("r", "s", "t"):
        assert await responses.delete(ME, id)
    for table in ("item", "link", "chain", "garbage"):
        assert await count(db, table) == 0

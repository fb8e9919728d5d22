from __future__ import annotations

from modeld.supervisor.events import KEPT, EventFeed
from tests.fakes.clock import FakeClock


async def test_a_subscriber_sees_what_happens_from_now_on() -> None:
    """Without replay the past is not told; what follows comes in order, with its time."""
    clock = FakeClock(epoch=50.0)
    feed = EventFeed(clock)
    feed.publish("state", "old")
    with feed.subscribe() as events:
        feed.publish("state", "a", state="ready", cause="loaded", message="there")
        clock.advance(1)
        feed.publish("progress", "b", progress=0.5)
        first, second = await anext(events), await anext(events)
    assert (first.model, first.state, first.cause, first.message, first.time) == (
        "a",
        "ready",
        "loaded",
        "there",
        50.0,
    )
    assert (second.model, second.progress, second.time) == ("b", 0.5, 51.0)


async def test_replay_begins_with_the_oldest_kept_event() -> None:
    """With replay the kept events come first, then what happens."""
    feed = EventFeed(FakeClock())
    for number in range(KEPT + 3):
        feed.publish("state", str(number))
    assert [event.model for event in feed.recent()] == [str(number) for number in range(3, KEPT + 3)]
    with feed.subscribe(replay=True) as events:
        feed.publish("state", "new")
        assert (await anext(events)).kind == "lost"
        got = [(await anext(events)).model for _ in range(KEPT)]
    assert got == [*(str(number) for number in range(4, KEPT + 3)), "new"]


async def test_a_slow_subscriber_is_told_what_it_lost_where_it_lost_it() -> None:
    """Events lost come as one event with their number, before the first that was kept."""
    feed = EventFeed(FakeClock())
    with feed.subscribe() as events:
        feed.publish("state", "first")
        assert (await anext(events)).model == "first"
        for number in range(KEPT + 7):
            feed.publish("state", str(number))
        lost = await anext(events)
        assert lost.kind == "lost"
        assert lost.message.startswith("7 events were lost")
        assert (await anext(events)).model == "7"


async def test_a_loss_while_reading_is_told_before_what_follows() -> None:
    """A subscriber that falls behind between two reads hears of it at the next one."""
    feed = EventFeed(FakeClock())
    with feed.subscribe() as events:
        for number in range(KEPT):
            feed.publish("state", str(number))
        assert (await anext(events)).model == "0"
        feed.publish("state", "fits")
        feed.publish("state", "one too many")
        assert (await anext(events)).kind == "lost"
        assert (await anext(events)).model == "2"


async def test_one_slow_subscriber_costs_the_others_nothing() -> None:
    """Each subscriber has a queue of its own, and leaving ends it."""
    feed = EventFeed(FakeClock())
    with feed.subscribe(), feed.subscribe() as quick:
        for number in range(2 * KEPT):
            feed.publish("state", str(number))
            assert (await anext(quick)).model == str(number)

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import WorkerDied
from modeld.protocol.channel import MERGE_AFTER, Mailbox
from modeld.protocol.tasks import Event, Finish, Reasoning, Text, TokenLogprob, ToolCallDelta, Usage

LOGPROBS = (TokenLogprob("x", -0.5),)

plain = st.builds(Text, st.text(max_size=3), st.integers(0, 1))
events = st.one_of(
    plain,
    plain,
    plain,
    st.builds(Text, st.text(max_size=3), st.integers(0, 1), st.just(LOGPROBS)),
    st.builds(Reasoning, st.text(max_size=3)),
    st.builds(ToolCallDelta, st.integers(0, 1), st.text(max_size=3)),
    st.builds(Finish, st.just("stop"), st.integers(0, 1)),
)


def _merged(given: list[Event]) -> list[Event]:
    """Merge all neighbouring plain text of one choice: what any amount of merging has in common."""
    out: list[Event] = []
    for event in given:
        last = out[-1] if out else None
        if (
            isinstance(event, Text)
            and isinstance(last, Text)
            and not event.logprobs
            and not last.logprobs
            and event.index == last.index
        ):
            out[-1] = Text(last.text + event.text, event.index)
        else:
            out.append(event)
    return out


@given(st.lists(st.lists(events, max_size=3 * MERGE_AFTER), max_size=4))
def test_no_event_is_lost_or_changed_however_slowly_it_is_read(batches: list[list[Event]]) -> None:
    """For any events read in any batches, only neighbouring plain text of one choice is ever merged."""

    async def read() -> tuple[list[Event], int]:
        mailbox = Mailbox(asyncio.get_running_loop())
        got: list[Event] = []
        size = 0
        for batch in batches:
            for event in batch:
                mailbox.put(event, 10)
            taken, taken_size = await mailbox.take(0)
            got += taken or []
            size += taken_size
        mailbox.end()
        assert await mailbox.take(0) == (None, 0)
        return got, size

    got, size = asyncio.run(read())
    sent = [event for batch in batches for event in batch]
    assert _merged(got) == _merged(sent)
    assert [event for event in got if isinstance(event, Text) and event.logprobs] == [
        event for event in sent if isinstance(event, Text) and event.logprobs
    ]
    assert size == 10 * len(sent)


async def test_a_reader_that_keeps_up_gets_each_piece_by_itself() -> None:
    """Up to MERGE_AFTER waiting events nothing merges: a token stays a token."""
    mailbox = Mailbox(asyncio.get_running_loop())
    for number in range(MERGE_AFTER):
        mailbox.put(Text(str(number)), 1)
    assert await mailbox.take(0) == ([Text(str(number)) for number in range(MERGE_AFTER)], MERGE_AFTER)


async def test_a_slow_readers_text_merges() -> None:
    """Beyond MERGE_AFTER waiting events text costs no more events, and not a character is lost."""
    mailbox = Mailbox(asyncio.get_running_loop())
    for number in range(10_000):
        mailbox.put(Text(f"{number} "), 1)
    assert mailbox.waiting == MERGE_AFTER
    taken, size = await mailbox.take(0)
    assert taken is not None
    assert len(taken) == MERGE_AFTER
    assert "".join(event.text for event in taken if isinstance(event, Text)) == "".join(
        f"{number} " for number in range(10_000)
    )
    assert size == 10_000


async def test_a_timeout_loses_nothing() -> None:
    """A take that times out gives []; what comes afterwards is all there."""
    mailbox = Mailbox(asyncio.get_running_loop())
    assert await mailbox.take(0.001) == ([], 0)
    mailbox.put(Text("a"), 3)
    mailbox.put(Text("b"), 4)
    assert await mailbox.take(0.001) == ([Text("a"), Text("b")], 7)


async def test_a_cancelled_take_loses_nothing() -> None:
    """A reader that is cancelled while an event arrives leaves it for the next one."""
    mailbox = Mailbox(asyncio.get_running_loop())
    reader = asyncio.ensure_future(mailbox.take(None))
    await asyncio.sleep(0)
    mailbox.put(Text("a"), 3)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await mailbox.take(None) == ([Text("a")], 3)


async def test_events_come_before_the_error_that_ends_the_call() -> None:
    """What arrived before the end is read first; then the error, each time one asks."""
    mailbox = Mailbox(asyncio.get_running_loop())
    mailbox.put(Usage(1, 2), 5)
    mailbox.end(WorkerDied("gone"))
    mailbox.end()  # the first end counts
    assert await mailbox.take(None) == ([Usage(1, 2)], 5)
    for _ in range(2):
        with pytest.raises(WorkerDied, match="gone"):
            await mailbox.take(None)


async def test_the_end_wakes_a_waiting_reader() -> None:
    """A reader that waits without a limit learns of the end."""
    mailbox = Mailbox(asyncio.get_running_loop())
    reader = asyncio.ensure_future(mailbox.take(None))
    await asyncio.sleep(0)
    mailbox.end()
    async with asyncio.timeout(60):
        assert await reader == (None, 0)

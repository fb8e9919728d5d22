from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modeld.supervisor.log_ring import LINE_LIMIT, LINES, LogRing
from tests.fakes.clock import FakeClock

line = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), max_size=20)


def _texts(ring: LogRing) -> list[str]:
    return [kept.text for kept in ring.lines()]


@given(st.lists(line, max_size=8), st.data())
def test_any_cut_of_the_output_gives_the_same_lines(lines: list[str], data: st.DataObject) -> None:
    """However the pipe cuts a worker's output, also inside a character, the same lines are kept."""
    output = "".join(f"{text}\n" for text in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    ring = LogRing(FakeClock())
    for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True):
        ring.feed(output[start:end])
    assert _texts(ring) == lines


@given(st.binary(max_size=200))
def test_any_bytes_are_kept_as_text(output: bytes) -> None:
    """Output that is no text is no error; what can be read of it is kept."""
    ring = LogRing(FakeClock())
    ring.feed(output)
    ring.flush()
    assert all(kept.text.encode() is not None for kept in ring.lines())
    assert len(ring.lines()) <= output.count(b"\n") + 1


def test_the_ring_is_bounded_in_both_directions() -> None:
    """Neither many lines nor one endless line make the ring grow."""
    ring = LogRing(FakeClock())
    for number in range(LINES + 10):
        ring.feed(f"{number}\n".encode())
    assert _texts(ring)[0] == "10"
    assert len(_texts(ring)) == LINES
    ring.feed(b"x" * (10 * LINE_LIMIT))
    assert _texts(ring)[-1] == "x" * LINE_LIMIT


def test_the_tail_is_of_this_life_only() -> None:
    """In a new life the last words of the one before are not quoted, nor is its unfinished line."""
    clock = FakeClock()
    ring = LogRing(clock)
    ring.feed(b"old 1\nold 2\nold, unfinished")
    ring.begin_life()
    assert ring.tail(5) == ""
    ring.feed(b"new 1\nnew 2\nnew 3\n")
    assert ring.tail(2) == "new 2\nnew 3"
    assert ring.tail(5) == "new 1\nnew 2\nnew 3"
    assert _texts(ring) == ["old 1", "old 2", "old, unfinished", "new 1", "new 2", "new 3"]


def test_a_line_has_the_time_at_which_it_was_read() -> None:
    """Lines carry the clock's time of day."""
    clock = FakeClock(epoch=100.0)
    ring = LogRing(clock)
    ring.feed(b"first\n")
    clock.advance(5)
    ring.feed(b"second\n")
    assert [kept.time for kept in ring.lines()] == [100.0, 105.0]


async def test_a_follower_sees_what_comes_and_nothing_older() -> None:
    """Following begins now; each line comes once, in order."""
    ring = LogRing(FakeClock())
    ring.add("before")
    with ring.follow() as lines:
        ring.add("one")
        ring.add("two")
        assert [(await anext(lines)).text, (await anext(lines)).text] == ["one", "two"]


async def test_a_follower_that_lags_loses_the_oldest() -> None:
    """A follower that does not read costs no more than LINES lines."""
    ring = LogRing(FakeClock())
    with ring.follow() as lines:
        for number in range(LINES + 5):
            ring.add(str(number))
        assert (await anext(lines)).text == "5"


def test_old_lines_are_no_last_words() -> None:
    """Of a worker that lived long only what it said lately is its tail."""
    clock = FakeClock()
    ring = LogRing(clock)
    ring.feed(b"listening\n")
    clock.advance(3600.0)
    assert ring.tail(5, 30.0) == ""
    ring.feed(b"out of cheese\n")
    clock.advance(10.0)
    assert ring.tail(5, 30.0) == "out of cheese"
    assert ring.tail(5) == "listening\nout of cheese"


def test_a_replicas_lines_go_into_its_models_log_too() -> None:
    """Each line stands in both logs, in the model's with the replica's mark."""
    clock = FakeClock()
    model = LogRing(clock)
    LogRing(clock, into=model, prefix="[1] ").feed(b"one\n")
    LogRing(clock, into=model).feed(b"two\n")
    assert _texts(model) == ["[1] one", "two"]

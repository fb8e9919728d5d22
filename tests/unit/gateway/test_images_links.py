"""Links to files: an owner, an end, a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import TooLarge
from modeld.gateway.links import Links
from modeld.ids import Identity

ME, OTHER = Identity("me"), Identity("other")


class Time:
    """A monotonic clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_link_leads_its_owner_to_the_file_until_its_end() -> None:
    """Somebody else, a made-up name, and the time after the end find nothing; what is over is let go."""
    time = Time()
    links = Links(time, lifetime=10)
    first, second = links.add(ME, [b"a", b"bb"])
    assert (links.get(ME, first), links.get(ME, second)) == (b"a", b"bb")
    assert links.get(OTHER, first) is None
    assert links.get(ME, "made-up") is None
    time.now = 9.0
    assert links.purge() == 1.0
    time.now = 10.0
    assert links.get(ME, first) is None
    assert links.purge() is None
    assert links.held == (0, 0)


def test_one_answer_that_is_too_large_is_refused_and_costs_nobody_anything() -> None:
    """A link that could not be kept is never given away."""
    links = Links(Time(), max_bytes=10, max_files=3)
    (kept,) = links.add(ME, [b"x" * 10])
    for files in ([b"x" * 6, b"x" * 5], [b""] * 4):
        with pytest.raises(TooLarge):
            links.add(ME, files)
    assert links.get(ME, kept) is not None


@given(st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=3), max_size=30))
def test_memory_stays_bounded_and_the_newest_stay(answers: list[list[int]]) -> None:
    """Whatever comes, the bounds hold, and the last answer's files are all there."""
    links = Links(Time(), max_bytes=30, max_files=5)
    for sizes in answers:
        names = links.add(ME, [b"x" * size for size in sizes])
        count, held = links.held
        assert count <= 5
        assert held <= 30
        assert [len(links.get(ME, name) or b"") for name in names] == sizes

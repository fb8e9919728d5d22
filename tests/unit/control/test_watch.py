from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from modeld.control.watch import Mark, Rest, mark_of

MARKS = st.one_of(st.none(), st.builds(Mark, st.integers(1, 3), st.just(1), st.just(1)))


@given(st.lists(MARKS, min_size=1))
def test_a_file_is_read_when_two_looks_agree_on_what_was_not_read(looks: list[Mark | None]) -> None:
    """It is read at a look that sees the same as the one before, if that was not what was read last; a file
    that is missing is never read, and nothing is read twice in a row.
    """
    rest, read, seen = Rest(looks[0]), looks[0], looks[0]
    for mark in looks[1:]:
        due = mark is not None and mark == seen and mark != read
        assert rest.look(mark) == due
        seen = mark
        read = mark if due else read
    if looks[-1] is not None:
        rest.look(looks[-1])
        assert [rest.look(looks[-1]) for _ in range(2)] == [False, False]


def test_a_mark_tells_every_version_of_a_file_from_another(tmp_path: Path) -> None:
    """Writing, replacing by a file of the same size and time, and removing all show."""
    file = tmp_path / "f"
    assert mark_of(file) is None
    file.write_text("ab")
    os.utime(file, ns=(1, 1))
    first = mark_of(file)
    assert mark_of(file) == first
    os.utime(file, ns=(1, 2))
    assert mark_of(file) != first
    other = tmp_path / "g"
    other.write_text("cd")
    os.utime(other, ns=(1, 1))
    os.replace(other, file)
    assert mark_of(file) not in (None, first)

from __future__ import annotations

import errno
import hashlib
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.library.pull import transfer
from modeld.library.pull.transfer import LONGEST_PAUSE, Limits, Passing, Patience, get
from modeld.library.wheel import Refused

BODY = bytes(range(200)) * 5
SHA256 = hashlib.sha256(BODY).hexdigest()


def quiet(stage: str, done: int, why: str | None = None) -> None:
    """Hear nothing."""


class Source:
    """Gives BODY from where it is asked on, or from 0 where `honest` is False, and ends early as told."""

    def __init__(self, cuts: list[tuple[int, bool]]) -> None:
        self._cuts = cuts
        self.starts: list[int] = []

    @contextmanager
    def __call__(self, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        cut, honest = self._cuts.pop(0) if self._cuts else (len(BODY), True)
        begins = start if honest else 0
        self.starts.append(start)
        yield begins, iter([BODY[begins : begins + cut]] if cut else [])


def patience(tries: int = 100) -> Patience:
    """Return one that never sleeps."""
    return Patience(Limits(tries=tries, pause=0.0), "org/repo", lambda _: None)


@given(st.lists(st.tuples(st.integers(0, len(BODY)), st.booleans()), max_size=12), st.integers(0, 1200))
def test_however_it_is_cut_the_file_is_right(cuts: list[tuple[int, bool]], before: int) -> None:
    """Any run of short, empty and restarted answers, on any part of right bytes, ends in the right file."""
    with tempfile.TemporaryDirectory() as name:
        part, dest = Path(name, "part"), Path(name, "m.gguf")
        part.write_bytes((BODY + BODY)[:before])
        get(part, dest, len(BODY), SHA256, patience(), Source(cuts), quiet)
        assert dest.read_bytes() == BODY
        assert not part.exists()


def test_a_whole_part_is_not_asked_for(tmp_path: Path) -> None:
    """What had come whole takes its name without a request: a server would answer 416."""
    (tmp_path / "part").write_bytes(BODY)
    source = Source([])
    get(tmp_path / "part", tmp_path / "m.gguf", len(BODY), SHA256, patience(), source, quiet)
    assert source.starts == []
    assert (tmp_path / "m.gguf").read_bytes() == BODY


def test_a_disk_that_fills_up_keeps_what_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space in mid-file: told with the fix, trying again is pointless, and the part stays for later."""

    class Small(io.FileIO):
        def write(self, data: object) -> int:
            if self.tell() >= 300:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(memoryview(data)[: 300 - self.tell()])  # type: ignore[arg-type]

    monkeypatch.setattr(transfer, "open", lambda held, mode, buffering: Small(held, mode), raising=False)
    part, dest = tmp_path / "part", tmp_path / "m.gguf"
    with pytest.raises(Refused, match=r"is full: 0\.0 MB are still to come; make room or set") as caught:
        get(part, dest, len(BODY), SHA256, patience(), Source([]), quiet)
    assert caught.value.permanent
    assert part.read_bytes() == BODY[:300]
    assert not dest.exists()
    monkeypatch.undo()
    source = Source([])
    get(part, dest, len(BODY), SHA256, patience(), source, quiet)
    assert source.starts == [300]
    assert dest.read_bytes() == BODY


def test_pauses_grow_to_a_bound_and_keep_to_what_the_hub_asks() -> None:
    """Pauses double up to the longest, give or take a quarter; a longer one that the hub names is kept to."""
    slept: list[float] = []
    waiting = Patience(Limits(tries=12, pause=1.0), "org/repo", slept.append)
    for _ in range(10):
        waiting.failed(Passing("500"))
    for index, pause in enumerate(slept):
        assert 0.75 <= pause / min(2.0**index, LONGEST_PAUSE) <= 1.25
    waiting.failed(Passing("429", wait=100.0))
    assert slept[-1] == 100.0
    with pytest.raises(Refused, match=r"org/repo cannot be pulled now: 500 \(12 tries\)") as caught:
        waiting.failed(Passing("500"))
    assert not caught.value.permanent


def test_progress_renews_patience() -> None:
    """Only tries in a row without progress are counted."""
    waiting = patience(tries=2)
    for _ in range(5):
        waiting.failed(Passing("cut"))
        waiting.progress()
    waiting.failed(Passing("cut"))
    with pytest.raises(Refused, match="2 tries"):
        waiting.failed(Passing("cut"))

"""Watching the pulls that are under way."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import LoadFailed
from modeld.library.pull.client import Progress
from modeld.library.pull.watch import OVER, Pulls

LIMIT_S = 120.0


@given(st.lists(st.integers(0, 100), max_size=20), st.sets(st.integers(0, 19)), st.booleans())
def test_whoever_reads_slowly_misses_steps_and_never_the_last(
    steps: list[int], reads: set[int], fails: bool
) -> None:
    """However the reads fall between the steps; there is one end, and then nothing, and no pull."""

    async def scenario() -> None:
        pulls = Pulls()
        doing = pulls.doing("r")
        tell = doing.__enter__()
        with pulls.watch("r") as watch:
            assert watch is not None
            for at, step in enumerate(steps):
                tell(Progress("downloading", step, 100))
                if at in reads:
                    now = await watch.next(LIMIT_S)
                    assert now is not None
                    assert now.done == step
                    assert await watch.next(0.0) is None
            error = LoadFailed("full") if fails else None
            with suppress(LoadFailed):
                doing.__exit__(type(error) if error else None, error, None)
            last = await watch.next(LIMIT_S)
            assert last is not None
            assert last.stage == ("failed" if fails else "done")
            assert await watch.next(0.0) is None
        with pulls.watch("r") as gone:
            assert gone is None

    asyncio.run(scenario())


async def test_one_of_several_that_gives_up_is_not_the_end() -> None:
    """The pull of two models goes on for the second; its end is told once."""
    pulls = Pulls()
    seen: list[str] = []
    with pulls.doing("r") as second:
        with suppress(LoadFailed), pulls.doing("r") as first:
            first(Progress("downloading", 1, 4))
            raise LoadFailed("its model was taken away")
        with pulls.watch("r") as watch:
            assert watch is not None
            news = await watch.next(LIMIT_S)
            assert news is not None
            seen.append(news.stage)
            second(Progress("downloading", 4, 4))
            kept = watch
            news = await watch.next(LIMIT_S)
            assert news is not None
            seen.append(news.stage)
    assert seen == ["downloading", "downloading"]
    assert not OVER & set(seen)
    assert await kept.next(0.0) is None


async def test_the_end_says_how() -> None:
    """Done with all bytes, failed with the reason, stopped with what had come."""
    for error, stage, done in (
        (None, "done", 4),
        (LoadFailed("the disk is full"), "failed", 1),
        (asyncio.CancelledError(), "stopped", 1),
    ):
        pulls = Pulls()
        holder = suppress(LoadFailed, asyncio.CancelledError)
        doing = pulls.doing("r")
        tell = doing.__enter__()
        tell(Progress("downloading", 1, 4))
        with pulls.watch("r") as watch:
            assert watch is not None
            with holder:
                doing.__exit__(type(error) if error else None, error, None)
            last = await watch.next(LIMIT_S)
        assert last is not None
        assert (last.stage, last.done) == (stage, done)
        assert last.why == ("the disk is full" if stage == "failed" else None)

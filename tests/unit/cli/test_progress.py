from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modeld.cli.progress import LINE_STEP, Lines
from modeld.supervisor.events import FeedEvent


def _progress(message: str, fraction: float | None, model: str = "m") -> FeedEvent:
    return FeedEvent(0.0, "progress", model, message=message, progress=fraction)


def test_small_steps_get_no_line() -> None:
    """Progress shows at a new stage and each tenth, not at every step; states are the log's business."""
    lines = Lines()
    shown = [lines.line(_progress(f"fetching x: {i} of 100 MB", i / 100)) for i in range(101)]
    kept = [line for line in shown if line]
    assert kept[0] == "m: fetching x: 0 of 100 MB (0%)"
    assert 10 <= len(kept) <= 11
    assert lines.line(_progress("loading 3 of 9 MiB", 0.3)) == "m: loading 3 of 9 MiB (30%)"
    assert lines.line(FeedEvent(0.0, "state", "m", state="ready", message="loaded in 1.0 s")) is None


@given(st.lists(st.floats(0, 1), max_size=200).map(sorted))
def test_a_growing_bar_never_floods(fractions: list[float]) -> None:
    """However finely a load reports, one stage costs at most one line per step of LINE_STEP and one more."""
    lines = Lines()
    kept = [line for fraction in fractions if (line := lines.line(_progress("loading", fraction)))]
    assert len(kept) <= 1 / LINE_STEP + 1


def test_unknown_progress_and_other_events() -> None:
    """A stage without a fraction shows once, without a percentage; calls and losses are not progress."""
    lines = Lines()
    assert lines.line(_progress("starting xllamacpp", None)) == "m: starting xllamacpp"
    assert lines.line(_progress("starting xllamacpp", None)) is None
    assert lines.line(FeedEvent(0.0, "lost", "", message="3 events were lost")) is None

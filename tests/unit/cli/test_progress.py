from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.cli.progress import LINE_STEP, Lines, bar_words, show_bars, show_lines
from modeld.supervisor.events import FeedEvent
from tests.component.supervisor.conftest import make_pool, spec
from tests.fakes.workers import Workers


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


def test_a_pull_that_is_tried_again_gets_a_line() -> None:
    """Also between two tenths, and so does its going on."""
    lines, far = Lines(), "pulling org/m: 30.0 of 100.0 MB"
    told = [far, f"{far}: trying again, the hub answered 500", f"{far}: trying again, it stalled", far]
    assert [lines.line(_progress(message, 0.3)) is not None for message in told] == [True, True, False, True]


def test_a_bar_leaves_out_a_pull_s_reference() -> None:
    """The figures are what there is room for; all else is said as it is."""
    assert bar_words("pulling org/m:*Q4.gguf: 1.0 of 2.0 MB") == "pulling 1.0 of 2.0 MB"
    for message in ("pulling org/m", "loading: 3 of 9", ""):
        assert bar_words(message) == message


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


@pytest.mark.parametrize("show", [show_bars, show_lines])
async def test_what_is_said_of_a_ready_model_can_be_copied(
    show: Callable[..., Awaitable[None]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Beside bars and lines a command stays one line, however narrow the terminal, and nothing in it is taken
    for markup.
    """
    command = "curl 'http://[::1]:8000/v1' -d '[bold]:smile:" + "x" * 300 + "'"
    ready: list[str] = []

    def said(name: str) -> list[str]:
        ready.append(name)
        return [command]

    async with make_pool([spec("m")], tmp_path, workers=Workers()) as pool:
        await show(pool, said, pool.settled)
    assert ready == ["m"]
    assert command in capsys.readouterr().out.splitlines()

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click import unstyle
from hypothesis import given
from hypothesis import strategies as st

from modeld.admin.schemas import StatusReply
from modeld.cli import render
from modeld.cli.render import Screen
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import State, Status

NARROW = Screen(80, colour=False)
PIPED = Screen(None, colour=False)


def _page(screen: Screen, *models: Status) -> list[str]:
    reply = StatusReply("0.1.0", 1, 5.0, "http://127.0.0.1:8000", models)
    return render.status_page(reply, screen, now=1000.0).splitlines()


def _model(name: str = "qwen", state: State = State.READY, **facts: object) -> Status:
    values: dict[str, object] = {"cause": "request", "message": "", "since": 820.0, **facts}
    return Status(name, "generate", "llama_server", state, **values)  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_line_up() -> None:
    """Words are aligned to the left, figures to the right."""
    _, *rows = _page(NARROW, _model(bytes_used=7 * 2**29, in_flight=3, queued=12), _model("smollm2-135m"))
    assert rows == [
        "MODEL         STATE  CAUSE    SINCE   MEMORY  IN-FLIGHT  QUEUE",
        "qwen          ready  request     3m  3.5 GiB          3     12",
        "smollm2-135m  ready  request     3m        -          0      0",
    ]


def test_long_words_get_lines_of_their_own() -> None:
    """On 80 columns a long name stands above its row, a long cause and the message below it."""
    name, cause = "n" * 100, "the worker ended with signal 9"
    message = "out of memory while the weights were read; " * 4
    head, _, first, second, row, *below = _page(
        NARROW, _model(name, State.BACKOFF, cause=cause, message=message)
    )
    assert head
    assert (first, second) == ("n" * 80, "n" * 20)
    assert row.split()[:2] == ["backoff", "↓"]
    assert all(line.startswith("    ") for line in below)
    assert " ".join(line.strip() for line in below) == f"{cause}: {message}".strip()


def test_piped_is_one_line_each() -> None:
    """Without a terminal nothing is folded, so that `grep NAME` shows all there is about a model."""
    message = "word " * 60
    lines = _page(PIPED, _model("n" * 100, cause="c" * 40, message=message))
    assert len(lines) == 3
    assert lines[2].startswith("n" * 100)
    assert "c" * 40 in lines[2]
    assert lines[2].endswith(message.strip())


TEXT = st.text(st.characters(codec="ascii"), max_size=300)


@given(
    st.lists(
        st.builds(
            Status,
            name=st.text(st.characters(codec="ascii"), min_size=1, max_size=200),
            usecase=st.just("generate"),
            loader=st.just("fake"),
            state=st.sampled_from(State),
            cause=TEXT,
            message=TEXT,
            since=st.floats(-1e9, 2e9),
            progress=st.none() | st.floats(0, 1),
            bytes_used=st.integers(0, 2**45),
            in_flight=st.integers(0, 9999),
            queued=st.integers(0, 9999),
        ),
        max_size=4,
    ),
    st.integers(80, 200),
    st.booleans(),
)
def test_fits_every_screen(models: list[Status], width: int, colour: bool) -> None:
    """No line is wider than the screen, whatever the names, causes and messages; none steers the terminal."""
    lines = _page(Screen(width, colour), *models)
    assert max(len(unstyle(line)) for line in lines) <= width
    assert all(unstyle(line).isprintable() for line in lines)
    assert len(_page(PIPED, *models)) == (2 + len(models) if models else 2)


def test_progress_in_the_state() -> None:
    """A model on its way shows how far it is; a stale figure of one that is ready is not shown."""
    loading, ready = _page(NARROW, _model(state=State.LOADING, progress=0.42), _model(progress=1.0))[2:]
    assert "loading 42%" in loading
    assert "%" not in ready


def test_no_models() -> None:
    """An empty daemon says so."""
    assert _page(NARROW)[1:] == ["no models are configured"]


def test_colour() -> None:
    """Only the state is coloured, and without colour the same page has no escape in it."""
    models = [_model(state=state) for state in State]
    coloured, plain = _page(Screen(80, colour=True), *models), _page(NARROW, *models)
    assert [unstyle(line) for line in coloured] == plain
    assert sum(line.count("\x1b[") for line in coloured) == 2 * len(render.COLOURS)


@pytest.mark.parametrize(
    ("stream", "environ", "folded", "colour"),
    [
        (io.StringIO(), {}, False, False),
        (Terminal(), {"TERM": "xterm"}, True, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True, True),
        (Terminal(), {"TERM": "dumb"}, True, False),
    ],
)
def test_screen(stream: io.StringIO, environ: dict[str, str], folded: bool, colour: bool) -> None:
    """Text is folded on terminals only, coloured there unless NO_COLOR or TERM=dumb says no."""
    screen = Screen.of(stream, environ)
    assert ((screen.width is not None), screen.colour) == (folded, colour)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (59.9, "59s"), (60, "1m"), (7199, "1h"), (86400 * 12.5, "12d")]
)
def test_duration(seconds: float, text: str) -> None:
    """The largest whole unit; a clock that stepped back is "0s", not negative."""
    assert render.duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "-"), (1, "1 MiB"), (512 * 2**20, "512 MiB"), (2**30, "1.0 GiB"), (80 * 2**30, "80.0 GiB")],
)
def test_memory(size: int, text: str) -> None:
    """Binary units with their true names."""
    assert render.memory(size) == text


def test_event_lines() -> None:
    """An event is one line, whatever its message holds."""
    event = FeedEvent(0.0, "state", "qwen", "failed", "crash", "exit code 1\nlast words\x1b[2J")
    assert render.event_line(event)[9:] == "qwen failed (crash): exit code 1 last words\\x1b[2J"
    event = FeedEvent(0.0, "progress", "qwen", message="reading", progress=0.5)
    assert render.event_line(event)[9:] == "qwen progress 50%: reading"
    assert render.event_line(FeedEvent(0.0, "lost", "", message="3 events"))[9:] == "- lost: 3 events"


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped, progress is a plain line for each event, on stderr."""
    with render.progress("load qwen", PIPED) as show:
        show(FeedEvent(0.0, "progress", "qwen", message="reading", progress=0.5))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("qwen progress 50%: reading\n")


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal it is one bar with title, stage and percentage; markup in a stage is only text."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with render.progress("load qwen", Screen(100, colour=False)) as show:
        show(FeedEvent(0.0, "progress", "qwen", message="reading [bold]", progress=0.5))
    shown = unstyle(terminal.getvalue())
    assert "load qwen" in shown
    assert "50%" in shown
    assert "reading [bold]" in shown


def test_page_is_used_from_one_place() -> None:
    """Rich is imported inside functions only: the table must not wait for it."""
    source = Path(render.__file__).read_text().splitlines()
    assert [line for line in source if line.startswith(("import rich", "from rich"))] == []

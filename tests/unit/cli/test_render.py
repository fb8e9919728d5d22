from __future__ import annotations

import io
from pathlib import Path

import pytest
from click import unstyle
from hypothesis import given
from hypothesis import strategies as st

from modeld.admin.schemas import (
    ChangePlan,
    DeviceReport,
    DevicesReply,
    EstimateReply,
    Outcome,
    Replacement,
    StatusReply,
)
from modeld.cli import machine, progress, render, table, words
from modeld.cli.changes import outcome_page, plan_page
from modeld.cli.table import Screen
from modeld.hardware.footprint import Footprint, Line, Source, Where
from modeld.hardware.machine import Condition, Device, Kind
from modeld.protocol.capabilities import Capability
from modeld.protocol.messages import Facts
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.states import ReplicaStatus, State, Status

NARROW = Screen(80, colour=False)
PIPED = Screen(None, colour=False)


def _page(screen: Screen, *models: Status) -> list[str]:
    reply = StatusReply("0.1.0", 1, 5.0, "http://127.0.0.1:8000", models=models)
    return render.status_page(reply, screen, now=1000.0).splitlines()


def _model(name: str = "qwen", state: State = State.READY, **facts: object) -> Status:
    values: dict[str, object] = {"cause": "request", "message": "", "since": 820.0, **facts}
    return Status(name, "generate", "llama_server", state, **values)  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_line_up() -> None:
    """Words are aligned to the left, figures to the right."""
    _, *rows = _page(
        NARROW, _model(bytes_used=7 * 2**29, footprint=2**32, in_flight=3, queued=12), _model("smollm2-135m")
    )
    assert rows == [
        "MODEL         STATE  CAUSE    SINCE       MEMORY  IN-FLIGHT  QUEUE",
        "qwen          ready  request     3m  3.5/4.0 GiB          3     12",
        "    serves 3 calls; 12 requests wait",
        "smollm2-135m  ready  request     3m            -          0      0",
        "    idle",
    ]


def test_long_words_get_lines_of_their_own() -> None:
    """On 80 columns a long name stands above its row, a long cause and the sentence below it."""
    name, cause = "n" * 100, "the worker ended with signal 9"
    message = "out of memory while the weights were read; " * 4
    head, _, first, second, row, *below = _page(
        NARROW, _model(name, State.BACKOFF, cause=cause, message=message)
    )
    assert head
    assert (first, second) == ("n" * 80, "n" * 20)
    assert row.split()[:2] == ["backoff", "↓"]
    assert all(line.startswith("    ") for line in below)
    said = message.strip().removesuffix(";")
    assert " ".join(line.strip() for line in below) == f"{cause}: {said};"


def test_piped_is_one_line_each() -> None:
    """Without a terminal nothing is folded, so that `grep NAME` shows all there is about a model."""
    message = "word " * 60
    lines = _page(PIPED, _model("n" * 100, cause="c" * 40, message=message))
    assert len(lines) == 3
    assert lines[2].startswith("n" * 100)
    assert "c" * 40 in lines[2]
    assert lines[2].endswith(message.strip())
    assert "  idle; word" in lines[2]


TEXT = st.text(st.characters(codec="ascii"), max_size=300)


REPLICAS = st.builds(
    ReplicaStatus,
    state=st.sampled_from(State),
    cause=TEXT,
    message=TEXT,
    since=st.floats(-1e9, 2e9),
    progress=st.none() | st.floats(0, 1),
    bytes_used=st.integers(0, 2**45),
    devices=st.dictionaries(st.text(st.characters(codec="ascii")), st.integers(0, 2**45), max_size=2),
    in_flight=st.integers(0, 9999),
)


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
            restarts=st.integers(0, 99),
            facts=st.none() | st.builds(Facts, st.just("fake"), st.just("cpu"), st.integers(1, 64)),
            served_name=TEXT,
            gateway=TEXT,
            aliases=st.lists(TEXT, max_size=3).map(tuple),
            on_demand=st.booleans(),
            pinned=st.booleans(),
            footprint=st.integers(0, 2**45),
            idle_unload_at=st.none() | st.floats(-1e9, 2e9),
            replicas=st.lists(REPLICAS, max_size=3).map(tuple),
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
    rows = sum(1 + (len(model.replicas) if len(model.replicas) > 1 else 0) for model in models)
    assert len(_page(PIPED, *models)) == 2 + (rows if models else 0)


def test_progress_in_the_state() -> None:
    """A model on its way shows how far it is; a stale figure of one that is ready is not shown."""
    loading, _, ready, _ = _page(NARROW, _model(state=State.LOADING, progress=0.42), _model(progress=1.0))[2:]
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
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "-"),
        (1, "1 MiB"),
        (512 * 2**20, "512 MiB"),
        (2**30, "1.0 GiB"),
        (80 * 2**30, "80.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_memory(size: int, text: str) -> None:
    """Binary units with their true names."""
    assert words.memory(size) == text


def test_event_lines() -> None:
    """An event is one line, whatever its message holds."""
    event = FeedEvent(0.0, "state", "qwen", "failed", "crash", "exit code 1\nlast words\x1b[2J")
    assert render.event_line(event)[9:] == "qwen failed (crash): exit code 1 last words\\x1b[2J"
    event = FeedEvent(0.0, "progress", "qwen", message="reading", progress=0.5)
    assert render.event_line(event)[9:] == "qwen progress 50%: reading"
    assert render.event_line(FeedEvent(0.0, "lost", "", message="3 events"))[9:] == "- lost: 3 events"


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped, each state is a line on stderr, and of progress what is new; none of it steers the terminal."""
    with progress.progress(PIPED) as show:
        for step in range(100):
            show(FeedEvent(0.0, "progress", "qwen", message="reading", progress=step / 100))
        show(FeedEvent(0.0, "state", "qwen", state="failed", message="\x1b[2Jbad"))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0][9:] == "qwen progress 0%: reading"
    assert len(lines) <= 12
    assert lines[-1][9:] == "qwen failed: \\x1b[2Jbad"


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal each model has a bar with stage and percentage; markup and escapes are only text."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.progress(Screen(100, colour=False)) as show:
        show(FeedEvent(0.0, "lost", "", message="3 events were lost"))
        show(FeedEvent(0.0, "progress", "[red]qwen", message="reading [bold]\x1b[2J", progress=0.5))
        show(FeedEvent(0.0, "state", "whisper", state="ready"))
    shown = unstyle(terminal.getvalue())
    assert "[red]qwen" in shown
    assert "50% reading [bold]\\x1b[2J" in shown
    assert "whisper" in shown
    assert "ready" in shown


def test_replicas_are_rows() -> None:
    """Several replicas stand under their model, each with its state and why; the model's row adds them up."""
    replicas = (
        ReplicaStatus(
            State.READY, "start", "", 820.0, bytes_used=2**30, devices={"GPU-a": 2**30}, in_flight=2
        ),
        ReplicaStatus(State.BACKOFF, "crash", "ended with signal 9; next try in 4 s.", 990.0),
    )
    model = _model("qwen", footprint=2**30, in_flight=2, facts=Facts("fake", "cpu", 4), replicas=replicas)
    reply = StatusReply("0.1.0", 1, 5.0, "http://127.0.0.1:8000", models=(model,))
    page = render.status_page(reply, NARROW, now=1000.0, labels={"GPU-a": "GPU 3"})
    assert page.splitlines()[1:] == [
        "MODEL  STATE    CAUSE    SINCE       MEMORY  IN-FLIGHT  QUEUE",
        "qwen   ready    request     3m    -/2.0 GiB          2      0",
        "    serves 2 of 4 slots; 1 of 2 replicas are ready",
        "  #0   ready    start       3m  1.0/1.0 GiB          2",
        "      serves 2 calls",
        "      on GPU 3",
        "  #1   backoff  crash      10s            -          0",
        "      ended with signal 9; next try in 4 s",
    ]
    piped = render.status_page(reply, PIPED, now=1000.0).splitlines()
    assert all(line.startswith("qwen") for line in piped[2:])


def test_traits() -> None:
    """Pins, demand, gateway and aliases have a line of their own, which is folded rather than cut."""
    names = tuple(f"alias-number-{i}" for i in range(12))
    model = _model("lab/qwen", pinned=True, on_demand=True, gateway="lab", served_name="qwen", aliases=names)
    text = " ".join(line.strip() for line in _page(NARROW, model)[4:])
    assert text == f"pinned, on demand, gateway lab, called qwen there, aliases {', '.join(names)}"
    assert _page(PIPED, model)[2].endswith(text)


@given(
    st.lists(
        st.builds(
            DeviceReport,
            device=st.builds(
                Device,
                id=TEXT,
                kind=st.sampled_from(Kind),
                name=TEXT,
                total=st.integers(0, 2**45),
                free=st.integers(0, 2**45),
                index=st.none() | st.integers(0, 15),
                condition=st.sampled_from(Condition),
                message=TEXT,
            ),
            usable=st.integers(0, 2**45),
            held=st.dictionaries(TEXT, st.integers(0, 2**45), max_size=3),
            others=TEXT,
        ),
        max_size=3,
    ),
    st.dictionaries(TEXT, st.builds(Capability, st.booleans(), TEXT, TEXT), max_size=3),
    st.builds(
        Footprint,
        st.sampled_from(Source),
        st.lists(st.builds(Line, TEXT, st.integers(0, 2**45), st.sampled_from(Where)), max_size=4).map(tuple),
        TEXT,
    ),
    TEXT,
)
def test_machine_fits_every_screen(
    devices: list[DeviceReport], loaders: dict[str, Capability], footprint: Footprint, text: str
) -> None:
    """Devices and estimates hold to 80 columns and to printable text, whatever drivers and engines say."""
    reply = DevicesReply(tuple(devices), text, loaders)
    estimate = EstimateReply(text, footprint, Footprint(Source.ESTIMATED, ()), text)
    for page in (machine.devices_page(reply, NARROW), machine.estimate_page(estimate, NARROW)):
        lines = page.splitlines()
        assert max(map(len, lines)) <= 80
        assert all(line.isprintable() for line in lines)


@given(
    st.builds(
        ChangePlan,
        adds=st.lists(TEXT, max_size=3).map(tuple),
        replaces=st.lists(
            st.builds(Replacement, TEXT, st.lists(TEXT, max_size=3).map(tuple)), max_size=3
        ).map(tuple),
        unchanged=st.lists(TEXT, max_size=3).map(tuple),
        notes=st.lists(TEXT, max_size=3).map(tuple),
    ),
    st.lists(st.builds(Outcome, TEXT, st.booleans(), TEXT), max_size=3),
)
def test_changes_fit_every_screen(plan: ChangePlan, outcomes: list[Outcome]) -> None:
    """Plans and outcomes hold to the screen's width and to printable text."""
    lines = plan_page(plan, NARROW).splitlines() + outcome_page(outcomes, NARROW).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("used", "expected", "text"),
    [
        (0, 0, "-"),
        (2**29, 0, "512 MiB"),
        (0, 2**30, "-/1.0 GiB"),
        (2**29, 3 * 2**29, "0.5/1.5 GiB"),
        (1, 2**40, "0.1/1.0 TiB"),
        (2**20, 2 * 2**20, "1/2 MiB"),
    ],
)
def test_memory_of(used: int, expected: int, text: str) -> None:
    """Used and expected share the unit of the larger."""
    assert words.memory_of(used, expected) == text


def test_rich_waits() -> None:
    """Rich is imported inside functions only: no page must wait for it."""
    for module in (render, table, machine, progress):
        source = Path(module.__file__ or "").read_text().splitlines()
        assert [line for line in source if line.startswith(("import rich", "from rich"))] == []


def test_facts_are_told_one_a_line() -> None:
    """What a worker found is shown; what it did not tell is left out; nothing steers the terminal."""
    facts = Facts(
        loader="llama_server",
        device="CUDA0 (NVIDIA H200)",
        slots=4,
        bytes_used=3 * 2**30,
        context_length=4096,
        capabilities=("chat", "vision"),
        detail={"engine": "llama-server\x1b[2J", "batch": "512 tokens"},
    )
    assert render.facts_lines(facts, PIPED) == [
        "  loader   llama_server",
        "  device   CUDA0 (NVIDIA H200)",
        "  memory   3.0 GiB",
        "  at once  4",
        "  context  4096 tokens",
        "  can do   chat, vision",
        "  engine   llama-server\\x1b[2J",
        "  batch    512 tokens",
    ]
    voices = Facts(loader="sherpa_onnx", device="cpu", voices=tuple(f"voice{n}" for n in range(40)))
    lines = render.facts_lines(voices, NARROW)
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("           ") for line in lines[-2:])

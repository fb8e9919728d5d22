from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.cli.sentences import replica_sentence, said, sentence
from modeld.protocol.messages import Facts
from modeld.supervisor.states import ReplicaStatus, State, Status

NOW = 1000.0
GIB = 2**30
NEXT = "the next request loads it"
REFUSAL = "needs 7.9 GiB, 5.1 GiB free on GPU 0, 3.2 GiB held by pinned llama3"


def _say(state: State, **facts: object) -> str:
    values: dict[str, object] = {"cause": "start", "message": "", "since": 900.0, **facts}
    return sentence(Status("qwen", "generate", "fake", state, **values), NOW)  # type: ignore[arg-type]


def _slots(slots: int) -> Facts:
    return Facts("fake", "cpu", slots)


def _copy(state: State, **facts: object) -> ReplicaStatus:
    values: dict[str, object] = {"cause": "start", "message": "", "since": 900.0, **facts}
    return ReplicaStatus(state, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "idle"),
        ({"facts": _slots(4)}, "idle, 4 slots free"),
        ({"facts": _slots(4), "in_flight": 2}, "serves 2 of 4 slots"),
        ({"facts": _slots(1), "in_flight": 1}, "serves 1 of 1 slot"),
        ({"facts": _slots(1), "in_flight": 3, "queued": 1}, "serves 3 calls on 1 slot; 1 request waits"),
        ({"in_flight": 1, "queued": 2}, "serves 1 call; 2 requests wait"),
        (
            {"facts": _slots(4), "in_flight": 2, "idle_unload_at": NOW + 540},
            "serves 2 of 4 slots; unloads in 9m if idle",
        ),
        ({"idle_unload_at": NOW - 5}, "idle; unloads as soon as it is idle"),
        ({"message": "loaded in 1.0 s."}, "idle; loaded in 1.0 s"),
        ({"message": "loaded in 1.0 s", "restarts": 2}, "idle; restarted 2 times so far; loaded in 1.0 s"),
        (
            {
                "facts": _slots(2),
                "in_flight": 3,
                "replicas": (_copy(State.READY), _copy(State.READY), _copy(State.LOADING)),
            },
            "serves 3 of 4 slots; 2 of 3 replicas are ready",
        ),
        (
            {
                "message": "1 of 2 replicas are ready; loaded.",
                "replicas": (_copy(State.READY), _copy(State.WAITING)),
            },
            "idle; 1 of 2 replicas are ready; loaded",
        ),
    ],
)
def test_ready(facts: dict[str, object], text: str) -> None:
    """A model that serves says how busy it is, what waits, and when it goes."""
    assert _say(State.READY, **facts) == text


@pytest.mark.parametrize(
    ("state", "facts", "text"),
    [
        (State.STOPPED, {"on_demand": True}, "not loaded; the next request loads it"),
        (State.STOPPED, {}, "not loaded; its turn comes"),
        (State.STOPPED, {"cause": "idle", "message": "no request for 60 s"}, "no request for 60 s; " + NEXT),
        (
            State.STOPPED,
            {"cause": "asked", "message": "unloaded"},
            "unloaded; `modeld ctl load qwen` loads it",
        ),
        (
            State.STOPPED,
            {"on_demand": True, "message": "idle for 10 min; the next request loads it."},
            "idle for 10 min; the next request loads it",
        ),
        (State.WAITING, {"message": REFUSAL + "."}, REFUSAL),
        (State.WAITING, {"message": REFUSAL, "queued": 3}, REFUSAL + "; 3 requests wait"),
        (State.WAITING, {"footprint": 2 * GIB, "cause": ""}, "waits for 2.0 GiB of memory"),
        (State.WAITING, {"cause": "order"}, "waits for memory (order)"),
        (State.STARTING, {}, "its worker starts"),
        (State.STARTING, {"message": "fetching 12 of 900 MB"}, "fetching 12 of 900 MB"),
        (State.LOADING, {"queued": 1}, "the engine reads the model; 1 request waits"),
        (State.DRAINING, {"in_flight": 1}, "finishes its calls and takes no new ones; 1 call left"),
        (State.STOPPING, {}, "its worker stops; its memory counts as free when it is seen free"),
        (
            State.BACKOFF,
            {"cause": "signal 9", "restarts": 2},
            "its worker ended; it is started again by itself (signal 9); restarted 2 times so far",
        ),
        (
            State.BACKOFF,
            {"message": "exit code 1; next try in 4 s", "restarts": 1},
            "exit code 1; next try in 4 s; restarted 1 time so far",
        ),
        (
            State.FAILED,
            {"message": "no such file: /m.gguf"},
            "no such file: /m.gguf; `modeld ctl load qwen` tries again",
        ),
        (State.FAILED, {"cause": "exit 1"}, "failed (exit 1); `modeld ctl load qwen` tries again"),
        (State.FAILED, {"cause": ""}, "failed (no reason given); `modeld ctl load qwen` tries again"),
    ],
)
def test_every_other_state(state: State, facts: dict[str, object], text: str) -> None:
    """Each state is explained: by what the supervisor said, with its numbers, else by what is known."""
    assert _say(state, **facts) == text


TEXT = st.text(max_size=200)


@given(
    st.builds(
        Status,
        name=TEXT,
        usecase=st.just("generate"),
        loader=st.just("fake"),
        state=st.sampled_from(State),
        cause=TEXT,
        message=TEXT,
        since=st.floats(0, 2e9),
        in_flight=st.integers(0, 9),
        queued=st.integers(0, 9),
        restarts=st.integers(0, 9),
        facts=st.none() | st.builds(Facts, st.just("fake"), st.just("cpu"), st.integers(0, 9)),
        on_demand=st.booleans(),
        footprint=st.integers(0, 2**40),
        idle_unload_at=st.none() | st.floats(-1e9, 2e9),
    )
)
def test_never_empty(status: Status) -> None:
    """Every snapshot has a sentence of one printable line, which holds what the supervisor said."""
    text = sentence(status, NOW)
    assert text.strip()
    assert text.isprintable()
    assert said(status.message) in text


@pytest.mark.parametrize(
    ("message", "text"),
    [("over.", "over"), ("on its way...", "on its way..."), (".", ""), ("a\nb\x1b[2J.", "a b\\x1b[2J")],
)
def test_said(message: str, text: str) -> None:
    """A closing full stop goes, an ellipsis stays, an engine's escapes are spelt out."""
    assert said(message) == text


@pytest.mark.parametrize(
    ("copy", "text"),
    [
        (_copy(State.READY), ""),
        (_copy(State.READY, in_flight=2, message="warm."), "serves 2 calls; warm"),
        (_copy(State.WAITING, cause="", devices={"host": GIB}), "waits for 1.0 GiB of memory"),
        (_copy(State.STOPPED, cause="scaled down"), "scaled down"),
        (_copy(State.FAILED, cause=""), "failed"),
        (_copy(State.BACKOFF, message=REFUSAL), REFUSAL),
    ],
)
def test_replicas(copy: ReplicaStatus, text: str) -> None:
    """One copy is explained in the same words."""
    assert replica_sentence(copy) == text

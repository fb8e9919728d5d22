from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from modeld.gateway.sse import escape_separators, event
from modeld.supervisor.states import State
from modeld.telemetry.metrics import Metrics
from tests.fakes.pool import model


def test_two_sets_do_not_mix() -> None:
    """Each daemon in a process counts for itself."""
    one, two = Metrics(), Metrics()
    one.request_started("/x")
    assert one.registry.get_sample_value("modeld_requests_in_progress", {"endpoint": "/x"}) == 1
    assert two.registry.get_sample_value("modeld_requests_in_progress", {"endpoint": "/x"}) is None


def test_the_gauge_is_right_when_requests_overlap() -> None:
    """In progress is counted up and down, so it is right while some end and others go on."""
    metrics = Metrics()
    for _ in range(3):
        metrics.request_started("/x")
    metrics.request_ended(model="m", endpoint="/x", status=200, seconds=0.1)
    assert metrics.registry.get_sample_value("modeld_requests_in_progress", {"endpoint": "/x"}) == 2


def test_models_are_read_at_each_scrape() -> None:
    """States, queues and restarts are those of the moment, not of the start."""
    metrics = Metrics()
    states = [model("a", state=State.LOADING)]
    metrics.watch_models(lambda: states)
    assert b'modeld_model_state{model="a",state="loading"} 1.0' in metrics.render()
    states[:] = [msgspec.structs.replace(model("a"), restarts=2, queued=3, in_flight=1, bytes_used=7)]
    text = metrics.render().decode()
    for line in (
        'modeld_model_state{model="a",state="ready"} 1.0',
        'modeld_model_restarts_total{model="a"} 2.0',
        'modeld_model_calls_queued{model="a"} 3.0',
        'modeld_model_calls_in_flight{model="a"} 1.0',
        'modeld_model_memory_bytes{model="a"} 7.0',
    ):
        assert line in text
    assert 'state="loading"' not in text


def test_a_call_without_usage_makes_no_token_series() -> None:
    """An abandoned call is timed, but claims no tokens."""
    metrics = Metrics()
    metrics.call_ended(
        model="m", first_token_s=0.1, chunks=2, prompt_tokens=0, cached_tokens=0, completion_tokens=0
    )
    assert metrics.registry.get_sample_value("modeld_stream_chunks_total", {"model": "m"}) == 2
    assert metrics.registry.get_sample_value("modeld_completion_tokens_total", {"model": "m"}) is None


@given(st.text())
def test_an_event_is_one_line_and_says_the_same(text: str) -> None:
    """Whatever the text, no client can take the data for two lines, and it decodes to the same."""
    json_text = msgspec.json.encode({"a": text})
    sse = event(json_text)
    assert len(sse.decode().splitlines()) == 2
    assert json.loads(sse[len(b"data: ") :]) == {"a": text}
    assert json.loads(escape_separators(json_text)) == {"a": text}

from __future__ import annotations

import msgspec

from modeld.supervisor.states import ReplicaStatus, State
from modeld.telemetry.metrics import DeviceSample, Metrics
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


def _value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def _replica(state: State) -> ReplicaStatus:
    return ReplicaStatus(state=state, cause="test", message="", since=0.0)


def test_loads_are_counted_and_timed_by_how_they_ended() -> None:
    """A failed load is a load too, with a series of its own."""
    metrics = Metrics()
    metrics.model_loaded("m", "llama_server", 3.0, "ready")
    metrics.model_loaded("m", "llama_server", 5.0, "ready")
    metrics.model_loaded("m", "llama_server", 0.2, "out_of_memory")
    assert _value(metrics, "modeld_model_loads_total", model="m", outcome="ready") == 2
    assert _value(metrics, "modeld_model_loads_total", model="m", outcome="out_of_memory") == 1
    labels = {"model": "m", "loader": "llama_server", "outcome": "ready"}
    assert _value(metrics, "modeld_model_load_seconds_sum", **labels) == 8.0
    assert _value(metrics, "modeld_model_load_seconds_bucket", le="2.5", **labels) == 0
    assert _value(metrics, "modeld_model_load_seconds_bucket", le="5.0", **labels) == 2


def test_what_the_supervisor_tells_is_counted() -> None:
    """Evictions by reason, waits, overtaken calls and changes each reach their own series."""
    metrics = Metrics()
    metrics.evicted("m", "memory")
    metrics.evicted("m", "idle")
    metrics.evicted("m", "idle")
    metrics.queue_waited("m", 0.0)
    metrics.queue_waited("m", 7.0)
    metrics.overtaken("m")
    metrics.overtaken("m", 3)
    metrics.changed("reconcile", "ok")
    metrics.changed("reload", "refused")
    assert _value(metrics, "modeld_evictions_total", model="m", reason="memory") == 1
    assert _value(metrics, "modeld_evictions_total", model="m", reason="idle") == 2
    assert _value(metrics, "modeld_queue_wait_seconds_count", model="m") == 2
    assert _value(metrics, "modeld_queue_wait_seconds_sum", model="m") == 7.0
    assert _value(metrics, "modeld_calls_overtaken_total", model="m") == 4
    assert _value(metrics, "modeld_config_changes_total", kind="reconcile", outcome="ok") == 1
    assert _value(metrics, "modeld_config_changes_total", kind="reload", outcome="refused") == 1


def test_a_footprint_is_compared_with_what_was_expected() -> None:
    """The last load counts; an expectation of nothing is no expectation."""
    metrics = Metrics()
    metrics.watch_models(lambda: [msgspec.structs.replace(model("m"), footprint=1500)])
    metrics.footprint_measured("m", 1000, 3000)
    metrics.footprint_measured("m", 1000, 1500)
    metrics.footprint_measured("other", 0, 1500)
    assert _value(metrics, "modeld_footprint_error_ratio", model="m") == 1.5
    assert _value(metrics, "modeld_footprint_bytes", model="m") == 1500
    assert b'model="other"' not in metrics.render()


def test_replicas_are_counted_by_state() -> None:
    """Every state some copy is in has its number, and "ready" is there even when none is."""
    metrics = Metrics()
    states = [State.READY, State.READY, State.LOADING]
    some = msgspec.structs.replace(model("some"), replicas=tuple(map(_replica, states)))
    metrics.watch_models(lambda: [some, model("none", state=State.STOPPED)])
    assert _value(metrics, "modeld_model_replicas", model="some", state="ready") == 2
    assert _value(metrics, "modeld_model_replicas", model="some", state="loading") == 1
    assert _value(metrics, "modeld_model_replicas", model="some", state="failed") is None
    assert _value(metrics, "modeld_model_replicas", model="none", state="ready") == 0


def test_a_removed_model_s_gauges_go_with_it() -> None:
    """After a removal no gauge names the model, and a new one of the same name starts without its past."""
    metrics = Metrics()
    models = {"m": msgspec.structs.replace(model("m"), footprint=7)}
    metrics.watch_models(models.values)
    metrics.footprint_measured("m", 7, 8)
    assert metrics.render().count(b'model="m"') == 8
    gone = models.pop("m")
    assert b'model="m"' not in metrics.render()
    models["m"] = gone
    assert _value(metrics, "modeld_footprint_error_ratio", model="m") is None


def test_devices_are_read_at_each_scrape() -> None:
    """Four figures for each device of the moment; one that is lost leaves no series behind."""
    metrics = Metrics()
    devices = [DeviceSample("host", 64, 60, 20, 40), DeviceSample("GPU-1", 24, 22, 8, 16)]
    metrics.watch_devices(lambda: devices)
    for kind, size in (("total", 24), ("usable", 22), ("held", 8), ("free", 16)):
        assert _value(metrics, "modeld_device_memory_bytes", device="GPU-1", kind=kind) == size
    del devices[1]
    text = metrics.render()
    assert text.count(b"modeld_device_memory_bytes{") == 4
    assert b"GPU-1" not in text

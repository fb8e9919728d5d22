"""Every metric modeld exports, in one place: its name, its labels, and what it counts.

Nothing here is per token: the hot path counts in plain integers and reports once per request. Label values
are bounded; a name that a stranger made up is counted as "unknown".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of `Metrics.render`."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ModelSample(Protocol):
    """What a scrape reads about one model; the supervisor's `Status` is one."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def state(self) -> str:
        """Its state, as a word."""
        ...

    @property
    def bytes_used(self) -> int:
        """Memory of its worker in bytes."""
        ...

    @property
    def in_flight(self) -> int:
        """Calls being worked on."""
        ...

    @property
    def queued(self) -> int:
        """Calls waiting."""
        ...

    @property
    def restarts(self) -> int:
        """Restarts after crashes."""
        ...


class Metrics:
    """One set of metrics with a registry of its own, so that two daemons in one process do not mix."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "modeld_requests",
            "Requests by final status; 499: the client left; a stream that failed has its error's status.",
            ["model", "endpoint", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "modeld_request_duration_seconds",
            "From the request's headers to the end of its answer.",
            ["model", "endpoint"],
            buckets=SECONDS,
            registry=registry,
        )
        self.first_token_seconds = Histogram(
            "modeld_time_to_first_token_seconds",
            "From the request's headers to the first event of the engine, waiting and loading included.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.requests_in_progress = Gauge(
            "modeld_requests_in_progress", "Requests being answered.", ["endpoint"], registry=registry
        )
        self.prompt_tokens = Counter(
            "modeld_prompt_tokens",
            "Tokens of prompts, those from the cache included.",
            ["model"],
            registry=registry,
        )
        self.cached_tokens = Counter(
            "modeld_cached_prompt_tokens",
            "Tokens of prompts that the cache held.",
            ["model"],
            registry=registry,
        )
        self.completion_tokens = Counter(
            "modeld_completion_tokens", "Tokens that models generated.", ["model"], registry=registry
        )
        self.stream_chunks = Counter(
            "modeld_stream_chunks", "Events written to streaming clients.", ["model"], registry=registry
        )
        self.client_disconnects = Counter(
            "modeld_client_disconnects",
            "Requests whose client left before the end of the answer.",
            ["model", "endpoint"],
            registry=registry,
        )
        self.auth_failures = Counter(
            "modeld_auth_failures", "Requests refused by key, host or origin.", ["reason"], registry=registry
        )
        self.errors = Counter(
            "modeld_internal_errors", "Requests that met a bug in modeld.", ["endpoint"], registry=registry
        )
        ProcessCollector(registry=registry)
        self._counters: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        self._histograms: dict[tuple[Histogram, tuple[str, ...]], Histogram] = {}
        self._gauges: dict[str, Gauge] = {}

    def request_started(self, endpoint: str) -> None:
        """Count a request in progress."""
        self._gauge(endpoint).inc()

    def request_ended(self, *, model: str, endpoint: str, status: int, seconds: float) -> None:
        """Count a request that is over; every `request_started` has exactly one."""
        self._gauge(endpoint).dec()
        self._counter(self.requests, model, endpoint, str(status)).inc()
        self._histogram(self.request_seconds, model, endpoint).observe(seconds)

    def call_ended(
        self,
        *,
        model: str,
        first_token_s: float,
        chunks: int,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
    ) -> None:
        """Count what a call that gave anything took and gave; no usage is counted as zeros."""
        self._histogram(self.first_token_seconds, model).observe(first_token_s)
        if chunks:
            self._counter(self.stream_chunks, model).inc(chunks)
        if prompt_tokens or completion_tokens:
            self._counter(self.prompt_tokens, model).inc(prompt_tokens)
            self._counter(self.cached_tokens, model).inc(cached_tokens)
            self._counter(self.completion_tokens, model).inc(completion_tokens)

    def watch_models(self, samples: Callable[[], Iterable[ModelSample]]) -> None:
        """Read the models' states from `samples` at each scrape."""
        self.registry.register(_Models(samples))

    def render(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self.registry)

    # `labels()` locks and checks each time; a dictionary of what it gave is ten times faster.

    def _gauge(self, endpoint: str) -> Gauge:
        found = self._gauges.get(endpoint)
        if found is None:
            found = self._gauges[endpoint] = self.requests_in_progress.labels(endpoint)
        return found

    def _counter(self, metric: Counter, *labels: str) -> Counter:
        found = self._counters.get((metric, labels))
        if found is None:
            found = self._counters[metric, labels] = metric.labels(*labels)
        return found

    def _histogram(self, metric: Histogram, *labels: str) -> Histogram:
        found = self._histograms.get((metric, labels))
        if found is None:
            found = self._histograms[metric, labels] = metric.labels(*labels)
        return found


class _Models(Collector):
    def __init__(self, samples: Callable[[], Iterable[ModelSample]]) -> None:
        self._samples = samples

    def describe(self) -> Iterable[Metric]:
        return ()  # the samples need not be there yet when this is registered

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "modeld_model_state", "1 for the state the model is in.", labels=["model", "state"]
        )
        memory = GaugeMetricFamily(
            "modeld_model_memory_bytes", "Memory of the model's worker.", labels=["model"]
        )
        flight = GaugeMetricFamily("modeld_model_calls_in_flight", "Calls being worked on.", labels=["model"])
        queued = GaugeMetricFamily("modeld_model_calls_queued", "Calls that wait.", labels=["model"])
        restarts = CounterMetricFamily("modeld_model_restarts", "Restarts after crashes.", labels=["model"])
        for sample in self._samples():
            label = [sample.name]
            state.add_metric([sample.name, str(sample.state)], 1)
            memory.add_metric(label, sample.bytes_used)
            flight.add_metric(label, sample.in_flight)
            queued.add_metric(label, sample.queued)
            restarts.add_metric(label, sample.restarts)
        yield from (state, memory, flight, queued, restarts)

"""Every metric modeld exports, in one place: its name, its labels, and what it counts.

Nothing here is per token: the hot path counts in plain integers and reports once per request. Label values
are bounded; a name that a stranger made up is counted as "unknown".
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeAlias

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
JOB_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600, 24 * 3600)
LOAD_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)

LoadOutcome: TypeAlias = Literal["ready", "failed", "crashed", "out_of_memory", "cancelled"]
"""How a load ended: "failed" was refused by the loader, "cancelled" by somebody who changed their mind."""

EvictionReason: TypeAlias = Literal["memory", "forced", "out_of_memory", "idle"]
"""Why a model was unloaded that nobody had told to go: another one needed its memory and it was idle, or busy
and the owner forced it; an engine ran out of memory; its keep-alive ran out.
"""

ChangeKind: TypeAlias = Literal["add", "remove", "reconcile", "reload"]
ChangeOutcome: TypeAlias = Literal["ok", "partial", "refused"]
"""How a change of the models ended: "partial" when some did not come up, "refused" changed nothing."""

McpOutcome: TypeAlias = Literal["ok", "failed"]
JobItemOutcome: TypeAlias = Literal["done", "failed"]
Memory: TypeAlias = Literal["total", "usable", "held", "free"]
"""Bytes of a device: all; what models may hold; what is promised to them; what the device says is free."""


class ReplicaSample(Protocol):
    """What a scrape reads about one copy of a model."""

    @property
    def state(self) -> str:
        """Its state, as a word."""
        ...


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

    @property
    def footprint(self) -> int:
        """What one replica takes, or is expected to, in bytes; 0 when that is not known."""
        ...

    @property
    def replicas(self) -> Sequence[ReplicaSample]:
        """Its copies."""
        ...


class DeviceSample(NamedTuple):
    """What a scrape reads about one device: its id, and bytes as in `Memory`."""

    device: str
    total: int
    usable: int
    held: int
    free: int


class Metrics:
    """One set of metrics with a registry of its own, so that two daemons in one process do not mix."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=SECONDS)
        self.requests = counter(
            "modeld_requests",
            "Requests by final status; 499: the client left; a stream that failed has its error's status.",
            ["model", "endpoint", "status"],
        )
        self.request_seconds = histogram(
            "modeld_request_duration_seconds",
            "From the request's headers to the end of its answer.",
            ["model", "endpoint"],
        )
        self.first_token_seconds = histogram(
            "modeld_time_to_first_token_seconds",
            "From the request's headers to the first event of the engine, waiting and loading included.",
            ["model"],
        )
        self.requests_in_progress = gauge(
            "modeld_requests_in_progress", "Requests being answered.", ["endpoint"]
        )
        self.prompt_tokens = counter(
            "modeld_prompt_tokens", "Tokens of prompts, those from the cache included.", ["model"]
        )
        self.cached_tokens = counter(
            "modeld_cached_prompt_tokens", "Tokens of prompts that the cache held.", ["model"]
        )
        self.completion_tokens = counter(
            "modeld_completion_tokens", "Tokens that models generated.", ["model"]
        )
        self.stream_chunks = counter(
            "modeld_stream_chunks", "Events written to streaming clients.", ["model"]
        )
        self.client_disconnects = counter(
            "modeld_client_disconnects",
            "Requests whose client left before the end of the answer.",
            ["model", "endpoint"],
        )
        self.auth_failures = counter(
            "modeld_auth_failures", "Requests refused by key, host or origin.", ["reason"]
        )
        self.errors = counter("modeld_internal_errors", "Requests that met a bug in modeld.", ["endpoint"])
        self.load_seconds = histogram(
            "modeld_model_load_seconds",
            "From a worker's start to the end of the load, however it ended.",
            ["model", "loader", "outcome"],
            buckets=LOAD_SECONDS,
        )
        self.loads = counter("modeld_model_loads", "Loads by how they ended.", ["model", "outcome"])
        self.evictions = counter(
            "modeld_evictions", "Models unloaded without having been told to go.", ["model", "reason"]
        )
        self.queue_wait_seconds = histogram(
            "modeld_queue_wait_seconds",
            "From a request's admission to its slot, loading included.",
            ["model"],
        )
        self.overtaken_calls = counter(
            "modeld_calls_overtaken",
            "Times that a waiting request was passed by a later one for a model that was loaded.",
            ["model"],
        )
        self.changes = counter(
            "modeld_config_changes", "Changes of the models in the running daemon.", ["kind", "outcome"]
        )
        self.background_runs = gauge(
            "modeld_background_responses", "Responses in the background that are not over."
        )
        self.background_ended = counter(
            "modeld_background_responses_ended",
            "Responses in the background by how they ended.",
            ["model", "status"],
        )
        self.mcp_calls = counter(
            "modeld_mcp_calls", "Calls of MCP servers' tools by how they ended.", ["model", "outcome"]
        )
        self.jobs = gauge("modeld_jobs", "Jobs that are not over, by status.", ["kind", "status"])
        self.job_items_waiting = gauge(
            "modeld_job_items_waiting", "Items of jobs that nobody works on yet.", ["kind"]
        )
        self.job_oldest = gauge(
            "modeld_job_oldest_seconds",
            "Age of the oldest job that is not over; 0: there is none.",
            ["kind"],
        )
        self.job_wait_seconds = histogram(
            "modeld_job_wait_seconds",
            "From a job's submission to the moment an engine begins with it.",
            ["kind"],
            buckets=JOB_SECONDS,
        )
        self.jobs_ended = counter("modeld_jobs_ended", "Jobs by how they ended.", ["kind", "status"])
        self.job_items_ended = counter(
            "modeld_job_items_ended", "Items of jobs by how they ended.", ["model", "outcome"]
        )
        self.job_items_yielded = counter(
            "modeld_job_items_yielded", "Times an item of a job gave its slot to an interactive request."
        )
        self.batches = gauge("modeld_batches", "Batches that are not over, by status.", ["status"])
        self.batches_ended = counter("modeld_batches_ended", "Batches by how they ended.", ["status"])
        self.files = gauge("modeld_files", "Files of callers and of batches.", ["purpose"])
        self.file_bytes = gauge("modeld_file_bytes", "What those files hold.", ["purpose"])
        ProcessCollector(registry=registry)
        self._counters: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        self._histograms: dict[tuple[Histogram, tuple[str, ...]], Histogram] = {}
        self._gauges: dict[str, Gauge] = {}
        self._footprint_errors: dict[str, float] = {}

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

    def background_response_ended(self, model: str, status: str) -> None:
        """Count a background response that is over."""
        self._counter(self.background_ended, model, status).inc()

    def mcp_called(self, model: str, outcome: McpOutcome) -> None:
        """Count a call of an MCP server's tool."""
        self._counter(self.mcp_calls, model, outcome).inc()

    def jobs_seen(self, kind: str, pending: int, processing: int, waiting: int, oldest_s: float) -> None:
        """Note how much of a kind there is to do: jobs by status, items that wait, the oldest job's age."""
        self.jobs.labels(kind, "pending").set(pending)
        self.jobs.labels(kind, "processing").set(processing)
        self.job_items_waiting.labels(kind).set(waiting)
        self.job_oldest.labels(kind).set(oldest_s)

    def batch_moved(self, before: str | None, after: str, *, over: bool) -> None:
        """Count a batch by the status that it has now; `before`: the one that it had, None: it is new."""
        if before is not None:
            self.batches.labels(before).dec()
        if over:
            self._counter(self.batches_ended, after).inc()
        else:
            self.batches.labels(after).inc()

    def files_changed(self, purpose: str, count: int, size: int) -> None:
        """Count files that have come, or with numbers below 0 gone; `size`: their bytes."""
        self.files.labels(purpose).inc(count)
        self.file_bytes.labels(purpose).inc(size)

    def job_waited(self, kind: str, seconds: float) -> None:
        """Count what a job waited for an engine to begin with it."""
        self._histogram(self.job_wait_seconds, kind).observe(max(seconds, 0.0))

    def job_ended(self, kind: str, status: str) -> None:
        """Count a job that is over."""
        self._counter(self.jobs_ended, kind, status).inc()

    def job_item_ended(self, model: str, outcome: JobItemOutcome) -> None:
        """Count an item of a job that is over."""
        self._counter(self.job_items_ended, model, outcome).inc()

    def model_loaded(self, model: str, loader: str, seconds: float, outcome: LoadOutcome) -> None:
        """Count a load that ended, well or not."""
        self._histogram(self.load_seconds, model, loader, outcome).observe(seconds)
        self._counter(self.loads, model, outcome).inc()

    def evicted(self, model: str, reason: EvictionReason) -> None:
        """Count a model that was unloaded without having been told to go."""
        self._counter(self.evictions, model, reason).inc()

    def queue_waited(self, model: str, seconds: float) -> None:
        """Count what a request waited for its slot; one that did not wait counts with 0."""
        self._histogram(self.queue_wait_seconds, model).observe(seconds)

    def overtaken(self, model: str, calls: int = 1) -> None:
        """Count waiting requests for `model` that a later request for another model went before."""
        self._counter(self.overtaken_calls, model).inc(calls)

    def footprint_measured(self, model: str, expected: int, measured: int) -> None:
        """Note what a loaded replica takes beside what was expected, in bytes; 0 expected says nothing."""
        if expected > 0:
            self._footprint_errors[model] = measured / expected

    def changed(self, kind: ChangeKind, outcome: ChangeOutcome) -> None:
        """Count a change of the models that is over."""
        self._counter(self.changes, kind, outcome).inc()

    def watch_models(self, samples: Callable[[], Iterable[ModelSample]]) -> None:
        """Read the models' states from `samples` at each scrape; a removed model's gauges go with it."""
        self.registry.register(_Models(samples, self._footprint_errors))

    def watch_devices(self, samples: Callable[[], Iterable[DeviceSample]]) -> None:
        """Read the devices' memory from `samples` at each scrape.

        They should be those of the last look: a scrape must neither block nor keep a GPU awake.
        """
        self.registry.register(_Devices(samples))

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
    def __init__(
        self, samples: Callable[[], Iterable[ModelSample]], footprint_errors: dict[str, float]
    ) -> None:
        self._samples = samples
        self._footprint_errors = footprint_errors

    def describe(self) -> Iterable[Metric]:
        return ()  # the samples need not be there yet when this is registered

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "modeld_model_state", "1 for the state the model is in.", labels=["model", "state"]
        )
        replicas = GaugeMetricFamily(
            "modeld_model_replicas", "Copies of the model by their state.", labels=["model", "state"]
        )
        memory = GaugeMetricFamily(
            "modeld_model_memory_bytes", "Memory of the model's workers.", labels=["model"]
        )
        footprint = GaugeMetricFamily(
            "modeld_footprint_bytes", "What one replica takes, or is expected to.", labels=["model"]
        )
        ratio = GaugeMetricFamily(
            "modeld_footprint_error_ratio",
            "What the last load was measured to take, divided by what had been expected.",
            labels=["model"],
        )
        flight = GaugeMetricFamily("modeld_model_calls_in_flight", "Calls being worked on.", labels=["model"])
        queued = GaugeMetricFamily("modeld_model_calls_queued", "Calls that wait.", labels=["model"])
        restarts = CounterMetricFamily("modeld_model_restarts", "Restarts after crashes.", labels=["model"])
        errors = self._footprint_errors
        names: set[str] = set()
        for sample in self._samples():
            names.add(sample.name)
            label = [sample.name]
            state.add_metric([sample.name, str(sample.state)], 1)
            # "ready" always, so that nobody's alert on too few of them loses its series when it matters.
            counts = Counts({"ready": 0})
            counts.update(str(replica.state) for replica in sample.replicas)
            for word, count in counts.items():
                replicas.add_metric([sample.name, word], count)
            memory.add_metric(label, sample.bytes_used)
            if sample.footprint:
                footprint.add_metric(label, sample.footprint)
            if sample.name in errors:
                ratio.add_metric(label, errors[sample.name])
            flight.add_metric(label, sample.in_flight)
            queued.add_metric(label, sample.queued)
            restarts.add_metric(label, sample.restarts)
        for gone in errors.keys() - names:
            del errors[gone]
        yield from (state, replicas, memory, footprint, ratio, flight, queued, restarts)


class _Devices(Collector):
    def __init__(self, samples: Callable[[], Iterable[DeviceSample]]) -> None:
        self._samples = samples

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            "modeld_device_memory_bytes", "Memory of a device, by kind.", labels=["device", "kind"]
        )
        for sample in self._samples():
            sizes: dict[Memory, int] = {
                "total": sample.total,
                "usable": sample.usable,
                "held": sample.held,
                "free": sample.free,
            }
            for kind, size in sizes.items():
                memory.add_metric([sample.device, kind], size)
        yield memory

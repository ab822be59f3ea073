"""The gateway's own metrics as Prometheus reads them: requests, workers, event streams, index, event loop."""

from collections.abc import Callable, Iterable, Iterator
from platform import python_version

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as RegistryCollector

from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.fleet import Fleet, Member
from gateway.core.ledger import Ledger
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Applied, Index
from gateway.observability.metric_spec import Merge, MetricSpec, counter, gauge, histogram
from gateway.observability.metrics import Metrics, PauseHistogram, WorkerMetrics

StreamCountsOf = Callable[[], Iterable[tuple[WorkerId, StreamCounts]]]

BUILD = gauge(
    "kvgate_build_info",
    "Version of kvgate and of Python, and whether the data path is compiled to machine code. Always 1.",
    *("version", "python", "compiled"),
)
RESPONSES = counter("kvgate_responses_total", "HTTP responses to clients, by status code.", "code")
REQUESTS = counter(
    "kvgate_requests_total",
    "Inference requests that ended, by model, kind of route and class of the status code. A model that no "
    "worker serves counts as 'unknown'.",
    *("model", "route", "status"),
)
REQUEST_SECONDS = histogram(
    "kvgate_request_duration_seconds",
    "Duration of inference requests in seconds, from arrival to the last byte of the response, by kind of "
    "route and class of the status code.",
    *("route", "status"),
)
GATEWAY_ERRORS = counter(
    "kvgate_gateway_errors_total",
    "Error responses that kvgate generated, by error code. Errors that a worker answered are not included.",
    "error",
)
RETRIES = counter(
    "kvgate_retries_total", "Requests sent again to another worker, by reason for the retry.", "reason"
)
PROMPTS = counter("kvgate_prompts_total", "Routed prompts, by source of the prompt's tokens.", "source")
TOKENIZATION_FAILURES = counter(
    "kvgate_prompt_tokenization_failures_total",
    "Prompts routed by load alone because tokenizing failed, by model. A model that no worker serves "
    "counts as 'unknown'.",
    "model",
)
RUN_MISMATCHES = counter(
    "kvgate_token_run_mismatches_total",
    "Prompts assembled from cached token runs that differed from the fully rendered prompt, by model.",
    "model",
)
DISCONNECTS = counter("kvgate_client_disconnects_total", "Client disconnects before the end of the response.")
RECORDED = counter(
    "kvgate_recorder_written_requests_total", "Finished requests written to the --record file."
)
UNRECORDED = counter(
    "kvgate_recorder_dropped_requests_total",
    "Finished requests missing from the --record file because the queue, the file or the disk was full.",
)
CONNECTIONS = gauge("kvgate_client_connections", "Open client connections.", merge=Merge.SUM)
TUNNELS = gauge("kvgate_websocket_tunnels", "Open WebSocket tunnels.", merge=Merge.SUM)
TUNNEL_BYTES = counter(
    "kvgate_websocket_tunnel_bytes_total", "Bytes relayed through WebSocket tunnels, by sender.", "sender"
)
TLS_RELOADS = counter(
    "kvgate_tls_certificate_reloads_total", "Reloads of changed TLS certificate files, by result.", "result"
)
STAGE_SECONDS = histogram(
    "kvgate_decision_stage_duration_seconds",
    "Duration of each stage of a routing decision in seconds.",
    "stage",
)

LOOP_LAG = histogram(
    "kvgate_event_loop_lag_seconds", "Delay of scheduled callbacks on the event loop in seconds."
)
LOOP_LAG_MAX = gauge(
    "kvgate_event_loop_lag_max_seconds",
    "Longest delay of a scheduled callback on the event loop since the previous scrape, in seconds.",
)
LOOP_CPU_LAG = histogram(
    "kvgate_event_loop_cpu_lag_seconds",
    "Share of the event loop's delay during which the event loop's thread used the CPU, in seconds.",
)
LOOP_CPU_LAG_MAX = gauge(
    "kvgate_event_loop_cpu_lag_max_seconds",
    "Longest delay that the event loop's own CPU use caused since the previous scrape, in seconds.",
)
GC_PAUSE = histogram("kvgate_gc_pause_seconds", "Duration of pauses for garbage collection in seconds.")
GC_PAUSE_MAX = gauge(
    "kvgate_gc_pause_max_seconds",
    "Longest pause for garbage collection since the previous scrape, in seconds.",
)

TTFT = histogram(
    "kvgate_ttft_seconds",
    "Time to first token of streamed answers in seconds, from the request's arrival, by worker.",
    "worker",
)
ITL = histogram(
    "kvgate_itl_seconds",
    "Time between consecutive chunks of streamed answers in seconds, by worker.",
    "worker",
)

IN_FLIGHT = gauge(
    "kvgate_worker_requests_in_flight", "Requests sent to the worker and not finished.", "worker"
)
BOOKED = gauge(
    "kvgate_worker_booked_prompt_tokens",
    "Uncached prompt tokens sent to the worker and not yet prefilled.",
    "worker",
)
STREAM_STATE = gauge(
    "kvgate_event_stream_state",
    "State of the worker's KV event stream: 1 for the current state, 0 for the others.",
    *("worker", "state"),
)
BLOCKS = gauge("kvgate_index_blocks", "Blocks in the index that KV events reported, by worker.", "worker")
ASSUMED = gauge(
    "kvgate_index_assumed_blocks",
    "Blocks in the index that KV events have not confirmed, assumed from finished requests, by worker.",
    "worker",
    merge=Merge.SUM,
)
PINNED = gauge(
    "kvgate_index_pinned_blocks",
    "Blocks in the index that requests in flight will store, by worker.",
    "worker",
)

_TRAFFIC: tuple[tuple[MetricSpec, Callable[[WorkerMetrics], float]], ...] = (
    (
        counter("kvgate_worker_requests_total", "Requests sent to the worker.", "worker"),
        lambda w: w.num_requests,
    ),
    (
        counter(
            "kvgate_worker_failed_requests_total",
            "Requests that the worker did not answer completely.",
            "worker",
        ),
        lambda w: w.num_failed,
    ),
    (
        counter(
            "kvgate_worker_rejections_total",
            "Requests that the worker rejected because of saturation (503 or 429).",
            "worker",
        ),
        lambda w: w.num_rejected,
    ),
    (
        counter("kvgate_worker_prompt_tokens_total", "Prompt tokens sent to the worker.", "worker"),
        lambda w: w.prompt_tokens,
    ),
    (
        counter(
            "kvgate_worker_predicted_cached_tokens_total",
            "Prompt tokens sent to the worker that were predicted to be cached there.",
            "worker",
        ),
        lambda w: w.predicted_cached_tokens,
    ),
    (
        counter(
            "kvgate_worker_output_tokens_total",
            "Output tokens that the engine reported in answers.",
            "worker",
        ),
        lambda w: w.completion_tokens,
    ),
    (
        counter(
            "kvgate_worker_invalid_usages_total",
            "Answers with an impossible token usage, which was ignored.",
            "worker",
        ),
        lambda w: w.num_refused_usages,
    ),
    (
        counter(
            "kvgate_worker_reported_answers_total",
            "Answers in which the engine reported the prompt's cached tokens.",
            "worker",
        ),
        lambda w: w.num_reported,
    ),
    (
        counter(
            "kvgate_worker_reported_prompt_tokens_total",
            "Prompt tokens of answers in which the engine reported the prompt's cached tokens.",
            "worker",
        ),
        lambda w: w.reported_prompt_tokens,
    ),
    (
        counter(
            "kvgate_worker_reported_cached_tokens_total",
            "Cached prompt tokens that the engine reported in answers.",
            "worker",
        ),
        lambda w: w.reported_cached_tokens,
    ),
    (
        counter(
            "kvgate_prediction_compared_tokens_total",
            "Predicted cached tokens of answers in which the engine reported the prompt's cached tokens.",
            "worker",
        ),
        lambda w: w.compared_predicted_tokens,
    ),
    (
        counter(
            "kvgate_prediction_error_tokens_total",
            "Absolute differences between reported and predicted cached tokens, added up over answers.",
            "worker",
        ),
        lambda w: w.prediction_error_tokens,
    ),
    (
        counter(
            "kvgate_prediction_unknown_tokens_total",
            "Cached tokens beyond the prediction at workers without exact KV events: not counted as errors.",
            "worker",
        ),
        lambda w: w.unknown_cached_tokens,
    ),
)

_MEMBERS: tuple[tuple[MetricSpec, Callable[[Member], float | None]], ...] = (
    (
        gauge("kvgate_worker_up", "1 if the worker answers probes, else 0.", "worker", merge=Merge.MIN),
        lambda m: float(m.is_up),
    ),
    (
        gauge("kvgate_engine_running_requests", "Running requests, absent where none is reported.", "worker"),
        lambda m: m.reported.shown("num_running"),
    ),
    (
        gauge("kvgate_engine_waiting_requests", "Waiting requests, absent where none is reported.", "worker"),
        lambda m: m.reported.shown("num_waiting"),
    ),
    (
        gauge(
            "kvgate_engine_kv_cache_usage_ratio",
            "Share of the KV cache in use, from 0 to 1, absent where the engine reports none.",
            "worker",
        ),
        lambda m: m.reported.shown("kv_usage"),
    ),
)

_STREAMS: tuple[tuple[MetricSpec, Callable[[StreamCounts], float]], ...] = (
    (
        counter("kvgate_event_stream_batches_total", "KV event batches applied to the index.", "worker"),
        lambda c: c.num_batches,
    ),
    (
        counter(
            "kvgate_event_stream_gaps_total", "Gaps in the sequence numbers of KV event batches.", "worker"
        ),
        lambda c: c.num_gaps,
    ),
    (
        counter(
            "kvgate_event_stream_resets_total",
            "Resets of the worker's blocks in the index after a restart or a gap that no replay filled.",
            "worker",
        ),
        lambda c: c.num_resets,
    ),
    (
        counter(
            "kvgate_event_stream_duplicate_batches_total",
            "Duplicate KV event batches, which were dropped.",
            "worker",
        ),
        lambda c: c.num_repeats,
    ),
    (
        counter(
            "kvgate_event_stream_undecodable_batches_total",
            "KV event batches that could not be decoded.",
            "worker",
        ),
        lambda c: c.num_undecodable,
    ),
    (
        counter(
            "kvgate_event_stream_overflows_total",
            "Suspensions of the worker's KV event stream because of too many or too large events.",
            "worker",
        ),
        lambda c: c.num_cuts,
    ),
    (
        counter(
            "kvgate_event_stream_index_checks_total",
            "Comparisons of the worker's blocks in the index with the state of the worker's agent.",
            "worker",
        ),
        lambda c: c.num_samples,
    ),
    (
        counter(
            "kvgate_event_stream_index_check_failures_total",
            "Comparisons of the index with the agent's state that found a difference.",
            "worker",
        ),
        lambda c: c.num_drifts,
    ),
)

_APPLIED: tuple[tuple[MetricSpec, Callable[[Applied], float]], ...] = (
    (
        counter("kvgate_index_stored_blocks_total", "Blocks that KV events added to the index.", "worker"),
        lambda a: a.num_stored,
    ),
    (
        counter(
            "kvgate_index_removed_blocks_total", "Blocks that KV events removed from the index.", "worker"
        ),
        lambda a: a.num_removed,
    ),
    (
        counter(
            "kvgate_index_orphan_blocks_total",
            "Stored blocks without a known parent block, which cannot be added to the index.",
            "worker",
        ),
        lambda a: a.num_orphans,
    ),
    (
        counter(
            "kvgate_index_unknown_removals_total",
            "Removals of blocks that were not in the index.",
            "worker",
        ),
        lambda a: a.num_unknown_removals,
    ),
    (
        counter(
            "kvgate_index_mismatched_events_total",
            "Stored events with a number of tokens that does not fit the blocks or the worker's block size.",
            "worker",
        ),
        lambda a: a.num_mismatched,
    ),
    (
        counter(
            "kvgate_index_unknown_events_total",
            "KV events of an unknown type, or of more media or groups than are followed.",
            "worker",
        ),
        lambda a: a.num_unknown_events,
    ),
)
UNPLACED = counter(
    "kvgate_index_unplaced_blocks_total",
    "Blocks of a medium other than the GPU that cannot be placed: unknown parents, chunks of another size.",
    *("worker", "medium"),
)

METRICS = (
    *(BUILD, RESPONSES, REQUESTS, REQUEST_SECONDS, GATEWAY_ERRORS, RETRIES, PROMPTS),
    *(TOKENIZATION_FAILURES, RUN_MISMATCHES, DISCONNECTS, RECORDED, UNRECORDED, CONNECTIONS, TUNNELS),
    *(TUNNEL_BYTES, TLS_RELOADS, STAGE_SECONDS, LOOP_LAG, LOOP_LAG_MAX, LOOP_CPU_LAG, LOOP_CPU_LAG_MAX),
    *(GC_PAUSE, GC_PAUSE_MAX, TTFT, ITL, IN_FLIGHT, BOOKED, STREAM_STATE, BLOCKS, ASSUMED, PINNED),
    *(UNPLACED, *(spec for spec, _ in (*_TRAFFIC, *_MEMBERS, *_STREAMS, *_APPLIED))),
)


class MetricsCollector(RegistryCollector):
    """Reads the metrics, and the state of the components that keep counts of their own, at each scrape.
    `build` is kvgate's version and whether the data path is compiled."""

    def __init__(
        self,
        metrics: Metrics,
        fleet: Fleet,
        ledger: Ledger,
        index: Index,
        assumed: AssumedIndex,
        streams: StreamCountsOf,
        num_connections: Callable[[], int],
        build: tuple[str, bool],
    ) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._ledger = ledger
        self._index = index
        self._assumed = assumed
        self._streams = streams
        self._num_connections = num_connections
        self._build = build

    def collect(self) -> Iterator[Metric]:
        version, is_compiled = self._build
        yield BUILD.family([((version, python_version(), str(is_compiled).lower()), 1)])
        yield from self._requests()
        yield from self._process()
        yield from self._pauses()
        yield from self._traffic()
        yield from self._members()
        yield from self._stream_counts()
        yield from self._index_counts()

    def _requests(self) -> Iterator[Metric]:
        m = self._metrics
        yield RESPONSES.family((str(code), num) for code, num in m.responses.items())
        yield REQUESTS.family(m.requests.items())
        yield REQUEST_SECONDS.histograms(m.request_s.items())
        yield GATEWAY_ERRORS.family(m.errors.items())
        yield RETRIES.family(m.retries.items())
        yield PROMPTS.family(m.prompt_sources.items())
        yield TOKENIZATION_FAILURES.family(m.prompt_failures.items())
        yield RUN_MISMATCHES.family(m.prompt_mismatches.items())
        yield DISCONNECTS.single(m.num_client_disconnects)

    def _process(self) -> Iterator[Metric]:
        m = self._metrics
        yield RECORDED.single(m.num_recorded)
        yield UNRECORDED.single(m.num_unqueued + m.num_unwritten)
        yield CONNECTIONS.single(self._num_connections())
        yield TUNNELS.single(m.num_tunnels_open)
        yield TUNNEL_BYTES.family(m.tunnel_bytes.items())
        yield TLS_RELOADS.family(m.tls_loads.items())
        yield STAGE_SECONDS.histograms(sorted(m.stages_s.items()))

    def _pauses(self) -> Iterator[Metric]:
        m = self._metrics
        pauses: tuple[tuple[MetricSpec, MetricSpec, PauseHistogram], ...] = (
            (LOOP_LAG, LOOP_LAG_MAX, m.loop_lag_s),
            (LOOP_CPU_LAG, LOOP_CPU_LAG_MAX, m.loop_lag_cpu_s),
            (GC_PAUSE, GC_PAUSE_MAX, m.gc_pause_s),
        )
        for all_of_them, longest, durations in pauses:
            yield all_of_them.histograms([((), durations)])
            yield longest.single(durations.take_worst_s())

    def _traffic(self) -> Iterator[Metric]:
        rows = sorted(self._metrics.items())
        for spec, read in _TRAFFIC:
            yield spec.family([(worker, read(w)) for worker, w in rows])
        yield TTFT.histograms([(worker, w.ttft_s) for worker, w in rows])
        yield ITL.histograms([(worker, w.itl_s) for worker, w in rows])

    def _members(self) -> Iterator[Metric]:
        members = list(self._fleet)
        for spec, read in _MEMBERS:
            yield spec.family([(m.worker.id, value) for m in members if (value := read(m)) is not None])
        loads = [(m.worker.id, self._ledger.here(m.worker.id)) for m in members]
        yield IN_FLIGHT.family([(worker, load.num_in_flight) for worker, load in loads])
        yield BOOKED.family([(worker, load.booked_tokens) for worker, load in loads])
        yield STREAM_STATE.family(
            [((m.worker.id, state.value), float(m.stream is state)) for m in members for state in StreamState]
        )

    def _stream_counts(self) -> Iterator[Metric]:
        rows = list(self._streams())
        for spec, read in _STREAMS:
            yield spec.family([(worker, read(counts)) for worker, counts in rows])

    def _index_counts(self) -> Iterator[Metric]:
        ids = [m.worker.id for m in self._fleet]
        yield BLOCKS.family([(i, self._index.num_blocks(i)) for i in ids])
        yield ASSUMED.family([(i, self._assumed.num_kept(i)) for i in ids])
        yield PINNED.family([(i, self._assumed.num_pinned(i)) for i in ids])
        for spec, read in _APPLIED:
            yield spec.family([(i, read(self._index.applied(i))) for i in ids])
        unplaced = ((i, medium, n) for i in ids for medium, n in self._index.applied(i).unplaced.items())
        yield UNPLACED.family([((i, medium), num) for i, medium, num in unplaced])


def registry_of(collectors: Iterable[RegistryCollector]) -> CollectorRegistry:
    """A registry of the given collectors and of prometheus-client's own about the process."""
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR, *collectors):
        registry.register(collector)
    return registry

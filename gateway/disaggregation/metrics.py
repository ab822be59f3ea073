"""Metrics of disaggregation: plans, failures, durations, and the load at prefill workers."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.worker import Role
from gateway.disaggregation.stats import DisaggregationStats
from gateway.observability.metric_spec import Merge, counter, gauge, histogram
from gateway.routing.router import Router

PLANS = counter(
    "kvgate_disaggregation_plans_total",
    "Requests that prefill workers could have served, by plan and reason for the plan.",
    *("plan", "reason"),
)
FAILURES = counter(
    "kvgate_disaggregation_failures_total",
    "Disaggregated requests with a failed prefill leg or KV transfer, by reason.",
    "reason",
)
TTFT = histogram(
    "kvgate_disaggregation_ttft_seconds",
    "Time to first token of streamed answers in seconds, by plan.",
    "plan",
)
PREFILL_SECONDS = histogram(
    "kvgate_prefill_leg_duration_seconds",
    "Duration of prefill legs in seconds, from the request's arrival to the prefill worker's answer.",
)
TRANSFER_SECONDS = histogram(
    "kvgate_kv_transfer_duration_seconds",
    "Time in seconds from the prefill worker's answer to the decode worker's first token.",
)
TRANSFER_TOKENS = counter(
    "kvgate_kv_transfer_tokens_total", "Prompt tokens transferred from prefill workers to decode workers."
)
MISMATCHES = counter(
    "kvgate_disaggregation_prompt_mismatches_total",
    "Disaggregated requests with different prompts on the prefill leg and the decode leg.",
)
LEGS = gauge(
    "kvgate_prefill_legs_in_flight",
    "Prefill legs sent to the worker and not answered.",
    "worker",
    merge=Merge.SUM,
)
LEG_TOKENS = gauge(
    "kvgate_prefill_legs_in_flight_tokens",
    "Uncached prompt tokens of prefill legs sent to the worker and not answered.",
    "worker",
    merge=Merge.SUM,
)
PINNED_BLOCKS = gauge(
    "kvgate_prefill_pinned_blocks",
    "Blocks on the prefill worker that a decode worker has not fetched yet.",
    "worker",
    merge=Merge.SUM,
)
PINNED_TOKENS = gauge(
    "kvgate_prefill_pinned_tokens",
    "Prompt tokens on the prefill worker that a decode worker has not fetched yet.",
    "worker",
    merge=Merge.SUM,
)
ENGINE_BYTES = counter(
    "kvgate_engine_kv_transfer_bytes_total",
    "Bytes of KV cache fetched from other workers that the engine reported.",
    "worker",
    merge=Merge.MAX,
)
ENGINE_SECONDS = counter(
    "kvgate_engine_kv_transfer_seconds_total",
    "Time in seconds spent fetching KV cache from other workers that the engine reported.",
    "worker",
    merge=Merge.MAX,
)

METRICS = (
    *(PLANS, FAILURES, TTFT, PREFILL_SECONDS, TRANSFER_SECONDS, TRANSFER_TOKENS, MISMATCHES),
    *(LEGS, LEG_TOKENS, PINNED_BLOCKS, PINNED_TOKENS, ENGINE_BYTES, ENGINE_SECONDS),
)


class DisaggregationCollector(Collector):
    def __init__(self, disaggregation_stats: DisaggregationStats, router: Router) -> None:
        self._stats = disaggregation_stats
        self._router = router

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield PLANS.family(stats.plans.items())
        yield FAILURES.family(stats.failures.items())
        yield TTFT.histograms(stats.ttft_s.items())
        yield PREFILL_SECONDS.histograms([((), stats.prefill_s)])
        yield TRANSFER_SECONDS.histograms([((), stats.transfer_s)])
        yield TRANSFER_TOKENS.single(stats.moved_tokens)
        yield MISMATCHES.single(stats.num_mismatches)
        yield from self._prefill_load()
        yield from self._engine_counters()

    def _prefill_load(self) -> Iterator[Metric]:
        """The load that this gateway put on each prefill worker."""
        idle = [member.worker.id for member in self._router.fleet if member.worker.role is Role.PREFILL]
        queued, queued_tokens = Counter(dict.fromkeys(idle, 0)), Counter(dict.fromkeys(idle, 0))
        blocks, tokens = queued.copy(), queued.copy()
        for booking in self._router.prefilling():
            queued[booking.worker] += 1
            queued_tokens[booking.worker] += booking.uncached_tokens
        for pinned in self._stats.pinned.values():
            blocks[pinned.worker] += pinned.num_blocks
            tokens[pinned.worker] += pinned.num_tokens
        yield LEGS.family(queued.items())
        yield LEG_TOKENS.family(queued_tokens.items())
        yield PINNED_BLOCKS.family(blocks.items())
        yield PINNED_TOKENS.family(tokens.items())

    def _engine_counters(self) -> Iterator[Metric]:
        """Counters of KV transfers that engines export themselves, where they do."""
        reported = [(member.worker.id, member.reported) for member in self._router.fleet]
        yield ENGINE_BYTES.family(
            (worker, each.transfer_bytes) for worker, each in reported if each.transfer_bytes is not None
        )
        yield ENGINE_SECONDS.family(
            (worker, each.transfer_s) for worker, each in reported if each.transfer_s is not None
        )

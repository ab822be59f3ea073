"""Split requests in Prometheus' terms: plans and why, failures, times, and what waits at prefill workers."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.worker import Role
from gateway.disaggregation.stats import Splits
from gateway.routing.router import Router


class SplitsCollector(Collector):
    def __init__(self, splits: Splits, router: Router) -> None:
        self._splits = splits
        self._router = router

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        splits = self._splits
        plans = CounterMetricFamily(
            "kvgate_plans", "Requests that prefill workers could have served", labels=["plan", "reason"]
        )
        for (plan, reason), count in splits.plans.items():
            plans.add_metric([plan, reason], count)
        yield plans
        fallbacks = CounterMetricFamily(
            "kvgate_split_failures", "Split requests whose prefill or transfer failed", labels=["cause"]
        )
        for cause, count in splits.failures.items():
            fallbacks.add_metric([cause], count)
        yield fallbacks
        ttft = HistogramMetricFamily(
            "kvgate_plan_ttft_seconds", "Time to first token of streamed answers by plan", labels=["plan"]
        )
        for plan, histogram in splits.ttft_s.items():
            ttft.add_metric([plan], histogram.buckets(), histogram.sum)
        yield ttft
        for name, text, one in (
            ("prefill_seconds", "Until a prefill worker has answered", splits.prefill_s),
            ("transfer_seconds", "From its answer to the decode worker's first token", splits.transfer_s),
        ):
            family = HistogramMetricFamily(f"kvgate_{name}", text)
            family.add_metric([], one.buckets(), one.sum)
            yield family
        for name, text, value in (
            ("transferred_tokens", "Prompt tokens that went to decode workers", splits.moved_tokens),
            ("leg_mismatches", "Split requests whose legs saw different prompts", splits.num_mismatches),
        ):
            counter = CounterMetricFamily(f"kvgate_{name}", text)
            counter.add_metric([], value)
            yield counter
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        """Of each prefill worker, as far as this gateway sent it there."""
        idle = [member.worker.id for member in self._router.fleet if member.worker.role is Role.PREFILL]
        queued, queued_tokens = Counter(dict.fromkeys(idle, 0)), Counter(dict.fromkeys(idle, 0))
        blocks, tokens = queued.copy(), queued.copy()
        for booking in self._router.prefilling():
            queued[booking.worker] += 1
            queued_tokens[booking.worker] += booking.uncached_tokens
        for pinned in self._splits.pinned.values():
            blocks[pinned.worker] += pinned.num_blocks
            tokens[pinned.worker] += pinned.num_tokens
        yield from self._told()
        for name, text, values in (
            ("prefill_queue_requests", "Prefill legs sent there and not answered", queued),
            ("prefill_queue_tokens", "Uncached prompt tokens of these", queued_tokens),
            ("prefill_pinned_blocks", "Blocks handed on from there and not yet fetched", blocks),
            ("prefill_pinned_tokens", "Prompt tokens handed on from there and not yet fetched", tokens),
        ):
            family = GaugeMetricFamily(f"kvgate_{name}", text, labels=["worker"])
            for worker, value in values.items():
                family.add_metric([worker], value)
            yield family

    def _told(self) -> Iterator[Metric]:
        """What engines count themselves of the caches that came to them."""
        for name, text, field in (
            ("engine_transferred_bytes", "Bytes of KV cache that it fetched from others", "transfer_bytes"),
            ("engine_transfer_seconds", "Time in which it fetched them", "transfer_s"),
        ):
            family = CounterMetricFamily(f"kvgate_{name}", f"{text}, as it says", labels=["worker"])
            for member in self._router.fleet:
                value = getattr(member.reported, field)
                if value is not None:
                    family.add_metric([member.worker.id], value)
            yield family

"""What is told of who asks: refusals by reason, and what the guard goes by."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.keys.keeper import Keeper


class KeysCollector(Collector):
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        guard, file = self._keeper.guard, self._keeper.file
        if guard is None:
            return
        refusals = CounterMetricFamily(
            "kvgate_auth_refusals", "Requests of whom we do not know, or who may not", labels=["reason"]
        )
        for reason, num in sorted(guard.refusals.items()):
            refusals.add_metric([reason], num)
        yield refusals
        if file:
            yield GaugeMetricFamily("kvgate_keys", "API keys in the file", value=len(file.ring.entries))
            loads = CounterMetricFamily(
                "kvgate_key_loads", "Changed key files that were loaded or refused", labels=["result"]
            )
            for result in ("loaded", "refused"):
                loads.add_metric([result], file.loads[result])
            yield loads
        if witness := self._keeper.witness:
            yield CounterMetricFamily(
                "kvgate_salt_given_up_tokens",
                "Prompt tokens that would have been cached if tenants shared, about",
                value=witness.given_up.num_tokens,
            )
            yield CounterMetricFamily(
                "kvgate_salt_prompt_tokens",
                "Prompt tokens that were looked at for it",
                value=witness.given_up.num_seen,
            )
            yield CounterMetricFamily(
                "kvgate_salt_left_out_requests",
                "Requests that there was no time to look at for it",
                value=witness.num_left_out,
            )

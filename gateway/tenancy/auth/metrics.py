"""What is told of who asks: refusals by reason, and what the guard goes by."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.tenancy.auth.credentials import Keeper


class KeysCollector(Collector):
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if self._keeper.guard is not None:
            yield _counters(
                "kvgate_auth_refusals",
                "Requests of whom we do not know, or who may not",
                "reason",
                self._keeper.guard.refusals,
            )
            yield from self._files()
            yield from self._salts()

    def _files(self) -> Iterator[Metric]:
        if file := self._keeper.file:
            yield GaugeMetricFamily("kvgate_keys", "API keys in the file", value=len(file.ring.entries))
            loads = {result: file.loads[result] for result in ("loaded", "refused")}
            yield _counters(
                "kvgate_key_loads", "Changed key files that were loaded or refused", "result", loads
            )
        if (jwt := self._keeper.jwt) and (jwks := self._keeper.jwks):
            yield GaugeMetricFamily("kvgate_jwt_keys", "Public keys for tokens", value=jwt.num_keys)
            fetches = {result: jwks.fetches[result] for result in ("fetched", "failed")}
            yield _counters("kvgate_jwt_key_fetches", "Fetches of public keys for tokens", "result", fetches)

    def _salts(self) -> Iterator[Metric]:
        if witness := self._keeper.witness:
            for name, text, value in (
                (
                    "given_up_tokens",
                    "Prompt tokens that would have been cached if tenants shared, about",
                    witness.given_up.num_tokens,
                ),
                ("prompt_tokens", "Prompt tokens that were looked at for it", witness.given_up.num_seen),
                ("left_out_requests", "Requests that there was no time to look at", witness.num_left_out),
            ):
                yield CounterMetricFamily(f"kvgate_salt_{name}", text, value=value)


def _counters(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, num in sorted(counts.items()):
        family.add_metric([key], num)
    return family

"""Metrics of authentication: rejections by reason, keys loaded, and the cost of salts."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.tenancy.auth.credentials import Credentials


class KeysCollector(Collector):
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if self._credentials.authenticator is not None:
            yield _counters(
                "kvgate_auth_refusals",
                "Requests rejected by authentication, by reason",
                "reason",
                self._credentials.authenticator.refusals,
            )
            yield from self._files()
            yield from self._salts()

    def _files(self) -> Iterator[Metric]:
        if file := self._credentials.file:
            yield GaugeMetricFamily("kvgate_keys", "API keys in the file", value=len(file.ring.entries))
            loads = {result: file.loads[result] for result in ("loaded", "refused")}
            yield _counters(
                "kvgate_key_loads", "Changed key files, by whether they could be loaded", "result", loads
            )
        if (jwt := self._credentials.jwt) and (jwks := self._credentials.jwks):
            yield GaugeMetricFamily("kvgate_jwt_keys", "Public keys for tokens", value=jwt.num_keys)
            fetches = {result: jwks.fetches[result] for result in ("fetched", "failed")}
            yield _counters("kvgate_jwt_key_fetches", "Fetches of public keys for tokens", "result", fetches)

    def _salts(self) -> Iterator[Metric]:
        if salt_observer := self._credentials.salt_observer:
            for name, text, value in (
                (
                    "given_up_tokens",
                    "Prompt tokens that a cache shared by all tenants would have saved (estimate)",
                    salt_observer.salt_cost.num_tokens,
                ),
                (
                    "prompt_tokens",
                    "Prompt tokens examined for the estimate",
                    salt_observer.salt_cost.num_seen,
                ),
                (
                    "left_out_requests",
                    "Requests skipped by the estimate for lack of time",
                    salt_observer.num_left_out,
                ),
            ):
                yield CounterMetricFamily(f"kvgate_salt_{name}", text, value=value)


def _counters(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, num in sorted(counts.items()):
        family.add_metric([key], num)
    return family

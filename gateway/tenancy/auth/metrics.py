"""Metrics of authentication: rejections by reason, the keys in use, and the cost of tenants' cache salts."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import counter, gauge
from gateway.tenancy.auth.credentials import Credentials

REJECTIONS = counter(
    "kvgate_auth_rejections_total",
    "Requests rejected because of missing, invalid or insufficient credentials, by reason.",
    "reason",
)
API_KEYS = gauge("kvgate_api_keys", "API keys in the key file.")
KEY_FILE_RELOADS = counter(
    "kvgate_key_file_reloads_total", "Reloads of a changed key file, by result.", "result"
)
KEY_FILE_AGE = gauge(
    "kvgate_key_file_age_seconds",
    "Seconds since the keys in use were last found in the key file, by the option that names the file.",
    "source",
)
JWKS_KEYS = gauge("kvgate_jwks_keys", "Public keys that verify JSON Web Tokens.")
JWKS_AGE = gauge(
    "kvgate_jwks_age_seconds",
    "Seconds since public keys that verify JSON Web Tokens were last fetched, or since the start.",
)
JWKS_FETCHES = counter(
    "kvgate_jwks_fetches_total", "Fetches of public keys that verify JSON Web Tokens, by result.", "result"
)
SALT_LOST = counter(
    "kvgate_tenant_salt_lost_tokens_total",
    "Estimate of prompt tokens that would have been cached if tenants shared the prefix cache.",
)
SALT_EXAMINED = counter(
    "kvgate_tenant_salt_examined_tokens_total",
    "Prompt tokens examined for the estimate kvgate_tenant_salt_lost_tokens_total.",
)
SALT_SKIPPED = counter(
    "kvgate_tenant_salt_skipped_requests_total",
    "Requests left out of the estimate kvgate_tenant_salt_lost_tokens_total to save CPU time.",
)

METRICS = (
    *(REJECTIONS, API_KEYS, KEY_FILE_RELOADS, KEY_FILE_AGE, JWKS_KEYS, JWKS_AGE, JWKS_FETCHES),
    *(SALT_LOST, SALT_EXAMINED, SALT_SKIPPED),
)


class KeysCollector(Collector):
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def collect(self) -> Iterator[Metric]:
        if files := self._credentials.files:
            yield KEY_FILE_AGE.family((name, file.age_s) for name, file in files)
        if self._credentials.authenticator is not None:
            yield REJECTIONS.family(sorted(self._credentials.authenticator.refusals.items()))
            yield from self._keys()
            yield from self._salts()

    def _keys(self) -> Iterator[Metric]:
        if file := self._credentials.file:
            yield API_KEYS.single(len(file.ring.entries))
            yield KEY_FILE_RELOADS.family((result, file.loads[result]) for result in ("loaded", "rejected"))
        if (jwt := self._credentials.jwt) and (jwks := self._credentials.jwks):
            yield JWKS_KEYS.single(jwt.num_keys)
            yield JWKS_AGE.single(jwks.age_s)
            yield JWKS_FETCHES.family((result, jwks.fetches[result]) for result in ("failed", "fetched"))

    def _salts(self) -> Iterator[Metric]:
        if observer := self._credentials.salt_observer:
            yield SALT_LOST.single(observer.salt_cost.num_tokens)
            yield SALT_EXAMINED.single(observer.salt_cost.num_seen)
            yield SALT_SKIPPED.single(observer.num_left_out)

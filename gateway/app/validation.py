"""The checks of a configuration that need no worker: every part reads its options, and may reject them."""

from collections.abc import Callable

from engines import DEFAULT_CONNECTORS, ENGINES, KV_CONNECTORS
from gateway.app.index_backend import backend_of
from gateway.app.parts.client_surface import ClientSurfacePart
from gateway.app.parts.grpc_ports import certificate_of
from gateway.app.parts.scaling import check_scaling
from gateway.bookings.shared_memory import shares_bookings
from gateway.config import Config, replaced
from gateway.config.secrets import worker_headers
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.disaggregation.stats import disaggregation_stats_of
from gateway.discovery.declared import check_once, declared_settings
from gateway.discovery.engine_detection import Engines
from gateway.discovery.probed import worker_urls
from gateway.models.from_config import catalog_of
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.redis.options import EMBEDDED
from gateway.replication.agent_targets import agents_of
from gateway.routing.active_policy import ActivePolicy
from gateway.runtime.tls import listening_tls, worker_tls
from gateway.server.reverse_proxy import trusted_of
from gateway.tenancy.auth.admin_access import check_open
from gateway.tenancy.auth.credentials import Credentials
from gateway.upstream.access import fleet_access, with_tables

Check = Callable[[Config], object]

CHECKS: tuple[Check, ...] = (
    lambda config: worker_urls([*config.fleet.worker, *config.fleet.prefill, *config.fleet.decode]),
    lambda config: check_once(config.fleet),
    lambda config: declared_settings(with_tables(config), KV_CONNECTORS, DEFAULT_CONNECTORS),
    lambda config: Engines(ENGINES, with_tables(config).fleet.engine),
    lambda config: worker_tls(config.worker.ca_file, config.worker.cert_file, config.worker.cert_key_file),
    lambda config: worker_headers(config.worker.key_file),
    fleet_access,
    lambda config: catalog_of(config, PromptSource({}, Metrics()), Fleet()).close(),
    ActivePolicy,
    disaggregation_stats_of,
    trusted_of,
    lambda config: listening_tls(config.tls.cert_file, config.tls.key_file),
    certificate_of,
    check_scaling,
    ClientSurfacePart,
    Credentials,
    lambda config: agents_of(with_tables(config)),
    backend_of,
    shares_bookings,
    lambda config: check_open(config, config.admin.host),
)


def mistakes_of(config: Config) -> list[str]:
    """Return all mistakes that the parts of a gateway find in a configuration."""
    if config.redis.url == EMBEDDED:  # which serves its own processes, and is started for a check too
        config = replaced(config, redis="", index="auto", booking="own")
    found = (_mistake(check, config) for check in CHECKS)
    return list(dict.fromkeys(mistake for mistake in found if mistake))


def _mistake(check: Check, config: Config) -> str | None:
    try:
        check(config)
    except ConfigError as exc:
        return str(exc)
    return None

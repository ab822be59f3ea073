"""Settings that the operator declares for workers: role, connector, topology. Pure.

A worker's own report takes precedence over a default; a worker that contradicts its declared role does not
join: it was configured in the wrong place.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from gateway.config import Config
from gateway.config.fleet import FleetSection
from gateway.core.engine import EventSource
from gateway.core.errors import ConfigError
from gateway.core.spelling import meant
from gateway.core.worker import Role, Transfer, Worker
from gateway.discovery.probe import ProbeError
from gateway.discovery.probed import Facts, event_source, worker_urls, workers_of

DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}


class WrongRole(ProbeError):
    """The worker reports another role than the declared one."""


@dataclass(frozen=True, slots=True)
class DeclaredSettings:
    """Declared settings of workers: `connectors` by URL, `connector` for all others, `defaults` by engine;
    `topology`, `block_sizes` (in tokens) and `event_ports` (of events, and of replays or 0) by URL. Roles
    change when workers are added."""

    roles: dict[str, Role] = field(default_factory=dict)
    connectors: dict[str, str] = field(default_factory=dict)
    connector: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    topology: dict[str, str] = field(default_factory=dict)
    block_sizes: dict[str, int] = field(default_factory=dict)
    event_ports: dict[str, tuple[int, int]] = field(default_factory=dict)

    def inherit(self, url: str, source: str) -> None:
        """Copy the settings of a source to one of its addresses."""
        for table in (self.connectors, self.topology):
            if source in table:
                table[url] = table[source]
        if source in self.block_sizes:
            self.block_sizes[url] = self.block_sizes[source]
        if source in self.event_ports:
            self.event_ports[url] = self.event_ports[source]

    def event_source(self, facts: Facts, rank: int, default: tuple[int, int]) -> EventSource | None:
        """Return where a rank publishes: at its declared ports, as it reports, or at the `default` ports
        (events, replays or 0)."""
        ports = self.event_ports.get(facts.url)
        return event_source(replace(facts, sources=None) if ports else facts, rank, *(ports or default))

    def workers_of(self, facts: Facts) -> tuple[Worker, ...]:
        """Return the workers of an endpoint with their declared settings. Raises WrongRole."""
        declared = self.roles.get(facts.url)
        if declared and facts.role and facts.role != declared.value:
            raise WrongRole(f"{facts.url} is a {facts.role} worker, but was declared as --{declared.value}")
        return tuple(self._with_settings(worker, declared) for worker in workers_of(facts))

    def _with_settings(self, worker: Worker, declared: Role | None) -> Worker:
        role = declared or worker.role
        transfer, connector = worker.transfer, self.connectors.get(worker.url, self.connector)
        if transfer is None and (role is not Role.BOTH or connector):
            connector = connector or self.defaults.get(worker.engine)
            transfer = Transfer(connector) if connector else None
        elif transfer and connector:
            transfer = replace(transfer, connector=connector)
        topology = self.topology.get(worker.url, "")
        size = self.block_sizes.get(worker.url, worker.block_size)
        return replace(worker, role=role, transfer=transfer, topology=topology, block_size=size)


def declared_settings(
    config: Config, known: Collection[str] = (), defaults: Mapping[str, str] | None = None
) -> DeclaredSettings:
    """Return the declared settings. `known` are connectors, `defaults` those of engines. Raises
    ConfigError."""
    roles = dict.fromkeys(worker_urls(config.fleet.prefill), Role.PREFILL)
    roles |= dict.fromkeys(worker_urls(config.fleet.decode), Role.DECODE)
    named = dict(_by_url("connector", spec) for spec in config.fleet.connector)
    for name in named.values():
        if name not in known:
            words = meant(name, known) or f"; known: {', '.join(known)}"
            raise ConfigError(f"connector: unknown connector '{name}'{words}")
    places = dict(_by_url("topology", spec) for spec in config.fleet.topology)
    if "" in places:
        raise ConfigError(f"topology: '{places['']}' names no worker; give URL=LABEL")
    check_once(config.fleet)
    sizes = {url: table.block_size for url, table in config.workers.items() if table.block_size}
    ports = {
        url: (table.events_port or config.events.port, table.replay_port)
        for url, table in config.workers.items()
        if table.events_port or table.replay_port
    }
    return DeclaredSettings(roles, named, named.get(""), defaults or {}, places, sizes, ports)


def check_once(fleet: FleetSection) -> None:
    """Check that no worker is given twice, however it is written. Raises ConfigError."""
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    for option, urls in (("worker", fleet.worker), ("prefill", fleet.prefill), ("decode", fleet.decode)):
        for url in (worker_urls([each])[0] for each in urls):
            url = names.setdefault(_with_port(url), url)
            if found.get(url) == option:
                raise ConfigError(f"{option}: {url} is given twice")
            if url in found:
                raise ConfigError(
                    f"{option}: {url} is a --{found[url]} worker too; for both roles use --worker"
                )
            found[url] = option


def _by_url(option: str, spec: str) -> tuple[str, str]:
    """Split URL=VALUE; an empty URL stands for all workers."""
    url, _, name = spec.rpartition("=")
    if not url:
        return "", name
    try:
        return worker_urls([url])[0], name
    except ConfigError as exc:
        raise ConfigError(f"{option}: {exc}") from exc


def _with_port(url: str) -> str:
    """URL with the port that its scheme means where it has none."""
    parts = urlsplit(url)
    if parts.port or parts.scheme not in DEFAULT_PORTS:
        return url
    return parts._replace(netloc=f"{parts.netloc}:{DEFAULT_PORTS[parts.scheme]}").geturl()

"""The configuration: one frozen struct of tables, from flags, environment, file and defaults, in that order.

    config.redis.timeout_s  ◄─  --redis-timeout-s  ◄─  KVGATE_REDIS_TIMEOUT_S  ◄─  [redis] timeout_s  ◄─  1.0

`Config` lists the tables; a table's struct declares its options (`options.py`), each once, with its type,
default, unit, help, and whether a reload changes it. `--help`, `docs/reference/options.md`, the reload and
the refusals are made of these declarations. `reading.py` collects the mistakes of each source, `renamed.py`
has the names of before, `flags.py` is the command line, `reference.py` the reference page, `effective.py` the
options in effect with their sources, `diff.py` what a reload changes, `worker_specs.py` the form of a worker,
`secrets.py` reads secret files.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gateway.config.admin import AdminSection
from gateway.config.admission import HeadersSection, QueueSection
from gateway.config.auth import AuthSection, JwtSection
from gateway.config.epp import EppSection
from gateway.config.events import AgentSection, EventsSection
from gateway.config.fleet import DisaggregationSection, FleetSection, LifecycleSection
from gateway.config.kubernetes import KubernetesSection
from gateway.config.models import ModelTable, TokenizerSection, aliases_of
from gateway.config.observability import LogSection, OtlpSection, RecordSection
from gateway.config.options import REQUESTS, Option, Section, option, options, table
from gateway.config.policy import PolicySection
from gateway.config.proxy import ProxySection
from gateway.config.reading import ConfigErrors, ConfigReader
from gateway.config.redis import IndexSection, RedisSection
from gateway.config.renamed import old_name
from gateway.config.scaling import ScalingSection
from gateway.config.server import ServerSection, TlsSection
from gateway.config.tenant_limits import TenantLimits
from gateway.config.warming import WarmingSection
from gateway.config.workers import WorkerSection, WorkerTable, check_urls, without_ports
from gateway.policies.composition import Composition


class Config(Section, frozen=True, kw_only=True):
    fleet: Annotated[FleetSection, table("Workers", is_plain=True)] = FleetSection()
    worker: Annotated[WorkerSection, table("Access to workers: credentials, TLS, networks")] = WorkerSection()
    workers: Annotated[
        dict[str, WorkerTable],
        option(
            'Tables [workers."URL"], settings of one worker: key_file or key_env (its API key), server_name, '
            "engine, connector, topology, agent, block_size, events_port, replay_port; "
            "docs/concepts/workers.md."
        ),
    ] = msgspec.field(default_factory=dict)
    lifecycle: Annotated[
        LifecycleSection, table("Probes, slow start and outlier ejection of workers", is_plain=True)
    ] = LifecycleSection()
    warming: Annotated[WarmingSection, table("Hot prefixes for workers that join")] = WarmingSection()
    kubernetes: Annotated[KubernetesSection, table("Workers in Kubernetes")] = KubernetesSection()
    tokenizer: Annotated[TokenizerSection, table("Tokenizers")] = TokenizerSection()
    models: Annotated[
        dict[str, ModelTable],
        option(
            'Tables [models."org/name"], by a name that workers serve or by their root: tokenizer, template, '
            "renderer, aliases; docs/guides/models.md. kvgate looks for the root of a model without one."
        ),
    ] = msgspec.field(default_factory=dict)
    policy: Annotated[PolicySection, table("The choice of a worker")] = PolicySection()
    policies: Annotated[
        dict[str, Composition],
        option(
            "Tables [policies.NAME]: policies composed of filters, weighted scorers and a picker, or of "
            "filters and another policy; see docs/guides/policies.md.",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=dict)
    disaggregation: Annotated[DisaggregationSection, table("Prefill and decode on two workers")] = (
        DisaggregationSection()
    )
    server: Annotated[ServerSection, table("The port for clients, and its processes", is_plain=True)] = (
        ServerSection()
    )
    tls: Annotated[TlsSection, table("TLS of the port for clients")] = TlsSection()
    epp: Annotated[EppSection, table("The endpoint picker for Envoy")] = EppSection()
    scaling: Annotated[ScalingSection, table("Advice for autoscalers")] = ScalingSection()
    proxy: Annotated[ProxySection, table("Timeouts, retries and routes of requests", is_plain=True)] = (
        ProxySection()
    )
    headers: Annotated[HeadersSection, table("Headers of requests and answers", is_plain=True)] = (
        HeadersSection()
    )
    auth: Annotated[AuthSection, table("API keys, and isolation of tenants", is_plain=True)] = AuthSection()
    jwt: Annotated[JwtSection, table("JSON Web Tokens in place of API keys")] = JwtSection()
    queue: Annotated[QueueSection, table("Admission control: queues in front of saturated workers")] = (
        QueueSection()
    )
    tenants: Annotated[
        dict[str, TenantLimits],
        option(
            'Tables [tenants.NAME], and [tenants."*"] for every other tenant: requests_per_s, '
            "requests_at_once, tokens_per_min, max_concurrent, weight, priority, slo_ttft_s; "
            "docs/guides/admission-control.md.",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=dict)
    events: Annotated[EventsSection, table("KV events of workers")] = EventsSection()
    agent: Annotated[AgentSection, table("Agents beside engines")] = AgentSection()
    index: Annotated[IndexSection, table("The index of cached blocks")] = IndexSection()
    redis: Annotated[RedisSection, table("State that gateways share")] = RedisSection()
    admin: Annotated[AdminSection, table("The admin API and metrics")] = AdminSection()
    log: Annotated[LogSection, table("Logs")] = LogSection()
    otlp: Annotated[OtlpSection, table("Traces")] = OtlpSection()
    record: Annotated[RecordSection, table("Recordings of requests")] = RecordSection()

    def __post_init__(self) -> None:
        aliases_of(self.models)
        check_urls(self.workers)


@cache
def by_key() -> Mapping[str, Option]:
    """Every option of `Config`, in order."""
    return {each.key: each for each in options(Config)}


def old_config_name(key: str, form: str) -> str:
    """Return a sentence about a key that was an option before; see `renamed.py`."""
    return old_name(key, form, by_key())


def read(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, path: Path | None = None
) -> ConfigReader[Config]:
    """Read all sources: flags override the environment, which overrides the file; `flags` are by key."""
    reader = ConfigReader(Config, old_config_name)
    if path is not None:
        reader.file(path)
    reader.environment(environ)
    reader.flags(flags)
    return reader


def checked(reader: ConfigReader[Config]) -> Config:
    """Return the configuration that was read, with the ports in workers' URLs in their tables. Raises
    ConfigErrors with every mistake."""
    config, mistakes = ports_in_tables(reader.checked())
    if mistakes:
        raise ConfigErrors(mistakes)
    return config


def ports_in_tables(config: Config) -> tuple[Config, list[str]]:
    """Move the ports in workers' URLs to their tables. Returns the mistakes in the ports too, which are left
    out."""
    ports, mistakes = dict[str, dict[str, int]](), list[str]()
    plain: dict[str, list[str]] = {}
    for name in ("worker", "prefill", "decode"):
        for text in getattr(config.fleet, name):
            try:
                url, given = without_ports(text)
            except ValueError as exc:
                mistakes.append(f"{name}: {exc}")
                url, given = text.partition("#")[0], {}
            plain.setdefault(name, []).append(url)
            if given:
                ports[url] = given
    if not ports and not mistakes:
        return config, []
    tables = {
        url: msgspec.structs.replace(config.workers.get(url, WorkerTable()), **given)
        for url, given in ports.items()
    }
    return replaced(config, **plain, workers={**config.workers, **tables}), mistakes


def load(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, path: Path | None = None
) -> Config:
    """Read the configuration from flags, environment and file. Raises ConfigErrors with every mistake."""
    return checked(read(flags, environ, path))


def config_of(**options: Any) -> Config:
    """A configuration of options by key, as in `config_of(port=0, redis_timeout_s=2.0)`, and defaults. Raises
    ConfigError."""
    return load(options, environ={})


def replaced(config: Config, **values: Any) -> Config:
    """Return a copy of the configuration with other values of some options, by key."""
    tables: dict[str, Any] = {}
    for key, value in values.items():
        each = by_key()[key]
        if each.table:
            old = tables.get(each.table, getattr(config, each.table))
            tables[each.table] = msgspec.structs.replace(old, **{each.name: value})
        else:
            tables[each.name] = value
    return msgspec.structs.replace(config, **tables)

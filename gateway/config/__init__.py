"""The configuration: one frozen struct of tables, from flags, environment, file and defaults, in that order.

    config.redis.timeout_s  ◄─  --redis-timeout-s  ◄─  KVGATE_REDIS_TIMEOUT_S  ◄─  [redis] timeout_s  ◄─  1.0

`Config` lists the tables; a table's struct declares its options (`options.py`), each once, with its type,
default, unit, help, and whether a reload changes it. `--help`, `docs/reference/options.md`, the reload and
the refusals are made of these declarations. `reading.py` collects the mistakes of each source, `renamed.py`
has the names of before, `flags.py` is the command line, `reference.py` the reference page, `diff.py` what a
reload changes, `worker_specs.py` the form of a worker, `secrets.py` reads secret files.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gateway.config.admin import Admin
from gateway.config.admission import Headers, Queue
from gateway.config.auth import Auth, Jwt
from gateway.config.events import Agent, Events
from gateway.config.fleet import Disaggregation, Fleet, Lifecycle
from gateway.config.models import ModelTable, Tokenizer, aliases_of
from gateway.config.observability import Log, Otlp, Record
from gateway.config.options import REQUESTS, Option, Section, option, options, table
from gateway.config.policy import Policy
from gateway.config.proxy import Proxy
from gateway.config.reading import Reader
from gateway.config.redis import Index, Redis
from gateway.config.renamed import old_name
from gateway.config.server import Server, Tls
from gateway.config.tenant_limits import Limits
from gateway.config.workers import WorkerAccess, WorkerTable, check_urls
from gateway.policies.composition import Composition


class Config(Section, frozen=True, kw_only=True):
    fleet: Annotated[Fleet, table("Workers", is_plain=True)] = Fleet()
    worker: Annotated[WorkerAccess, table("Access to workers: credentials, TLS, networks")] = WorkerAccess()
    workers: Annotated[
        dict[str, WorkerTable],
        option(
            'Tables [workers."URL"], settings of one worker: key_file or key_env (its API key), server_name, '
            "engine, connector, topology, agent; docs/concepts/workers.md."
        ),
    ] = msgspec.field(default_factory=dict)
    lifecycle: Annotated[
        Lifecycle, table("Probes, slow start and outlier ejection of workers", is_plain=True)
    ] = Lifecycle()
    tokenizer: Annotated[Tokenizer, table("Tokenizers")] = Tokenizer()
    models: Annotated[
        dict[str, ModelTable],
        option(
            'Tables [models."org/name"], by a name that workers serve or by their root: tokenizer, template, '
            "renderer, aliases; docs/guides/models.md. kvgate looks for the root of a model without one."
        ),
    ] = msgspec.field(default_factory=dict)
    policy: Annotated[Policy, table("The choice of a worker")] = Policy()
    policies: Annotated[
        dict[str, Composition],
        option(
            "Tables [policies.NAME]: policies composed of filters, weighted scorers and a picker, or of "
            "filters and another policy; see docs/guides/policies.md.",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=dict)
    disaggregation: Annotated[Disaggregation, table("Prefill and decode on two workers")] = Disaggregation()
    server: Annotated[Server, table("The port for clients, and the processes behind it", is_plain=True)] = (
        Server()
    )
    tls: Annotated[Tls, table("TLS of the port for clients")] = Tls()
    proxy: Annotated[Proxy, table("Timeouts, retries and routes of requests", is_plain=True)] = Proxy()
    headers: Annotated[Headers, table("Headers of requests and answers", is_plain=True)] = Headers()
    auth: Annotated[Auth, table("API keys, and isolation of tenants", is_plain=True)] = Auth()
    jwt: Annotated[Jwt, table("JSON Web Tokens in place of API keys")] = Jwt()
    queue: Annotated[Queue, table("Admission control: queues in front of saturated workers")] = Queue()
    tenants: Annotated[
        dict[str, Limits],
        option(
            'Tables [tenants.NAME], and [tenants."*"] for every other tenant: requests_per_s, '
            "requests_at_once, tokens_per_min, max_concurrent, weight, priority, slo_ttft_s; "
            "docs/guides/admission-control.md.",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=dict)
    events: Annotated[Events, table("KV events of workers")] = Events()
    agent: Annotated[Agent, table("Agents beside engines")] = Agent()
    index: Annotated[Index, table("The index of cached blocks")] = Index()
    redis: Annotated[Redis, table("State that gateways share")] = Redis()
    admin: Annotated[Admin, table("The admin API and metrics")] = Admin()
    log: Annotated[Log, table("Logs")] = Log()
    otlp: Annotated[Otlp, table("Traces")] = Otlp()
    record: Annotated[Record, table("Recordings of requests")] = Record()

    def __post_init__(self) -> None:
        aliases_of(self.models)
        check_urls(self.workers)


@cache
def by_key() -> Mapping[str, Option]:
    """Every option of `Config`, in order."""
    return {each.key: each for each in options(Config)}


def old_config_name(key: str, form: str) -> str:
    """A sentence about a key that was an option before; see `renamed.py`."""
    return old_name(key, form, by_key())


def read(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, path: Path | None = None
) -> Reader[Config]:
    """Flags over environment over file over defaults, with all mistakes. `flags` are by key."""
    reader = Reader(Config, old_config_name)
    if path is not None:
        reader.file(path)
    reader.environment(environ)
    reader.flags(flags)
    return reader


def load(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, path: Path | None = None
) -> Config:
    """Raises ConfigError with every mistake."""
    return read(flags, environ, path).checked()


def config_of(**options: Any) -> Config:
    """A configuration of options by key, as in `config_of(port=0, redis_timeout_s=2.0)`, and defaults. Raises
    ConfigError."""
    return load(options, environ={})


def replaced(config: Config, **values: Any) -> Config:
    """The same configuration with other values of some options, by key."""
    tables: dict[str, Any] = {}
    for key, value in values.items():
        each = by_key()[key]
        if each.table:
            old = tables.get(each.table, getattr(config, each.table))
            tables[each.table] = msgspec.structs.replace(old, **{each.name: value})
        else:
            tables[each.name] = value
    return msgspec.structs.replace(config, **tables)

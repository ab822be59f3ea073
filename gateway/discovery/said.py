"""What the operator says of workers beside what they tell themselves: role, connector, place. Pure.

A worker's own word goes before ours where it has one; where they contradict each other it does not join: it
was put where it does not belong.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.core.worker import Role, Transfer, Worker
from gateway.discovery.facts import Facts, endpoint_url, worker_urls, workers_of
from gateway.discovery.probe import ProbeError


class WrongRole(ProbeError):
    """It is another one than it was said to be."""


@dataclass(frozen=True, slots=True)
class Said:
    """`connectors` by URL, `connector` for all others; `defaults` by engine, where nobody says. `topology` by
    URL. Roles are changed when workers are added."""

    roles: dict[str, Role] = field(default_factory=dict)
    connectors: dict[str, str] = field(default_factory=dict)
    connector: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    topology: dict[str, str] = field(default_factory=dict)

    def inherit(self, url: str, source: str) -> None:
        """What is said of a name is said of each of its addresses."""
        for table in (self.connectors, self.topology):
            if source in table:
                table[url] = table[source]

    def workers_of(self, facts: Facts) -> tuple[Worker, ...]:
        """Raises WrongRole."""
        said = self.roles.get(facts.url)
        if said and facts.role and facts.role != said.value:
            raise WrongRole(f"{facts.url} is a {facts.role} worker, and was given as --{said.value}")
        return tuple(self._said_of(worker, said) for worker in workers_of(facts))

    def _said_of(self, worker: Worker, said: Role | None) -> Worker:
        role = said or worker.role
        transfer, connector = worker.transfer, self.connectors.get(worker.url, self.connector)
        if transfer is None and (role is not Role.BOTH or connector):
            connector = connector or self.defaults.get(worker.engine)
            transfer = Transfer(connector) if connector else None
        elif transfer and connector:
            transfer = replace(transfer, connector=connector)
        topology = self.topology.get(worker.url, "")
        return replace(worker, role=role, transfer=transfer, topology=topology)


def said_of(config: Config, known: Collection[str] = (), defaults: Mapping[str, str] | None = None) -> Said:
    """`known` are connectors, `defaults` those of engines. Raises ConfigError."""
    roles = dict.fromkeys(worker_urls(config.prefill), Role.PREFILL)
    for url in worker_urls(config.decode):
        if url in roles:
            raise ConfigError(f"decode: {url} is given as --prefill too; one that does both is a --worker")
        roles[url] = Role.DECODE
    named = dict(_by_url("connector", spec) for spec in config.connector)
    for name in named.values():
        if name not in known:
            raise ConfigError(f"connector: '{name}' is none; known: {', '.join(known)}")
    places = dict(_by_url("topology", spec) for spec in config.topology)
    if "" in places:
        raise ConfigError(f"topology: '{places['']}' names no worker; give URL=LABEL")
    return Said(roles, named, named.get(""), defaults or {}, places)


def specs_of(config: Config) -> list[str]:
    """All workers as they are given, each "URL" or "ROLE=URL", as `parse_spec` reads them."""
    return [
        *config.worker,
        *[f"{Role.PREFILL.value}={url}" for url in config.prefill],
        *[f"{Role.DECODE.value}={url}" for url in config.decode],
    ]


def spec_of(url: str, role: Role | None) -> str:
    return f"{role.value}={url}" if role else url


DRAINING, LEAVING = "draining=", "leaving="
"""Before the URL of an endpoint: that it is to drain; and to be dropped when it has nothing left."""


def drains_of(specs: Sequence[str]) -> list[tuple[str, bool]]:
    """Of all that is told from one gateway to another: URLs of those that drain, and whether they leave."""
    marks = ((spec, mark) for spec in specs for mark in (DRAINING, LEAVING) if spec.startswith(mark))
    return [(spec.removeprefix(mark), mark is LEAVING) for spec, mark in marks]


def without_drains(specs: Sequence[str]) -> list[str]:
    return [spec for spec in specs if not spec.startswith((DRAINING, LEAVING))]


def changes_of(specs: Sequence[str]) -> list[tuple[str, dict[str, object]]]:
    """The same as paths of the admin API, and what is posted there. Raises ValueError."""
    added = [(url, role.value if role else None) for url, role in map(parse_spec, without_drains(specs))]
    changes: list[tuple[str, dict[str, object]]]
    changes = [("/admin/workers", {"url": url, "role": role}) for url, role in added]
    changes += [(f"/admin/workers/{url}/drain", {"drop": is_last}) for url, is_last in drains_of(specs)]
    return changes


def parse_spec(spec: str) -> tuple[str, Role | None]:
    """URL, as it is kept, and role. Raises ValueError."""
    url, role = _parts(spec)
    return endpoint_url(url), role


def _parts(spec: str) -> tuple[str, Role | None]:
    for role in (Role.PREFILL, Role.DECODE):
        if spec.startswith(f"{role.value}="):
            return spec.removeprefix(f"{role.value}="), role
    return spec, None


def with_specs(config: Config, specs: Sequence[str]) -> Config:
    """The same configuration with these workers in place of its own. One that is wrong stays so."""
    given: dict[Role | None, list[str]] = {None: [], Role.PREFILL: [], Role.DECODE: []}
    for url, role in map(_parts, without_drains(specs)):
        given[role].append(url)
    return msgspec.structs.replace(
        config, worker=given[None], prefill=given[Role.PREFILL], decode=given[Role.DECODE]
    )


def _by_url(option: str, spec: str) -> tuple[str, str]:
    """URL and what is said of it; no URL means all."""
    url, _, name = spec.rpartition("=")
    if not url:
        return "", name
    try:
        return worker_urls([url])[0], name
    except ConfigError as exc:
        raise ConfigError(f"{option}: {exc}") from exc

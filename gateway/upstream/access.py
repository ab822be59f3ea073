"""Access to each worker beside its URL: credentials, server name (SNI), allowed networks.

Used on both ways to workers: requests (`upstream.connection.Pool`) and control calls (`control_client`).
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.config import Config, by_key, replaced
from gateway.config.secrets import read_key
from gateway.config.workers import WorkerTable
from gateway.core.errors import ConfigError
from gateway.http.address import UNIX, Address
from gateway.http.networks import Reachable, is_literal, name_refusal


@dataclass(frozen=True, slots=True)
class WorkerAccess:
    """Access to one worker. `authorization` replaces a client's own; `server_name` is verified, and used in
    the handshake and as the Host, instead of the URL's."""

    authorization: str | None = field(default=None, repr=False)
    server_name: str | None = None

    def host(self, address: Address) -> str:
        """Return the Host header's value."""
        if not self.server_name:
            return address.netloc
        _, colon, port = address.netloc.rpartition(":")
        return f"{self.server_name}:{port}" if colon and port.isdigit() else self.server_name


PLAIN = WorkerAccess()


class FleetAccess:
    """Access to all workers: `by_url` for those with settings; `sockets` are the Unix sockets in the
    configuration, `socket_dirs` directories in which there may be others."""

    def __init__(
        self,
        by_url: Mapping[str, WorkerAccess] | None = None,
        reachable: Reachable | None = None,
        *,
        sockets: Collection[str] = (),
        socket_dirs: Iterable[str] = (),
    ) -> None:
        self._by_url = dict(by_url or {})
        self.reachable = reachable or Reachable()
        self._sockets = frozenset(sockets)
        self._socket_dirs = [os.path.realpath(each) for each in socket_dirs]

    def of(self, url: str) -> WorkerAccess:
        return self._by_url.get(url, PLAIN)

    def inherit(self, url: str, source: str, server_name: str) -> None:
        """Copy a source's access to one of its addresses, which is verified by that name."""
        access = self.of(source)
        self._by_url[url] = WorkerAccess(access.authorization, access.server_name or server_name)

    def refusal(self, url: str) -> str | None:
        """Explain why no worker may be at a URL, as far as known without resolving it; None where one may."""
        address = Address.of(url)
        if address.unix_path is not None:
            return None
        if not is_literal(address.host):
            return name_refusal(address.host)
        return self.reachable.refusal(address.host)

    def socket_refusal(self, path: str) -> str | None:
        """Explain why a Unix socket given at run time may not be used; None where it may."""
        if path in self._sockets:
            return None
        real = os.path.realpath(path)
        if any(os.path.commonpath([real, each]) == each for each in self._socket_dirs):
            return None
        known = ", ".join(self._socket_dirs) or "none is given"
        return f"{path} is below no directory of --worker-networks ({known})"


def with_tables(config: Config) -> Config:
    """Copy the settings of worker tables to the options of that name; flags take precedence."""
    specs_of = {
        name: [f"{url}={value}" for url, table in config.workers.items() if (value := getattr(table, name))]
        for name in ("engine", "connector", "topology", "agent")
    }
    more = {name: [*specs, *by_key()[name].of(config)] for name, specs in specs_of.items() if specs}
    return replaced(config, **more) if more else config


def fleet_access(config: Config, environ: Mapping[str, str] = os.environ) -> FleetAccess:
    """Return the access of all workers. Raises ConfigError."""
    by_url = {url: _worker_access(url, table, environ) for url, table in config.workers.items()}
    try:
        reachable = Reachable(config.worker.ip_networks)
    except ValueError as exc:
        raise ConfigError(f"worker_networks: {exc}") from exc
    named = [*config.fleet.worker, *config.fleet.prefill, *config.fleet.decode, *config.workers]
    sockets = [Address.of(url).unix_path or "" for url in named if url[: len(UNIX)].lower() == UNIX]
    return FleetAccess(by_url, reachable, sockets=sockets, socket_dirs=config.worker.socket_dirs)


def _worker_access(url: str, table: WorkerTable, environ: Mapping[str, str]) -> WorkerAccess:
    where = f'workers."{url}"'
    if table.key_file and table.key_env:
        raise ConfigError(f"{where}: has key_file and key_env; give one of them")
    key = read_key(table.key_file, f"{where}.key_file") if table.key_file else ""
    if table.key_env:
        key = environ.get(table.key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"{where}.key_env: the variable {table.key_env} holds no key")
    if table.server_name and not url.startswith(("https:", "dns+https:", "k8s:")):
        raise ConfigError(f"{where}.server_name: needs an https URL")
    return WorkerAccess(f"Bearer {key}" if key else None, table.server_name or None)

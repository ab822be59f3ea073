"""How each worker is reached, beside its URL: with which key, verified by which name, at which addresses.

Both sides that speak to workers ask here: requests (`upstream.Pool`) and control calls (`control`).
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.config import Config
from gateway.config.secrets import read_key
from gateway.config.workers import WorkerTable
from gateway.core.errors import ConfigError
from gateway.http.address import UNIX, Address
from gateway.http.networks import Reachable, is_literal, name_refusal


@dataclass(frozen=True, slots=True)
class Way:
    """One worker's. `authorization` goes in place of what a client sent; `server_name` is verified, and named
    in the handshake and as the Host, in place of the URL's."""

    authorization: str | None = field(default=None, repr=False)
    server_name: str | None = None

    def host(self, address: Address) -> str:
        """For the Host header."""
        if not self.server_name:
            return address.netloc
        _, colon, port = address.netloc.rpartition(":")
        return f"{self.server_name}:{port}" if colon and port.isdigit() else self.server_name


PLAIN = Way()


class Ways:
    """`by_url` are the workers of which something is said; `sockets` are the Unix sockets that the
    configuration names, `socket_dirs` the directories below which there may be others."""

    def __init__(
        self,
        by_url: Mapping[str, Way] | None = None,
        reachable: Reachable | None = None,
        *,
        sockets: Collection[str] = (),
        socket_dirs: Iterable[str] = (),
    ) -> None:
        self._by_url = dict(by_url or {})
        self.reachable = reachable or Reachable()
        self._sockets = frozenset(sockets)
        self._socket_dirs = [os.path.realpath(each) for each in socket_dirs]

    def of(self, url: str) -> Way:
        return self._by_url.get(url, PLAIN)

    def inherit(self, url: str, source: str, server_name: str) -> None:
        """What is said of a name is said of each of its addresses, which are verified by that name."""
        way = self.of(source)
        self._by_url[url] = Way(way.authorization, way.server_name or server_name)

    def refusal(self, url: str) -> str | None:
        """Why there may be no worker at a URL, as far as that can be told without asking anybody."""
        address = Address.of(url)
        if address.unix_path is not None:
            return None
        if not is_literal(address.host):
            return name_refusal(address.host)
        return self.reachable.refusal(address.host)

    def socket_refusal(self, path: str) -> str | None:
        """Why nothing that was named at run time may be reached at a Unix socket; None where it may."""
        if path in self._sockets:
            return None
        real = os.path.realpath(path)
        if any(os.path.commonpath([real, each]) == each for each in self._socket_dirs):
            return None
        known = ", ".join(self._socket_dirs) or "none is given"
        return f"{path} is below none of --worker-socket-dirs ({known})"


def with_tables(config: Config) -> Config:
    """What tables say of workers as if it were said by the options of that name; flags go before them."""
    told = {
        name: [f"{url}={value}" for url, table in config.workers.items() if (value := getattr(table, name))]
        for name in ("engine", "connector", "topology", "agent")
    }
    more = {name: [*specs, *getattr(config, name)] for name, specs in told.items() if specs}
    return msgspec.structs.replace(config, **more) if more else config


def ways_of(config: Config, environ: Mapping[str, str] = os.environ) -> Ways:
    """Raises ConfigError."""
    by_url = {url: _way(url, table, environ) for url, table in config.workers.items()}
    try:
        reachable = Reachable(config.worker_networks)
    except ValueError as exc:
        raise ConfigError(f"worker_networks: {exc}") from exc
    named = [*config.worker, *config.prefill, *config.decode, *config.workers]
    sockets = [Address.of(url).unix_path or "" for url in named if url[: len(UNIX)].lower() == UNIX]
    return Ways(by_url, reachable, sockets=sockets, socket_dirs=config.worker_socket_dirs)


def _way(url: str, table: WorkerTable, environ: Mapping[str, str]) -> Way:
    where = f'workers."{url}"'
    if table.key_file and table.key_env:
        raise ConfigError(f"{where}: has a key_file and a key_env; give one of them")
    key = read_key(table.key_file, f"{where}.key_file") if table.key_file else ""
    if table.key_env:
        key = environ.get(table.key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"{where}.key_env: the variable {table.key_env} holds no key")
    if table.server_name and not url.startswith(("https:", "dns+https:")):
        raise ConfigError(f"{where}.server_name: only what speaks https is verified by a name")
    return Way(f"Bearer {key}" if key else None, table.server_name or None)

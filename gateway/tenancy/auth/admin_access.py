"""Who may use the admin port, by where it listens: decided once, at the start.

loopback, Unix socket         whoever is on this host, unless --admin-key says otherwise
other addresses, with keys    a key with admin scope, but for /health, /ready, /metrics
other addresses, without      the start is refused, unless --admin-without-keys says otherwise
"""

import logging
import socket

import msgspec

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.http.networks import address

log = logging.getLogger("kvgate.admin")

PROBES = "probes"
"""A scope that no option names: /health, /ready and /metrics are answered, all else is refused."""

_ADVICE = (
    "bind it to loopback (--admin-host 127.0.0.1), or make a key (`kvgate key new --tenant ops --admin "
    ">> FILE`) and give the file with --admin-api-keys, or have only /health, /ready and /metrics answered "
    "there (--admin-without-keys probes)"
)


def settle(config: Config, listening: socket.socket) -> Config:
    """The configuration with the scope that `--admin-key auto` comes to. By the socket: systemd may have
    bound it, and --admin-host then says nothing. Raises ConfigError where everybody would be let in."""
    where = "" if listening.family == socket.AF_UNIX else str(listening.getsockname()[0])
    check_open(config, where)
    if config.admin_key == "auto":
        is_open = is_local(where) or (config.admin_without_keys == "open" and not has_keys(config))
        config = msgspec.structs.replace(config, admin_key="off" if is_open else "api")
    if not is_local(where) and config.admin_key in ("off", "changes"):
        log.warning("the admin API at %s is open: whoever reaches it may change the fleet", where)
    return config


def check_open(config: Config, where: str) -> None:
    """Raises ConfigError where a port at `where` would let everybody in."""
    if is_local(where) or config.admin_without_keys == "open":
        return
    if config.admin_key in ("off", "changes"):
        raise ConfigError(
            f"admin_key: {config.admin_key} lets everybody who reaches {where} use the admin API; leave it "
            f"out, or {_ADVICE}"
        )
    if config.admin_key == "auto" and not has_keys(config) and config.admin_without_keys == "refuse":
        raise ConfigError(
            f"admin_host: the admin API would listen on {where}, where other hosts reach it, and no key "
            f"guards it: {_ADVICE}"
        )


def scope_of(config: Config, where: str | None = None) -> str:
    """What needs a key: off, changes, api, all, or PROBES."""
    where = config.admin_host if where is None else where
    scope = config.admin_key
    if scope == "auto":
        scope = "off" if is_local(where) else "api"
    return PROBES if scope == "api" and not has_keys(config) else scope


def has_keys(config: Config) -> bool:
    return bool(config.key_file or config.admin_api_keys)


def is_local(host: str) -> bool:
    """Whether only this host reaches it; "" is a Unix socket."""
    found = address(host)
    return found.is_loopback if found else host in ("", "localhost")

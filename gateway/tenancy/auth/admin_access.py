"""Access to the admin port, decided once at the start by the address on which it listens.

loopback, Unix socket         any client of this host, unless --admin-auth overrides it
other addresses, with keys    a key with admin scope, except for /health, /ready, /metrics
other addresses, without      startup fails, unless --admin-without-keys overrides it
"""

import logging
import socket

from gateway.config import Config, replaced
from gateway.core.errors import ConfigError
from gateway.http.networks import address

log = logging.getLogger("kvgate.admin")

PROBES = "probes"
"""Scope that no option names: /health, /ready and /metrics are answered, all other requests are rejected."""

_ADVICE = (
    "bind it to loopback (--admin-host 127.0.0.1), or make a key (`kvgate key new --tenant ops --admin "
    ">> FILE`) and give the file with --admin-key-file, or have only /health, /ready and /metrics answered "
    "there (--admin-without-keys probes)"
)


def settle(config: Config, listening: socket.socket) -> Config:
    """Configuration with `--admin-auth auto` resolved to a scope, by the socket: systemd may have bound it,
    and
    --admin-host then does not apply. Raises ConfigError where any client would have access.
    """
    where = "" if listening.family == socket.AF_UNIX else str(listening.getsockname()[0])
    check_open(config, where)
    if config.admin.auth == "auto":
        is_open = is_local(where) or (config.admin.without_keys == "open" and not has_keys(config))
        config = replaced(config, admin_auth="off" if is_open else "api")
    if not is_local(where) and config.admin.auth in ("off", "changes"):
        log.warning(
            "admin API at %s: no key required; any client that reaches it can change the fleet", where
        )
    return config


def check_open(config: Config, where: str) -> None:
    """Reject a configuration that leaves the admin port at `where` open to any client. Raises ConfigError."""
    if is_local(where) or config.admin.without_keys == "open":
        return
    if config.admin.auth in ("off", "changes"):
        raise ConfigError(
            f"admin_auth: {config.admin.auth} opens the admin API to any client that reaches {where}; leave "
            f"it out, or {_ADVICE}"
        )
    if config.admin.auth == "auto" and not has_keys(config) and config.admin.without_keys == "refuse":
        raise ConfigError(
            f"admin_host: the admin API would listen on {where}, which other hosts can reach, without "
            f"an API key: {_ADVICE}"
        )


def scope_of(config: Config, where: str | None = None) -> str:
    """Scope of the admin requests that need a key: off, changes, api, all, or PROBES."""
    where = config.admin.host if where is None else where
    scope = config.admin.auth
    if scope == "auto":
        scope = "off" if is_local(where) else "api"
    return PROBES if scope == "api" and not has_keys(config) else scope


def has_keys(config: Config) -> bool:
    return bool(config.auth.key_file or config.admin.key_file)


def is_local(host: str) -> bool:
    """True if only this host can reach the address; "" is a Unix socket."""
    found = address(host)
    return found.is_loopback if found else host in ("", "localhost")

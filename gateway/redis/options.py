"""Redis connection settings, read once from the configuration. No message contains a password."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from gateway.config import Config
from gateway.config.secrets import read_key
from gateway.core.errors import ConfigError
from gateway.http.url import Url, check_characters

EMBEDDED = "embedded"
SINGLE = ("redis", "rediss", "unix")
SENTINEL = ("redis+sentinel", "rediss+sentinel")
CLUSTER = ("redis+cluster", "rediss+cluster")
HostPort = tuple[str, int]
"""(host, port)."""
PORTS = dict.fromkeys(SENTINEL, 26379) | dict.fromkeys(CLUSTER, 6379)


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Redis connection settings.

    `where` is the URL without credentials, for messages; `connection` are the client library's arguments.
    `locators` are servers that know the master: Sentinels, of the master called `service`; else nodes of a
    Cluster, where `prefix` is in braces, so that all our keys are in one slot. `locator_options` are for
    connections to them.
    """

    where: str
    prefix: str
    timeout_s: float
    connection: Mapping[str, Any] = field(repr=False)
    locators: tuple[HostPort, ...] = ()
    service: str = ""
    locator_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def redis_of(config: Config) -> RedisOptions | None:
    """Return the Redis settings, None where none are given. Raises ConfigError."""
    if not config.redis.url:
        return None
    if config.redis.url == EMBEDDED:
        raise ConfigError("redis: 'embedded' is for `kvgate serve`; give the URL of a server here")
    where = shown(config.redis.url)
    _check(config.redis.url, where)
    scheme = _scheme(config.redis.url)
    files = _tls(config)
    if files and not scheme.startswith("rediss"):
        raise ConfigError("redis_ca_file, redis_cert_file: are for rediss:// only")
    multi = _parse_multi(config.redis.url, where) if scheme in PORTS else None
    url = multi.url if multi else config.redis.url
    connection = _parse(url, where) | files
    if config.redis.password_file:
        connection["password"] = read_key(config.redis.password_file, "redis_password_file")
    if multi is None:
        return RedisOptions(where, config.redis.prefix, config.redis.timeout_s, connection)
    del connection["host"], connection["port"]
    locator_options = {
        name: value for name, value in connection.items() if name not in ("db", "username", "password")
    }
    if scheme in CLUSTER:
        if connection.pop("db", 0):
            raise ConfigError(f"redis: '{where}' names a database, and a Cluster has only 0")
        locator_options = dict(connection)
    prefix = f"{{{config.redis.prefix}}}" if scheme in CLUSTER else config.redis.prefix
    locator_options |= multi.locator_options
    addresses, service = multi.addresses, multi.service
    return RedisOptions(
        where, prefix, config.redis.timeout_s, connection, addresses, service, locator_options
    )


def _check(url: str, where: str) -> None:
    """Reject characters that libraries would strip or read in two ways. Raises ConfigError."""
    try:
        check_characters(url)
    except ValueError:  # the error's text may contain the password
        raise ConfigError(
            f"redis: '{ascii(where)[1:-1]}' has a space, a control character, a backslash or a character "
            "that is not ASCII; percent-encode it"
        ) from None


def shown(url: str) -> str:
    """Return the URL without user and password."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    _, _, host = authority.rpartition("@")
    path = path.partition("?")[0]
    return f"{scheme}://{host}{slash}{path}" if rest else scheme


@dataclass(frozen=True, slots=True)
class _MultiServerUrl:
    """URL of several servers, split: `url` as of one server, without their addresses."""

    url: str
    addresses: tuple[HostPort, ...]
    service: str
    locator_options: dict[str, str]


def _parse_multi(url: str, where: str) -> _MultiServerUrl:
    authority, after = _split_authority(url)
    user, at, hosts = authority.rpartition("@")
    parts = urlsplit(f"{_scheme(url)}://asked:1{after}")
    try:
        addresses = tuple(_address(host, PORTS[parts.scheme]) for host in hosts.split(","))
    except ValueError as exc:
        raise ConfigError(
            f"redis: '{where}' cannot be read: expected HOST:PORT,HOST:PORT,... ({exc})"
        ) from exc
    service, path = "", parts.path
    if parts.scheme in SENTINEL:
        service, _, database = parts.path.lstrip("/").partition("/")
        path = f"/{database}" if database else ""
        if not service:
            raise ConfigError(f"redis: '{where}' names no master: redis+sentinel://HOST:PORT,HOST:PORT/NAME")
    query = parse_qsl(parts.query)
    locator_options = {
        name.removeprefix("sentinel_"): value
        for name, value in query
        if name.startswith("sentinel_") and service
    }
    rest = urlencode([(name, value) for name, value in query if not name.startswith("sentinel_")])
    plain = parts.scheme.partition("+")[0]
    return _MultiServerUrl(
        f"{plain}://{user}{at}asked:1{path}{rest and '?'}{rest}", addresses, service, locator_options
    )


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _split_authority(url: str) -> tuple[str, str]:
    """Split into users and hosts, and what follows them: the standard library's `urlsplit` reads one host
    only, and since 2023 rejects an IPv6 address that is not the first."""
    rest = url.partition("://")[2]
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return authority, rest[len(authority) :]


def _address(text: str, port: int) -> HostPort:
    found = Url.of(f"redis://{text}")
    return found.host, found.port or port


def _parse(url: str, where: str) -> dict[str, Any]:
    from redis.asyncio.connection import parse_url

    if _scheme(url) not in SINGLE:
        raise ConfigError(
            f"redis: '{where}' is not a URL such as redis://10.0.0.1:6379/0, rediss://... (TLS), unix:///path,"
            " redis+sentinel://HOST:PORT,.../NAME or redis+cluster://HOST:PORT,..., nor 'embedded'"
        )
    try:
        found = dict(parse_url(url))
    except ValueError as exc:
        raise ConfigError(
            f"redis: '{where}' cannot be read: its port and database are numbers, and an IPv6 address is in "
            "brackets, as in redis://[fd00::1]:6379/0"
        ) from exc
    if _scheme(url) != "unix" and not found.get("host"):
        raise ConfigError(f"redis: '{where}' names no host")
    return found


def _tls(config: Config) -> dict[str, Any]:
    named = {
        "ssl_ca_certs": (config.redis.ca_file, "redis_ca_file"),
        "ssl_certfile": (config.redis.cert_file, "redis_cert_file"),
        "ssl_keyfile": (config.redis.cert_key_file or config.redis.cert_file, "redis_cert_key_file"),
    }
    files: dict[str, Any] = {}
    for name, (file, option) in named.items():
        if file and not (path := Path(file).expanduser()).is_file():
            raise ConfigError(f"{option}: {file} cannot be read")
        elif file:
            files[name] = str(path)
    return files

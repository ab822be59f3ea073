"""How Redis is reached: the options of the configuration, read once. No password is in any message."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.keyfile import read_key

EMBEDDED = "embedded"
SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """`where` is the URL as it may be shown; `connection` is what the client library is given."""

    where: str
    prefix: str
    timeout_s: float
    connection: Mapping[str, Any] = field(repr=False)


def redis_of(config: Config) -> RedisOptions | None:
    """None where none is given. Raises ConfigError."""
    if not config.redis:
        if config.index not in ("auto", "memory"):
            raise ConfigError(f"index: {config.index} needs --redis, the URL of a server")
        return None
    if config.redis == EMBEDDED:
        raise ConfigError("redis: 'embedded' is for `kvgate serve`; give the URL of a server here")
    where = shown(config.redis)
    connection = _parse(config.redis, where)
    if config.redis_password_file:
        connection["password"] = read_key(config.redis_password_file, "redis_password_file")
    if files := _tls(config):
        if urlsplit(config.redis).scheme != "rediss":
            raise ConfigError("redis_ca_file, redis_cert_file: are for rediss:// only")
        connection |= files
    return RedisOptions(where, config.redis_prefix, config.redis_timeout_s, connection)


def shown(url: str) -> str:
    """Without user and password."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    _, _, host = authority.rpartition("@")
    path = path.partition("?")[0]
    return f"{scheme}://{host}{slash}{path}" if rest else scheme


def _parse(url: str, where: str) -> dict[str, Any]:
    from redis.asyncio.connection import parse_url

    if urlsplit(url).scheme not in SCHEMES:
        raise ConfigError(
            f"redis: '{where}' is not a URL such as redis://10.0.0.1:6379/0, rediss://... (TLS) or "
            "unix:///path, nor 'embedded'"
        )
    try:
        found = dict(parse_url(url))
    except ValueError as exc:
        raise ConfigError(f"redis: '{where}' cannot be read: is its port or database a number?") from exc
    if urlsplit(url).scheme != "unix" and not found.get("host"):
        raise ConfigError(f"redis: '{where}' names no host")
    return found


def _tls(config: Config) -> dict[str, Any]:
    named = {
        "ssl_ca_certs": (config.redis_ca_file, "redis_ca_file"),
        "ssl_certfile": (config.redis_cert_file, "redis_cert_file"),
        "ssl_keyfile": (config.redis_cert_key_file or config.redis_cert_file, "redis_cert_key_file"),
    }
    files: dict[str, Any] = {}
    for name, (file, option) in named.items():
        if file and not (path := Path(file).expanduser()).is_file():
            raise ConfigError(f"{option}: {file} cannot be read")
        elif file:
            files[name] = str(path)
    return files

"""Identity of a request for admission: tenant, priority and TTFT SLO, and which clients may declare them.

tenant     a header from a trusted client; else a hash of the API key (x-api-key, or behind Bearer); else
           "anonymous"
priority   a header from a trusted client, or an inference objective that it names; else the tenant's, or the
           body's where that is later: any client may lower its own priority
SLO        a header from a trusted client; else the tenant's

The headers steer, so they count only from the configured networks. A body never raises a priority: a trusted
proxy passes on the body that its client wrote.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from gateway.config import Config
from gateway.http.messages import Header
from gateway.http.networks import Trusted
from gateway.tenancy.admission.tenants import ANONYMOUS

MAX_NAME_CHARS: Final = 64
MAX_KEY_BYTES: Final = 256
KEY_DIGITS: Final = 10
OBJECTIVE: Final[tuple[bytes, bytes]] = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
"""Headers that name an inference objective, the new name before the old one."""


class DeclaredIdentity(NamedTuple):
    """Values of the identity headers; None where a header is missing or invalid."""

    tenant: str | None
    priority: int | None
    slo_ttft_s: float | None


class HeaderNames(NamedTuple):
    """HeaderNames of the identity headers, in lower case."""

    tenant: bytes
    priority: bytes
    slo_ttft_ms: bytes


def trusted_peers(config: Config) -> Trusted:
    """Networks with clients that may declare an identity. Raises ConfigError."""
    return Trusted(config.headers.trust_headers_from, "--trust-headers-from")


def header_names(config: Config) -> HeaderNames:
    names = [config.headers.tenant_header, config.headers.priority_header, config.headers.slo_header]
    return HeaderNames(*[name.lower().encode() for name in names])


def declared_identity(headers: Iterable[Header], names: HeaderNames) -> DeclaredIdentity | None:
    """Parse the identity headers; None where there are none. An invalid value counts as missing."""
    tenant: str | None = None
    priority: int | None = None
    slo_s: float | None = None
    is_said = False
    for name, value in headers:
        if name == names.tenant:
            tenant, is_said = _name(value), True
        elif name == names.priority:
            priority, is_said = _integer(value), True
        elif name == names.slo_ttft_ms:
            number, is_said = _integer(value), True
            slo_s = number / 1000 if number is not None and number > 0 else None
    return DeclaredIdentity(tenant, priority, slo_s) if is_said else None


def objective_priority(headers: Iterable[Header], objectives: Mapping[str, int]) -> int | None:
    """The priority by the objective that a header names; None without one. Objectives count up, the gateway's
    priorities down; an objective that is not known counts 0."""
    given = {name: value for name, value in headers if name in OBJECTIVE and value}
    value = given.get(OBJECTIVE[0], given.get(OBJECTIVE[1]))
    return -objectives.get(value.decode("utf-8", "replace"), 0) if value is not None else None


def tenant_of_key(headers: Iterable[Header]) -> str:
    """Tenant name derived from a hash of the client's key, so that requests with one key share it. The key
    itself is not kept."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            value = key.strip() if scheme.lower() == b"bearer" else value
        elif name != b"x-api-key":
            continue
        if value:  # an empty header says nothing; a key may stand in the other one
            return _named(value)
    return ANONYMOUS


def _named(key: bytes) -> str:
    """Cache the hash of keys of usual length only: longer ones must not fill the memory."""
    return _hashed(key) if len(key) <= MAX_KEY_BYTES else _hashed.__wrapped__(key)


@lru_cache(4096)
def _hashed(key: bytes) -> str:
    return f"key-{sha256(key).hexdigest()[:KEY_DIGITS]}" if key else ANONYMOUS


def _name(value: bytes) -> str | None:
    name = value.decode("utf-8", "replace").strip()[:MAX_NAME_CHARS]
    return name if name and name.isprintable() else None


def _integer(value: bytes) -> int | None:
    try:
        number = int(value)
    except ValueError:
        return None
    return number if -(2**31) <= number <= 2**31 else None

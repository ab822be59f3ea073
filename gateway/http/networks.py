"""Networks in options, and the addresses in them; all parsing of both is here.

Workers' addresses also come from the admin API, from DNS and from engines. Some are never a worker's: those
of metadata services, which hand out the machine's credentials; link-local ones; those of no single host.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from gateway.core.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA = "it is a cloud's metadata service, which hands out credentials"
NOBODYS = (
    ("169.254.169.254/32", _METADATA),  # AWS, Google, Azure, and most others
    ("169.254.170.2/32", _METADATA),  # AWS: tasks of ECS
    ("169.254.170.23/32", _METADATA),  # AWS: pods of EKS
    ("169.254.0.23/32", _METADATA),  # Tencent
    ("169.254.42.42/32", _METADATA),  # Scaleway
    ("100.100.100.200/32", _METADATA),  # Alibaba
    ("192.0.0.192/32", _METADATA),  # Oracle
    ("168.63.129.16/32", _METADATA),  # Azure: the host's own agent
    ("fd00:ec2::/32", _METADATA),  # AWS: ::254, of EKS ::23
    ("fd20:ce::254/128", _METADATA),  # Google
    ("fd00:c1::a9fe:a9fe/128", _METADATA),  # Oracle
    ("fd00:42::42/128", _METADATA),  # Scaleway
    ("169.254.0.0/16", "it is link-local"),
    ("fe80::/10", "it is link-local"),
    ("0.0.0.0/8", "it is not a host's address"),
    ("::/128", "it is not a host's address"),
    ("224.0.0.0/4", "it is multicast"),
    ("ff00::/8", "it is multicast"),
    ("255.255.255.255/32", "it is broadcast"),
    ("240.0.0.0/4", "it is reserved"),
)
METADATA_NAMES = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "instance-data",
        "instance-data.ec2.internal",
    }
)
"""Names of metadata services; their addresses are rejected anyway, once they are known."""
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""NAT64 prefix: routers translate its last four bytes to an IPv4 address (RFC 6052)."""


def network(text: str) -> Network:
    """Parse a network or a single address. Raises ValueError with the reason."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as exc:
        raise ValueError(f"{exc}; give a network or an address, as in 10.0.0.0/8") from exc


def address(text: str) -> Address | None:
    """Parse an address; None if it is none. IPv4-mapped IPv6 addresses become IPv4."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


class Networks:
    """Set of networks. Raises ValueError for an invalid one."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks = [network(text) for text in texts]
        self.has = lru_cache(1024)(self._has)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _has(self, text: str) -> bool:
        found = address(text)
        return found is not None and any(found in each for each in self._networks)


UNIX = "unix"


def check_peers(option: str, texts: Iterable[str]) -> None:
    """Check a list of networks or UNIX. Raises ValueError that names the option."""
    try:
        for text in texts:
            if text != UNIX:
                network(text)
    except ValueError as exc:
        raise ValueError(f"{option}: {exc}, or 'unix'") from exc


class Trusted:
    """Trusted peers: networks, and with "unix" all clients of our Unix socket."""

    def __init__(self, texts: Iterable[str], option: str) -> None:
        """Parse the list. Raises ConfigError that names the option."""
        texts = list(texts)
        try:
            check_peers(option, texts)
        except ValueError as exc:
            raise ConfigError(str(exc)) from exc
        self._networks = Networks(each for each in texts if each != UNIX)
        self._trusts_unix = UNIX in texts

    def __bool__(self) -> bool:
        return self._trusts_unix or bool(self._networks)

    def trusts(self, peer: str | None) -> bool:
        """Return True if a peer is trusted: an address, "" over a Unix socket, None if it is gone."""
        return False if peer is None else self._networks.has(peer) if peer else self._trusts_unix


_NOBODYS = [(network(text), why) for text, why in NOBODYS]


class Reachable:
    """Allowed addresses of workers: those in `networks`, any where there are none. Reserved ones are allowed
    only by a network that lies within them. Raises ValueError."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [network(text) for text in networks]
        self.refusal = lru_cache(4096)(self._refusal)

    def _refusal(self, text: str) -> str | None:
        """Explain why an address is not allowed for a worker; None where it is."""
        if (found := address(text)) is None:
            return f"{text} is not an address"
        named = [each for each in self._networks if found in each]
        leads_to = [found, *_inner(found)]
        for nobodys, why in _NOBODYS:
            if any(each in nobodys for each in leads_to) and not any(_lies_in(n, nobodys) for n in named):
                return f"{text} is not an address for a worker: {why}"
        if self._networks and not named:
            return f"{text} is in none of --worker-networks"
        return None


def _inner(found: Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 address embedded in an IPv6 address (NAT64, 6to4, Teredo), if any."""
    if not isinstance(found, ipaddress.IPv6Address):
        return []
    if found in _TRANSLATED or (int(found) >> 8 > 0 and int(found) >> 32 == 0):  # "::10.0.0.1" too
        return [ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)]
    return [each for each in (found.sixtofour, found.teredo[1] if found.teredo else None) if each]


def is_literal(host: str) -> bool:
    """Return True if a host is an address, not a name."""
    return address(host) is not None


def name_refusal(host: str) -> str | None:
    """Explain why a name is not allowed for a worker; None where it is."""
    if host.lower().removesuffix(".") in METADATA_NAMES:
        return f"{host} is not a name for a worker: {_METADATA}"
    return None


def _lies_in(inner: Network, outer: Network) -> bool:
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)

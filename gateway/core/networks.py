"""Networks as options name them, and which addresses are in them. The only place where they are read.

Of workers, whose addresses also come from the admin API and from DNS, some are nobody's: where cloud hosts
keep the credentials of the machine, what is on this link only, what is no address of one host.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from gateway.core.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NOBODYS = (
    ("fd00:ec2::254/128", "it is where a cloud host keeps its credentials"),
    ("169.254.169.254/32", "it is where a cloud host keeps its credentials"),
    ("169.254.0.0/16", "it is link-local"),
    ("fe80::/10", "it is link-local"),
    ("0.0.0.0/8", "it is no host's"),
    ("::/128", "it is no host's"),
    ("224.0.0.0/4", "it is multicast"),
    ("ff00::/8", "it is multicast"),
    ("255.255.255.255/32", "it is broadcast"),
)


def network(text: str) -> Network:
    """Of one address, too. Raises ValueError in words."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as exc:
        raise ValueError(f"{exc}; give a network or an address, as in 10.0.0.0/8") from exc


def address(text: str) -> Address | None:
    """None where it is none. One of IPv4 that is dressed as IPv6 is what it is."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


class Networks:
    """Raises ValueError for what is none."""

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
    """Networks, or UNIX. Raises ValueError that names the option."""
    try:
        for text in texts:
            if text != UNIX:
                network(text)
    except ValueError as exc:
        raise ValueError(f"{option}: {exc}, or 'unix'") from exc


class Trusted:
    """Peers who are believed: networks, and with "unix" those who may connect to our Unix socket."""

    def __init__(self, texts: Iterable[str], option: str) -> None:
        """Raises ConfigError that names the option."""
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
        """`peer` is an address, "" over a Unix socket, None if it is gone."""
        return False if peer is None else self._networks.has(peer) if peer else self._trusts_unix


_NOBODYS = [(network(text), why) for text, why in NOBODYS]


class Reachable:
    """Which addresses workers may have: those in `networks`, any where there are none. Nobody's are among
    them only where a network that lies in them is named. Raises ValueError."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [network(text) for text in networks]
        self.refusal = lru_cache(4096)(self._refusal)

    def _refusal(self, text: str) -> str | None:
        """Why an address is none of a worker; None where it is one."""
        if (found := address(text)) is None:
            return f"{text} is no address"
        named = [each for each in self._networks if found in each]
        for nobodys, why in _NOBODYS:
            if found in nobodys and not any(_lies_in(each, nobodys) for each in named):
                return f"{text} is no address for a worker: {why}"
        if self._networks and not named:
            return f"{text} is in none of --worker-networks"
        return None


def _lies_in(inner: Network, outer: Network) -> bool:
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)

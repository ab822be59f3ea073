"""Client addresses behind proxies, from the forwarding headers of trusted proxies.

    client ─► proxy ─► proxy ─► peer ─► here
    X-Forwarded-For: client, proxy, proxy         each appended its own peer

Read from the right: entries of trusted proxies are true. The first untrusted address is the client; entries
before it may be forged.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gateway.http.messages import Header
from gateway.http.networks import address

FORWARDED: Final = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-server",
        b"x-real-ip",
    }
)
"""Headers that proxies add to requests; those of untrusted peers are not passed on to workers."""
MAX_HOPS: Final = 32
MAX_CHARS: Final = 2048
"""Characters read, from the end: the rest comes from untrusted peers."""
SCHEMES: Final[tuple[str, ...]] = ("http", "https")

Trusts = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a request. `client` is an address, or a proxy's substitute ("unknown", "_hidden"); "" over a
    Unix socket. `hops` are the proxies behind it, up to us. `scheme` and `host` are the client's."""

    client: str
    hops: tuple[str, ...]
    scheme: str
    host: bytes

    def headers(self) -> list[Header]:
        """Return the forwarding headers for workers."""
        chain = ", ".join(each for each in (self.client, *self.hops) if each)
        headers = [(b"x-forwarded-for", chain.encode())] if chain else []
        return [*headers, (b"x-forwarded-proto", self.scheme.encode()), (b"x-forwarded-host", self.host)]


def origin(
    headers: Iterable[Header], peer: str, trusts: Trusts, *, scheme: str, prefers: str = "auto"
) -> Origin:
    """Find the origin of a request. `peer` is the other end of its connection, `scheme` the connection's.
    `prefers` is the header to read: "x-forwarded-for", "forwarded", or "auto" for the first of them that is
    there."""
    values: dict[bytes, list[str]] = {}
    host = b""
    for name, value in headers:
        if name in FORWARDED:
            values.setdefault(name, []).append(value.decode("latin-1"))
        elif name == b"host":
            host = value
    if not trusts(peer) or not values:
        return Origin(peer, (), scheme, host)
    if prefers == "forwarded" or (prefers == "auto" and b"x-forwarded-for" not in values):
        return _by_forwarded(values.get(b"forwarded", []), peer, trusts, scheme, host)
    hops = [_address(each) for each in _items(values.get(b"x-forwarded-for", []))]
    proto = _last(values.get(b"x-forwarded-proto", [])).lower()
    said_host = _last(values.get(b"x-forwarded-host", [])).encode("latin-1")
    client, behind = _walk(hops, peer, trusts)
    return Origin(client, behind, proto if proto in SCHEMES else scheme, said_host or host)


def _by_forwarded(values: list[str], peer: str, trusts: Trusts, scheme: str, host: bytes) -> Origin:
    """Find the origin by RFC 7239."""
    elements = [_pairs(each) for each in _items(values)]
    client, behind = _walk([_address(pairs.get("for", "unknown")) for pairs in elements], peer, trusts)
    last = elements[-1] if elements else {}
    proto = last.get("proto", "").lower()
    return Origin(
        client,
        behind,
        proto if proto in SCHEMES else scheme,
        last.get("host", "").encode("latin-1") or host,
    )


def _walk(hops: list[str], peer: str, trusts: Trusts) -> tuple[str, tuple[str, ...]]:
    """Return the client, and the hops behind it."""
    behind = [peer]
    for hop in reversed(hops[-MAX_HOPS:]):
        behind.insert(0, hop)
        if not trusts(hop):
            break
    return behind[0], tuple(behind[1:])


def _items(values: list[str]) -> list[str]:
    """Split a list in one or several headers; commas in quotes do not separate."""
    text = (values[0] if len(values) == 1 else ",".join(values))[-MAX_CHARS:]
    if '"' not in text:
        return [stripped for each in text.split(",") if (stripped := each.strip())]
    items, item, is_quoted = [], "", False
    for char in text:
        if char == '"':
            is_quoted = not is_quoted
        if char == "," and not is_quoted:
            items.append(item.strip())
            item = ""
        else:
            item += char
    return [each for each in [*items, item.strip()] if each]


def _pairs(element: str) -> dict[str, str]:
    found = {}
    for pair in element.split(";"):
        name, _, value = pair.partition("=")
        found[name.strip().lower()] = value.strip().strip('"')
    return found


@lru_cache(4096)
def _address(text: str) -> str:
    """Remove the port of an address; a word that is no address stays, anything else is "unknown"."""
    bare = text.strip().strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    if found := address(bare):
        return str(found)
    return bare if bare.replace("_", "").replace("-", "").isalnum() and bare.isascii() else "unknown"


def _last(values: list[str]) -> str:
    items = _items(values)
    return items[-1] if items and items[-1].isprintable() else ""

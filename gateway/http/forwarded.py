"""Who a request comes from, where proxies stand in between: by what those say that are trusted.

    client ─► proxy ─► proxy ─► peer ─► here
    X-Forwarded-For: client, proxy, proxy         each wrote down who it had before it

Read from the right: as long as who wrote is trusted, what it wrote is true. The first one that is not is the
client; what stands before it, anybody may have written.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from gateway.http.messages import Header
from gateway.http.networks import address

FORWARDED = frozenset(
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
"""What proxies say of requests: of none that is not trusted it goes on to workers."""
MAX_HOPS = 32
MAX_CHARS = 2048
"""Read from the end: what is longer was written by those who are not believed."""
SCHEMES = ("http", "https")

Trusts = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Origin:
    """`client` is an address, or what a proxy says instead ("unknown", "_hidden"); "" over a Unix socket.
    `hops` are those behind it, up to us. `scheme` and `host` are as the client wrote them."""

    client: str
    hops: tuple[str, ...]
    scheme: str
    host: bytes

    def headers(self) -> list[Header]:
        """As workers get it."""
        told = ", ".join(each for each in (self.client, *self.hops) if each)
        headers = [(b"x-forwarded-for", told.encode())] if told else []
        return [*headers, (b"x-forwarded-proto", self.scheme.encode()), (b"x-forwarded-host", self.host)]


def origin(
    headers: Iterable[Header], peer: str, trusts: Trusts, *, scheme: str, prefers: str = "auto"
) -> Origin:
    """`peer` is whose connection it is, `scheme` what it speaks. `prefers` is the header that is read:
    "x-forwarded-for", "forwarded", or the first of them that is there."""
    told: dict[bytes, list[str]] = {}
    host = b""
    for name, value in headers:
        if name in FORWARDED:
            told.setdefault(name, []).append(value.decode("latin-1"))
        elif name == b"host":
            host = value
    if not trusts(peer) or not told:
        return Origin(peer, (), scheme, host)
    if prefers == "forwarded" or (prefers == "auto" and b"x-forwarded-for" not in told):
        return _by_forwarded(told.get(b"forwarded", []), peer, trusts, scheme, host)
    hops = [_address(each) for each in _items(told.get(b"x-forwarded-for", []))]
    proto = _last(told.get(b"x-forwarded-proto", [])).lower()
    said_host = _last(told.get(b"x-forwarded-host", [])).encode("latin-1")
    client, behind = _walk(hops, peer, trusts)
    return Origin(client, behind, proto if proto in SCHEMES else scheme, said_host or host)


def _by_forwarded(values: list[str], peer: str, trusts: Trusts, scheme: str, host: bytes) -> Origin:
    """RFC 7239."""
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
    """The client, and those behind it."""
    behind = [peer]
    for hop in reversed(hops[-MAX_HOPS:]):
        behind.insert(0, hop)
        if not trusts(hop):
            break
    return behind[0], tuple(behind[1:])


def _items(values: list[str]) -> list[str]:
    """Of a list in one or several headers; commas in quotes are none."""
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
    """Without its port; what is no address stays as it is, as far as it is a word."""
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

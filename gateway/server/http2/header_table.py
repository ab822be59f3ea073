"""Tables of HPACK (RFC 7541, 2.3 and appendix A): static headers, and those that a peer has added."""

from typing import Final

from gateway.http.messages import Header

MAX_TABLE_BYTES: Final = 4096
"""Size of a table before SETTINGS say otherwise, and ours say nothing."""

ENTRY_BYTES: Final = 32
"""Each header counts as its name, its value, and this."""

_STATIC: Final[list[Header]] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
]


class HeaderTable:
    """Static and dynamic table of one direction: index 1 is the first static header, and the newest dynamic
    one follows the static ones."""

    __slots__ = ("_added", "_num_bytes", "_max_bytes")

    def __init__(self) -> None:
        self._added: list[Header] = []  # the newest is the last
        self._num_bytes = 0
        self._max_bytes = MAX_TABLE_BYTES

    def __repr__(self) -> str:
        return f"HeaderTable({len(self._added)} added, {self._num_bytes} of {self._max_bytes} bytes)"

    def get(self, index: int) -> Header | None:
        """Return the header of an index; None where there is none."""
        if index <= len(_STATIC):
            return _STATIC[index - 1] if index else None
        at = len(_STATIC) + len(self._added) - index
        return self._added[at] if at >= 0 else None

    def add(self, header: Header) -> None:
        """Add a header before the others; one that is larger than the table empties it."""
        self._added.append(header)
        self._num_bytes += size_of(header)
        self._evict()

    def resize(self, max_bytes: int) -> None:
        """Change the size, to `MAX_TABLE_BYTES` at most."""
        self._max_bytes = max_bytes
        self._evict()

    def _evict(self) -> None:
        num_evicted = 0
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= size_of(self._added[num_evicted])
            num_evicted += 1
        if num_evicted:
            del self._added[:num_evicted]


def size_of(header: Header) -> int:
    return ENTRY_BYTES + len(header[0]) + len(header[1])

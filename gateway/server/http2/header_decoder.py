"""Header blocks as HPACK has them (RFC 7541, 6): decoded within limits, those that repeat only once.

1xxxxxxx   index                              a header of the tables
01xxxxxx   index or 0, [name], value          a header that enters the table
001xxxxx   size                               the table's size, before all headers
000?xxxx   index or 0, [name], value          a header that enters no table

A peer sends few different blocks once its table is filled, and one that leaves the table as it is means the
same until a later one changes the table.
"""

from typing import Final

from gateway.http.messages import Header
from gateway.server.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Error
from gateway.server.http2.header_table import MAX_TABLE_BYTES, HeaderTable, size_of
from gateway.server.http2.huffman import HuffmanError, huffman_decoded
from gateway.server.http2.request_head import StreamHead

MAX_KNOWN_BLOCKS: Final = 64
MAX_KNOWN_BYTES: Final = 512
"""Longer blocks are decoded each time."""

MAX_NUMBER_BITS: Final = 28
"""Numbers beyond are lengths and indices over every limit here."""


class HeaderList:
    """Decoded header block."""

    __slots__ = ("headers", "_request")

    def __init__(self, headers: list[Header]) -> None:
        self.headers = headers
        self._request: StreamHead | None = None

    def __repr__(self) -> str:
        return f"HeaderList({len(self.headers)} headers)"

    @property
    def request(self) -> StreamHead:
        """The headers as those of a request; a block that repeats is judged once."""
        request = self._request
        if request is None:
            request = self._request = StreamHead(self.headers)
        return request


class HeaderDecoder:
    """Decoder of one connection's header blocks."""

    __slots__ = ("_table", "_known", "_max_bytes", "_block", "_at")

    def __init__(self, max_bytes: int) -> None:
        """Start with empty tables; `max_bytes` is the size of a decoded list as RFC 9113 (6.5.2) has it."""
        self._table = HeaderTable()
        self._known: dict[bytes, HeaderList] = {}
        self._max_bytes = max_bytes
        self._block, self._at = b"", 0

    def __repr__(self) -> str:
        return f"HeaderDecoder({len(self._known)} blocks known, {self._table})"

    def decode(self, block: bytes) -> HeaderList:
        """Decode a header block. Raises Http2Error: after a fault the tables of both sides differ."""
        known = self._known.get(block)
        if known is not None:
            return known
        self._block, self._at = block, 0
        is_same = True
        headers: list[Header] = []
        num_left = self._max_bytes
        while self._at < len(block):
            octet = block[self._at]
            if octet & 0xE0 == 0x20:
                self._resize(is_first=not headers)
                is_same = False
                continue
            if octet & 0x80:
                header = self._indexed(self._number(7))
            else:
                header = self._literal(6 if octet & 0x40 else 4)
                if octet & 0x40:
                    self._table.add(header)
                    is_same = False
            headers.append(header)
            num_left -= size_of(header)
            if num_left < 0:
                raise Http2Error(ENHANCE_YOUR_CALM, "the headers are too large")
        return self._remembered(block, HeaderList(headers), is_same)

    def _remembered(self, block: bytes, decoded: HeaderList, is_same: bool) -> HeaderList:
        if not is_same or len(self._known) >= MAX_KNOWN_BLOCKS:
            self._known.clear()  # indices may mean other entries from now on
        if is_same and len(block) <= MAX_KNOWN_BYTES:
            self._known[block] = decoded
        return decoded

    def _resize(self, *, is_first: bool) -> None:
        size = self._number(5)
        if not is_first:
            raise _broken("a table size behind a header")
        if size > MAX_TABLE_BYTES:
            raise _broken("a table over the size in SETTINGS")
        self._table.resize(size)

    def _indexed(self, index: int) -> Header:
        header = self._table.get(index)
        if header is None:
            raise _broken(f"index {index} is in no table")
        return header

    def _literal(self, num_bits: int) -> Header:
        index = self._number(num_bits)
        name = self._indexed(index)[0] if index else self._string()
        return name, self._string()

    def _string(self) -> bytes:
        if self._at >= len(self._block):
            raise _broken("it ends before a string")
        is_huffman = self._block[self._at] & 0x80
        size = self._number(7)
        start = self._at
        self._at = start + size
        if self._at > len(self._block):
            raise _broken("it ends within a string")
        string = self._block[start : self._at]
        if not is_huffman:
            return string
        try:
            return huffman_decoded(string)
        except HuffmanError as error:
            raise _broken(str(error)) from error

    def _number(self, num_bits: int) -> int:
        """Read a number with a prefix of so many bits (RFC 7541, 5.1)."""
        block, at = self._block, self._at
        most = (1 << num_bits) - 1
        number = block[at] & most
        at += 1
        if number == most:
            shift = 0
            while True:
                if at >= len(block) or shift >= MAX_NUMBER_BITS:
                    raise _broken("a number that does not end")
                octet = block[at]
                at += 1
                number += (octet & 127) << shift
                shift += 7
                if octet < 128:
                    break
        self._at = at
        return number


def _broken(why: str) -> Http2Error:
    return Http2Error(COMPRESSION_ERROR, f"the header block is broken: {why}")

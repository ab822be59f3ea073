"""Messages of Envoy (ProcessingRequest of `proto/kvgate/v1/ext_proc.proto`) decoded by hand: a message costs
a part of what protobuf's objects cost.

Any bytes are read, merged or rejected as protobuf does; the tests compare both. Two things are left out:
metadata stays undecoded until it is looked up, and what is beside a body is limited. Truncated fields are
found by an IndexError, or because they end behind the message that they are in.
"""

from typing import Final

from mypy_extensions import mypyc_attr

from gateway.epp.message_fields import MAX_BESIDE_BYTES, MAX_FIELDS
from gateway.epp.messages import ProtocolError
from gateway.http.messages import Header

# Numbers of the fields in `request`.
REQUEST_HEADERS: Final = 2
RESPONSE_HEADERS: Final = 3
REQUEST_BODY: Final = 4
RESPONSE_BODY: Final = 5
REQUEST_TRAILERS: Final = 6
RESPONSE_TRAILERS: Final = 7

# Fields by their tags: number and kind (2: length and bytes; 0: a number).
_METADATA_CONTEXT: Final = 8 << 3 | 2
_PROTOCOL_CONFIG: Final = 11 << 3 | 2
_REQUEST_MODE: Final = 1 << 3  # of ProtocolConfiguration
_RESPONSE_MODE: Final = 2 << 3
_HEADERS: Final = 1 << 3 | 2  # of HttpHeaders and HeaderMap
_HEADERS_END: Final = 3 << 3
_BODY: Final = 1 << 3 | 2  # of HttpBody
_BODY_END: Final = 2 << 3
_KEY: Final = 1 << 3 | 2  # of HeaderValue
_VALUE: Final = 2 << 3 | 2
_RAW_VALUE: Final = 3 << 3 | 2

_MAX_DEPTH: Final = 100
"""Messages and groups within one another, as in protobuf."""
_BROKEN: Final = "the message is not a ProcessingRequest"


@mypyc_attr(acyclic=True)
class ProcessingRequest:
    """Event of a request or of its answer; `kind` is the number of its field, 0 for unknown ones."""

    __slots__ = (
        "kind",
        "headers",
        "body",
        "is_end",
        "has_modes",
        "request_mode",
        "response_mode",
        "metadata",
        "_num_beside",
        "_num_fields",
    )

    def __init__(self) -> None:
        self.kind = 0
        self.headers: list[Header] = []
        """With pseudo-headers, in order; names as Envoy sends them, in lower case."""
        self.body = b""
        self.is_end = False
        self.has_modes = False
        self.request_mode = self.response_mode = 0
        self.metadata: list[bytes] = []
        """Parts of an encoded FilterMetadata."""
        self._num_beside = self._num_fields = 0

    def _count(self, num_bytes: int) -> None:
        self._num_beside += num_bytes
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise ProtocolError(f"the message has over {MAX_FIELDS:,} fields")
        if self._num_beside > MAX_BESIDE_BYTES:
            raise ProtocolError(f"at most {MAX_BESIDE_BYTES:,} bytes are accepted in addition to a body")

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end:
            begin = at
            tag, start, at = _field(data, at, end, _MAX_DEPTH)
            if tag == REQUEST_BODY << 3 | 2 or tag == RESPONSE_BODY << 3 | 2:
                self._count(start - begin)
                self._become(tag >> 3)
                self._read_body(data, start, at)
                continue
            self._count(at - begin)
            if tag == REQUEST_HEADERS << 3 | 2 or tag == RESPONSE_HEADERS << 3 | 2:
                self._become(tag >> 3)
                self._read_headers(data, start, at)
            elif tag == _METADATA_CONTEXT:
                self.metadata.append(data[start:at])
            elif tag == _PROTOCOL_CONFIG:
                self._read_modes(data, start, at)
            elif tag == REQUEST_TRAILERS << 3 | 2 or tag == RESPONSE_TRAILERS << 3 | 2:
                self._become(tag >> 3)
                self._check(data, start, at)

    def _become(self, kind: int) -> None:
        """Drop what another field of the same `oneof` has set; a repeated one is merged."""
        if self.kind != kind:
            if self.kind:
                self.headers, self.body, self.is_end = [], b"", False
            self.kind = kind

    def _read_body(self, data: bytes, at: int, end: int) -> None:
        while at < end:
            begin = at
            tag, start, at = _field(data, at, end, _MAX_DEPTH - 1)
            if tag == _BODY:
                self.body = data[start:at]
                self._count(start - begin)
                continue
            self._count(at - begin)
            if tag == _BODY_END:
                self.is_end = _value(data, start) != 0

    def _read_headers(self, data: bytes, at: int, end: int) -> None:
        while at < end:
            tag, start, at = _field(data, at, end, _MAX_DEPTH - 1)
            self._count(0)
            if tag == _HEADERS:
                self._read_header_map(data, start, at)
            elif tag == _HEADERS_END:
                self.is_end = _value(data, start) != 0

    def _read_header_map(self, data: bytes, at: int, end: int) -> None:
        headers = self.headers
        while at < end:
            tag, start, at = _field(data, at, end, _MAX_DEPTH - 2)
            if tag == _HEADERS:
                headers.append(self._header(data, start, at))
                if len(headers) > MAX_FIELDS:
                    raise ProtocolError(f"at most {MAX_FIELDS:,} headers are accepted")
            else:
                self._count(0)

    def _read_modes(self, data: bytes, at: int, end: int) -> None:
        self.has_modes = True
        while at < end:
            tag, start, at = _field(data, at, end, _MAX_DEPTH - 1)
            if tag == _REQUEST_MODE:
                self.request_mode = _int32(_value(data, start))
            elif tag == _RESPONSE_MODE:
                self.response_mode = _int32(_value(data, start))

    def _header(self, data: bytes, at: int, end: int) -> Header:
        key = value = raw_value = b""
        num = 0
        while at < end:
            tag, start, at = _field(data, at, end, _MAX_DEPTH - 3)
            num += 1
            if num > 3:
                self._count(0)
            if tag == _KEY:
                key = data[start:at]
                key.decode()  # a string is rejected where it is not UTF-8
            elif tag == _RAW_VALUE:
                raw_value = data[start:at]
            elif tag == _VALUE:
                value = data[start:at]
        return key, raw_value or value

    def _check(self, data: bytes, at: int, end: int) -> None:
        """Read a message of which no field is used."""
        while at < end:
            self._count(0)
            _, _, at = _field(data, at, end, _MAX_DEPTH - 1)


def decode(data: bytes) -> ProcessingRequest:
    """Decode a message of Envoy. Raises ProtocolError, also over 128 KiB beside a body, or 4,096 headers."""
    message = ProcessingRequest()
    try:
        message._read(data)
    except (IndexError, UnicodeDecodeError) as exc:
        raise ProtocolError(_BROKEN) from exc
    return message


def _field(data: bytes, at: int, end: int, depth: int) -> tuple[int, int, int]:
    """Return the tag of the field at `at`, and where its content begins and ends; groups count as one field
    with all that is in them, `depth` levels at most."""
    tag = data[at]
    at += 1
    if tag >= 0x80:
        tag, at = _tag(data, at - 1)
    if tag & 7 == 2:
        size = data[at]
        at += 1
        if size >= 0x80:
            second = data[at]
            if second < 0x80:
                size, at = size & 0x7F | second << 7, at + 1
            else:
                size, at = _number(data, at - 1, 5)
        stop = at + size
    else:
        stop = _skipped(data, at, end, tag, depth)
    if stop > end or tag < 8:
        raise ProtocolError(_BROKEN)
    return tag, at, stop


def _tag(data: bytes, at: int) -> tuple[int, int]:
    tag, at = _number(data, at, 5)
    if tag >> 32:
        raise ProtocolError(_BROKEN)
    return tag, at


def _number(data: bytes, at: int, max_size: int) -> tuple[int, int]:
    """Return a number of seven bits in an octet, and its end."""
    value = 0
    for index in range(max_size):
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, at
    raise ProtocolError(_BROKEN)


def _value(data: bytes, at: int) -> int:
    octet = data[at]
    if octet < 0x80:
        return octet
    value, _ = _number(data, at, 10)
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _int32(value: int) -> int:
    return ((value & 0xFFFF_FFFF) ^ 0x8000_0000) - 0x8000_0000


def _skipped(data: bytes, at: int, end: int, tag: int, depth: int) -> int:
    """Return the end of a field that is no length and bytes."""
    kind = tag & 7
    if kind == 0:
        return _number(data, at, 10)[1]
    if kind == 1:
        return at + 8
    if kind == 5:
        return at + 4
    if kind == 3:
        return _group_end(data, at, min(end, at + MAX_FIELDS), tag, depth)
    raise ProtocolError(_BROKEN)


def _group_end(data: bytes, at: int, end: int, tag: int, depth: int) -> int:
    within = [tag + 1]
    while at < end and len(within) <= depth:
        inner, at = _tag(data, at)
        kind = inner & 7
        if kind == 3:
            within.append(inner + 1)
        elif kind == 2:
            size, at = _number(data, at, 5)
            at += size
        elif kind != 4:
            at = _skipped(data, at, end, inner, depth)
        elif inner != within.pop():
            break
        elif not within:
            return at
    raise ProtocolError(_BROKEN)

"""Headers of the PROXY protocol, whole, in pieces and broken."""

import pytest

from gateway.http.proxy_protocol import MAX_BYTES, MAX_V1, V2, Proxied, read
from tests.support.blackbox.proxy_headers import V1_LINE, v2

WHOLE = [
    pytest.param(V1_LINE, ("203.0.113.7", 1234), id="1"),
    pytest.param(b"PROXY TCP6 2001:db8::1 fd00::1 1234 80\r\n", ("2001:db8::1", 1234), id="1, IPv6"),
    pytest.param(b"PROXY UNKNOWN\r\n", None, id="1, unknown source"),
    pytest.param(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None, id="1, unknown source, with addresses"),
    pytest.param(v2(), ("203.0.113.7", 1234), id="2"),
    pytest.param(v2("2001:db8::1"), ("2001:db8::1", 1234), id="2, IPv6"),
    pytest.param(v2(more=b"\x04\x00\x02ab"), ("203.0.113.7", 1234), id="2, with more"),
    pytest.param(v2(command=0), None, id="2, the balancer itself"),
    pytest.param(V2 + b"\x21\x31\x00\x02ab", None, id="2, a Unix socket"),
    pytest.param(V2 + b"\x20\x00\x00\x00", None, id="2, nothing"),
]


@pytest.mark.parametrize(("header", "source"), WHOLE)
def test_the_source_is_read_from_a_header_in_any_pieces(
    header: bytes, source: tuple[str, int] | None
) -> None:
    assert read(header + b"POST / HTTP/1.1\r\n") == Proxied(len(header), source)
    for cut in range(len(header)):
        assert read(header[:cut]) is None


@pytest.mark.parametrize("data", [b"POST / HTTP/1.1", b"PROPFIND /", b"\x16\x03\x01", b"\r\n\r\nGET"])
def test_other_bytes_are_no_header(data: bytes) -> None:
    assert read(data) == Proxied(0)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 203.0.113.7 10.0.0.1 1234\r\n",
        b"PROXY UDP4 203.0.113.7 10.0.0.1 1234 80\r\n",
        b"PROXY TCP4 2001:db8::1 fd00::1 1234 80\r\n",
        b"PROXY TCP4 engine 10.0.0.1 1234 80\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 70000 80\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 \xb2 80\r\n",
        b"PROXY " + b"x" * MAX_V1,
        V2 + b"\x31\x11\x00\x0c" + bytes(12),
        V2 + b"\x22\x11\x00\x0c" + bytes(12),
        V2 + b"\x21\x11\x00\x04" + bytes(4),
        V2 + b"\x21\x11" + MAX_BYTES.to_bytes(2, "big"),
    ],
)
def test_a_broken_header_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        read(data)

"""PROXY protocol, versions 1 and 2: the header by which a load balancer passes on the client's address at the
start of a connection (haproxy.org/download/3.0/doc/proxy-protocol.txt). Pure."""

import ipaddress
from dataclasses import dataclass

V1, V2 = b"PROXY ", b"\r\n\r\n\x00\r\nQUIT\n"
MAX_V1 = 107
HEAD_V2 = 16
MAX_BYTES = 2048
"""Size of a version 2 header with a load balancer's additions: certificates in it are not read."""
_LENGTHS = {0x1: 12, 0x2: 36}
"""Bytes of two addresses and ports, by family."""


@dataclass(frozen=True, slots=True)
class Proxied:
    """Parsed header of `num_bytes`. `source` is None where it names no client: the load balancer's
    own check."""

    num_bytes: int
    source: tuple[str, int] | None = None


def read(data: bytes) -> Proxied | None:
    """Parse the header at the beginning of a connection; None while it is incomplete, a header of 0 bytes
    where there is none. Raises ValueError for a broken one."""
    for mark, parse in ((V2, _v2), (V1, _v1)):
        if data.startswith(mark):
            return parse(data)
        if mark.startswith(data):
            return None
    return Proxied(0)


def _v1(data: bytes) -> Proxied | None:
    end = data.find(b"\r\n", 0, MAX_V1)
    if end < 0:
        if len(data) >= MAX_V1:
            raise ValueError("its line does not end")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return Proxied(end + 2)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise ValueError("its line is not PROXY TCP4|TCP6 source destination port port")
    source, port = words[2].decode("ascii", "replace"), words[4]
    found = ipaddress.ip_address(source)
    if found.version != (4 if words[1] == b"TCP4" else 6) or not port.isdigit() or int(port) > 65535:
        raise ValueError("its address or port is invalid")
    return Proxied(end + 2, (str(found), int(port)))


def _v2(data: bytes) -> Proxied | None:
    if len(data) < HEAD_V2:
        return None
    version, command, family = data[12] >> 4, data[12] & 15, data[13] >> 4
    size = HEAD_V2 + int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise ValueError("its version or command is unknown")
    if size > MAX_BYTES:
        raise ValueError(f"it is over {MAX_BYTES} bytes")
    if len(data) < size:
        return None
    length = _LENGTHS.get(family)
    if command == 0 or length is None:  # the load balancer itself, or a Unix socket of its own
        return Proxied(size)
    if size < HEAD_V2 + length:
        raise ValueError("its addresses are truncated")
    width = (length - 4) // 2
    source = ipaddress.ip_address(data[HEAD_V2 : HEAD_V2 + width])
    port = int.from_bytes(data[HEAD_V2 + 2 * width : HEAD_V2 + 2 * width + 2], "big")
    return Proxied(size, (str(source), port))

"""Headers of the PROXY protocol, byte for byte."""

import ipaddress

from gateway.http.proxy_protocol import V2


def v2(source: str = "203.0.113.7", port: int = 1234, *, command: int = 1, more: bytes = b"") -> bytes:
    ip = ipaddress.ip_address(source)
    family = 0x11 if ip.version == 4 else 0x21
    body = ip.packed * 2 + port.to_bytes(2, "big") + b"\x00\x50" + more
    return V2 + bytes([0x20 | command, family]) + len(body).to_bytes(2, "big") + body


V1_LINE = b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 80\r\n"

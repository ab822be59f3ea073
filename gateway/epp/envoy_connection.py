"""Envoy in the place of a connection to a worker: the exchange's head becomes changes of the client's."""

from collections.abc import Callable
from typing import Final

from gateway.epp.control_headers import CONTROL
from gateway.epp.destination import SPOOFED
from gateway.http.forwarded import FORWARDED
from gateway.http.messages import HOP_BY_HOP, Header
from gateway.upstream.connection import ResponseSink

_ENVOYS: Final = HOP_BY_HOP | FORWARDED | {b"host", b"content-length", b"via", b"expect"}
"""Headers that Envoy itself writes towards a worker."""


class EnvoyConnection:
    """Takes the request of an exchange once; `sink` reads the worker's answer."""

    __slots__ = ("sink", "_on_request")

    def __init__(self, on_request: Callable[[bytes, bytes], None]) -> None:
        """Connection without a socket: `on_request` gets the head as HTTP/1.1 and the body."""
        self.sink: ResponseSink | None = None
        self._on_request = on_request

    def __repr__(self) -> str:
        return f"EnvoyConnection({self.sink})"

    def send(self, head: bytes, body: bytes, sink: ResponseSink) -> None:
        self.sink = sink
        self._on_request(head, body)

    def divert(self, make: Callable[[ResponseSink], ResponseSink]) -> None:
        assert self.sink is not None, "an answer is being read"
        self.sink = make(self.sink)

    def pause(self) -> None:
        """Flow control is Envoy's."""

    def resume(self) -> None: ...

    def abort(self) -> None:
        self.sink = None

    def close(self) -> None:
        """Forget the exchange and the stream: both refer to this."""
        self.sink, self._on_request = None, _ignore


def _ignore(head: bytes, body: bytes) -> None: ...


def changes(given: list[Header], target: bytes, head: bytes) -> tuple[list[Header], list[bytes]]:
    """Return what Envoy is to set and to remove, so that the worker gets `head`; the client's headers are
    `given`, without pseudo-headers, and its path is `target`."""
    lines = head.split(b"\r\n")
    new_target = lines[0].split(b" ", 2)[1]
    changed: list[Header] = [(b":path", new_target)] if new_target != target else []
    had, kept = set(given), set()
    for line in lines[1:-2]:
        name, _, value = line.partition(b": ")
        kept.add(name)
        if name not in _ENVOYS and (name, value) not in had and name not in CONTROL:
            changed.append((name, value))
    is_set = {name for name, _ in changed}
    removed = {
        name
        for name, _ in given
        if (name not in kept or name in CONTROL or name in SPOOFED)
        and name not in _ENVOYS
        and name not in is_set
        and name != b"x-gateway-destination-endpoint"  # overwritten
    }
    return changed, sorted(removed)

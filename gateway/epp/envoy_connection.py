"""Envoy in the place of a connection to a worker: the exchange's head becomes changes of the client's."""

from collections.abc import Callable
from typing import Final

from gateway.epp.control_headers import CONTROL, PICKERS
from gateway.epp.destination import DESTINATION
from gateway.http.forwarded import FORWARDED
from gateway.http.messages import HOP_BY_HOP, Header, OutgoingHead
from gateway.upstream.connection import ResponseSink

_ENVOYS: Final = HOP_BY_HOP | FORWARDED | {b"host", b"content-length", b"via", b"expect"}
"""Headers that Envoy itself writes towards a worker."""


class EnvoyConnection:
    """Takes the request of an exchange once; `sink` reads the worker's answer."""

    __slots__ = ("sink", "_on_request")

    def __init__(self, on_request: Callable[[OutgoingHead, bytes], None]) -> None:
        """Connection without a socket: `on_request` gets the head and the body."""
        self.sink: ResponseSink | None = None
        self._on_request = on_request

    def __repr__(self) -> str:
        return f"EnvoyConnection({self.sink})"

    def send(self, head: OutgoingHead, body: bytes, sink: ResponseSink) -> None:
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


def _ignore(head: OutgoingHead, body: bytes) -> None: ...


def changes(given: list[Header], target: bytes, head: OutgoingHead) -> tuple[list[Header], list[bytes]]:
    """Return what Envoy is to set and to remove, so that the worker gets `head`; the client's headers are
    `given`, without pseudo-headers, and its path is `target`."""
    changed: list[Header] = [(b":path", head.target)] if head.target != target else []
    had, is_set, kept = set(given), set(), set()
    for header in head.headers:
        name = header[0]
        kept.add(name)
        if header not in had and name not in _ENVOYS and name not in CONTROL:
            changed.append(header)
            is_set.add(name)
    removed = {
        name
        for name, _ in given
        if (name not in kept or name in PICKERS) and name not in _ENVOYS and name not in is_set
    }
    removed.discard(DESTINATION)  # overwritten
    return changed, sorted(removed)

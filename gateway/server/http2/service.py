"""gRPC streams as services see them; a server carries them, and knows nothing of the services.

A service makes a handler for each stream. The server calls it as events arrive, and the handler calls the
stream, at once or later.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.http.messages import Header


class GrpcStream(Protocol):
    """The server's side of one stream. After `finish`, or `aborted` of the handler, nothing more is sent."""

    path: bytes
    headers: list[Header]

    def send(self, message: bytes) -> None: ...
    def finish(self, status: int, message: str = "") -> None: ...


class StreamHandler(Protocol):
    """A service's side of one stream."""

    def message(self, message: bytes) -> None: ...
    def half_closed(self) -> None: ...
    def aborted(self, why: str) -> None: ...


Service = Callable[[GrpcStream], StreamHandler]
Services = Mapping[bytes, Service]
"""Services by path."""

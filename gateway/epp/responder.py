"""Answers of the gateway in a stream of ext_proc: an immediate response before the pick, the worker's answer
as it passes afterwards."""

from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.errors import GatewayError
from gateway.http.messages import Header, HttpRequest, ResponseHead
from gateway.server.responder import Responder

CUT: Final = 502
"""Status of a cut answer: clients see it where Envoy has held the answer's head back."""

Refuse = Callable[[int, list[Header], bytes], None]
"""Answers in place of a worker: status, headers and body."""


class NoConnection:
    """Stands where a client's connection is otherwise: Envoy has it."""

    def __init__(self) -> None:
        self.is_full = False

    @property
    def peername(self) -> object:
        return None

    @property
    def is_draining(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        raise AssertionError("Envoy has the client's connection")

    def answered(self, keep_alive: bool) -> None: ...
    def abort(self, *, with_reset: bool = False) -> None: ...
    def leave_http(self, receive: Callable[[bytes], None]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class PickResponder(Responder):
    """Collects the answer that an exchange passes on; `take` has what came since the last call.

    `is_picked`: a worker has the request. `error` is the one being answered: also in place of a worker that
    has the request, and is too late or redirects."""

    __slots__ = ("is_picked", "passed_head", "error", "_refuse", "_parts")

    def __init__(self, request: HttpRequest, refuse: Refuse, standing: Sequence[Header] = ()) -> None:
        super().__init__(NoConnection(), request, standing)
        self.is_picked = False
        self.passed_head: ResponseHead | None = None
        self.error: GatewayError | None = None
        self._refuse = refuse
        self._parts: list[bytes] = []

    def send(self, status: int, headers: list[Header], body: bytes) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._refuse(status, [*headers, *self.more_headers, *self._standing], body)

    def fail(self, error: GatewayError, headers: list[Header] | None = None) -> None:
        self.error = error
        super().fail(error, headers)
        self.error = None  # its traceback refers to the stream: a cycle is never collected

    def head(self, head: ResponseHead) -> None:
        self.has_begun = True
        headers = [*head.headers, *self.more_headers, *self._standing]
        self.passed_head = ResponseHead(head.status, headers, head.length)

    def data(self, data: bytes) -> None:
        self._parts.append(data)

    def end(self, data: bytes = b"") -> None:
        self._parts.append(data)

    def end_in_error(self, held: bytes, error: GatewayError, request_id: bytes) -> None:
        self.abort()

    def abort(self) -> None:
        """Cut an answer that has begun: Envoy resets it, and the request at the worker."""
        self._refuse(CUT, [], b"")

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data

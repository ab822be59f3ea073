"""The end of a request, for the access log and traces. Numbers and names, no prompt."""

from collections.abc import Callable

import msgspec

from gateway.core.decision import Decision
from gateway.core.errors import GatewayError
from gateway.core.request import InferenceRequest
from gateway.core.route_table import ROUTES
from gateway.core.usage import Usage
from gateway.http.messages import HttpRequest
from gateway.observability.observers import dismiss

CUT, OUT_OF_TIME, STOPPED = "answer_cut", "total_timeout", "gateway_stopped"
"""Reasons why an answer that had begun ended early, beside the codes of `core/errors.py`."""

_BY_WORKERS = frozenset({CUT, "worker_failed", "worker_timeout"})
_BY_CLIENTS = frozenset({"not_supported", "version_not_supported"})
"""Errors that clients caused although the status is a 5xx."""
_OF_CLIENTS_LOAD = "rate_limit_exceeded"
"""The one 429 that is caused by the tenant's own load; the others are caused by everybody's."""


class RequestEnd(msgspec.Struct, frozen=True):
    """A request that has ended. `result` is "ended", "aborted", "failed", "client_disconnected" or "rejected"
    (before a model was known); `fault` is the error code, or empty. Times are on the loop's clock; `sent_s`
    is that of the last attempt. `request` is None if the body was not read."""

    http: HttpRequest | None
    request: InferenceRequest | None
    decision: Decision | None
    result: str
    status: int
    fault: str = ""
    request_id: bytes = b""
    arrived_s: float = 0.0
    sent_s: float = 0.0
    ended_s: float = 0.0
    ttft_s: float | None = None
    usage: Usage | None = None

    @property
    def lasted_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def retries(self) -> int:
        return self.decision.attempt - 1 if self.decision else 0

    @property
    def tenant(self) -> str | None:
        """The tenant that the request names, or the API key's where it was rejected earlier."""
        if self.request is not None and self.request.tenant is not None:
            return self.request.tenant
        caller = self.http.caller if self.http else None
        return caller.tenant if caller else None

    @property
    def route(self) -> str | None:
        """The path; None for unknown paths, which would let a client write any string into the log."""
        return self.http.path if self.http and (self.http.path in ROUTES or self.request) else None


OnEnd = Callable[[RequestEnd], None]
"""Called for each request that has ended, on the data path: microseconds, no I/O."""


def notify_ended(end_observers: list[OnEnd], end: RequestEnd) -> None:
    for observer in tuple(end_observers):
        try:
            observer(end)
        except Exception:  # noqa: BLE001  see dismiss
            dismiss(end_observers, observer)


def refusal(
    http: HttpRequest | None, error: GatewayError | None, status: int, now: float, request_id: bytes = b""
) -> RequestEnd:
    """The end of a request that was rejected before an exchange was made. `http` is None if it was not valid
    HTTP; `request_id` is the one in the answer."""
    fault = error.code if error else "malformed"
    request = error.request if error and isinstance(error.request, InferenceRequest) else None
    return RequestEnd(http, request, None, "rejected", status, fault, request_id, now, now, now)


def error_origin(end: RequestEnd) -> str | None:
    """The side that caused the error: "client", "gateway" or "worker"; None if there was none."""
    status, fault = end.status, end.fault
    if end.result == "client_disconnected":
        return "client"
    if fault in _BY_CLIENTS:
        return "client"
    if fault in _BY_WORKERS:
        return "worker"
    if fault:
        is_clients = 400 <= status < 500 and (status != 429 or fault == _OF_CLIENTS_LOAD)
        return "client" if is_clients else "gateway"
    return "worker" if status >= 500 else "client" if status >= 400 else None

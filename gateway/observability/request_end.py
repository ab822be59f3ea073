"""How a request ended, for those who tell of it: the log, traces. Numbers and names, no prompt."""

from collections.abc import Callable

import msgspec

from gateway.core.decision import Decision
from gateway.core.errors import GatewayError
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import ROUTES
from gateway.core.usage import Usage
from gateway.http.messages import HttpRequest
from gateway.observability.observers import dismiss

CUT, OUT_OF_TIME, STOPPED = "answer_cut", "total_timeout", "gateway_stopped"
"""What ended an answer that had begun, beside the codes of `core/errors.py`."""

_BY_WORKERS = frozenset({CUT, "worker_failed", "worker_timeout"})
_BY_CLIENTS = frozenset({"not_supported", "version_not_supported"})
"""Though their status is a 5xx."""
_OF_CLIENTS_LOAD = "rate_limit_exceeded"
"""The one 429 that is about its tenant; the others are about all."""


class End(msgspec.Struct, frozen=True):
    """`how` is "ended", "cut", "failed", "client gone" or "refused" (before it was known who it was for);
    `fault` the code of what went wrong, or empty. Times are of the loop's clock: `sent_s` is the last
    attempt's. Without `request` its body was not read."""

    http: HttpRequest | None
    request: InferenceRequest | None
    decision: Decision | None
    how: str
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
        """As its key says where it was refused before anybody else could."""
        if self.request is not None and self.request.tenant is not None:
            return self.request.tenant
        who = self.http.who if self.http else None
        return who.tenant if who else None

    @property
    def route(self) -> str | None:
        """None for one that is not ours: who guesses paths writes what he likes there."""
        return self.http.path if self.http and (self.http.path in ROUTES or self.request) else None


Teller = Callable[[End], None]
"""Is told of each request that has ended, on the data path: microseconds, no I/O."""


def tell(tellers: list[Teller], end: End) -> None:
    for teller in tuple(tellers):
        try:
            teller(end)
        except Exception:  # noqa: BLE001  see dismiss
            dismiss(tellers, teller)


def refusal(
    http: HttpRequest | None, error: GatewayError | None, status: int, now: float, request_id: bytes = b""
) -> End:
    """One that no exchange was made for; without `http` it was not even HTTP. `request_id`: in its answer."""
    fault = error.code if error else "malformed"
    request = error.request if error and isinstance(error.request, InferenceRequest) else None
    return End(http, request, None, "refused", status, fault, request_id, now, now, now)


def who_failed(end: End) -> str | None:
    """Who made the error: "client", "gateway" or "worker"; None where there was none."""
    status, fault = end.status, end.fault
    if end.how == "client gone":
        return "client"
    if fault in _BY_CLIENTS:
        return "client"
    if fault in _BY_WORKERS:
        return "worker"
    if fault:
        is_clients = 400 <= status < 500 and (status != 429 or fault == _OF_CLIENTS_LOAD)
        return "client" if is_clients else "gateway"
    return "worker" if status >= 500 else "client" if status >= 400 else None

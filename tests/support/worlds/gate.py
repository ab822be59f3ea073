"""Admission gate in front of two workers, with a ledger that tests book by hand and a clock that they
move."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from gateway.config import Config, config_of
from gateway.config.tenant_limits import TenantLimits
from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError
from gateway.core.fleet import Fleet
from gateway.core.ledger import Booking, Ledger
from gateway.core.pool_objects import PoolObjects
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.speed import Speed
from gateway.core.worker import WorkerId
from gateway.http.messages import Header, HttpRequest
from gateway.http.networks import Trusted
from gateway.server.responder import Responder
from gateway.tenancy.admission.gate import Gate
from gateway.tenancy.admission.queues import ModelQueues
from gateway.tenancy.admission.request_identity import HeaderNames
from gateway.tenancy.admission.saturation import Saturation
from gateway.tenancy.admission.stats import AdmissionStats
from gateway.tenancy.admission.tenants import Tenants, Ticket
from gateway.tenancy.admission.zero import ZeroRule
from tests.support.fakes import worker
from tests.support.transports import FakeLoop

PACE = Speed(start_s=0.0, token_s=0.001)
NAMES = HeaderNames(b"x-tenant", b"x-priority", b"x-slo")


@dataclass(eq=False)
class Asked:
    """Fake exchange of a request, which records its events in order."""

    request: InferenceRequest
    more_headers: list[Header] = field(default_factory=list)
    peer: str | None = "127.0.0.1"
    events: list[str] = field(default_factory=list)
    error: GatewayError | None = None
    booking: Booking | None = None
    on_end: Callable[[], None] = lambda: None
    ticket: Ticket | None = None
    is_slow: bool = False
    """A prompt that takes time, until the test calls `then`."""
    then: Callable[[Prompt | None], None] = lambda prompt: None

    def prepare(self, then: Callable[[Prompt | None], None]) -> None:
        self.events.append("prepared")
        if not self.is_slow:
            then(None)
        self.then = then

    def route_or_fail(self, prompt: Prompt | None) -> None:
        self.events.append("routed")

    def fail(self, error: GatewayError) -> None:
        self.error = error
        self.events.append(f"{error.status} {error.code}")
        self.on_end()


class FakeOutlook:
    """Model `m` is expected; the test sets when."""

    def __init__(self) -> None:
        self.left_s: float | None = None
        self.heard: list[str] = []

    def expects(self, model: str) -> bool:
        return model == "m"

    def waiting(self, model: str) -> None:
        self.heard.append(model)

    def until_worker_s(self, model: str) -> float | None:
        return self.left_s


NO_NAMES = ("",)
"""Names of no workers."""


def zero_config(**options: Any) -> Config:
    """Configuration with these options of the table `[scaling]`."""
    given = {"models": ["m"], **options}
    return config_of(**{f"scaling_{name}": value for name, value in given.items()})


class GateWorld:
    """Gate with fake workers: `ask` sends a request, and its worker has it until `end`."""

    def __init__(
        self,
        rule: Saturation,
        *names: str,
        tenants: dict[str, TenantLimits] | None = None,
        trusts: tuple[str, ...] = ("127.0.0.1",),
        **options: Any,
    ) -> None:
        """Queues with two workers, or those named; `options` are those of `ModelQueues`, and `zero` those of
        the table `[scaling]`: then no worker is there, and `outlook` knows of those that come."""
        self.loop = FakeLoop()
        self.fleet, self.ledger, self.objects = Fleet(), Ledger(), PoolObjects()
        self.outlook = FakeOutlook()
        zero = None
        if (scaling := options.pop("zero", None)) is not None:
            zero = ZeroRule(self.fleet, self.outlook, zero_config(**scaling))
            names = names or NO_NAMES
        for name in names or ("a:1", "b:1"):
            if name:
                self.join(name)
        loop = cast(Any, self.loop)
        self.queues = ModelQueues(
            self.fleet,
            self.ledger,
            rule,
            loop=loop,
            go=lambda waiter, request, prompt, decided: self._go(waiter, request, prompt),
            zero=zero,
            **{"max_queued": 100, "timeout_s": 30.0} | options,
        )
        self.gate = Gate(
            self.queues,
            Tenants(tenants or {}),
            names=NAMES,
            trusted=Trusted(trusts, "--trust-headers-from"),
            tokenize=lambda request: Prompt(([1] * len(request.body),)),
            stats=AdmissionStats(),
            loop=loop,
            objects=self.objects,
        )
        self.routed: list[Asked] = []
        self.is_deferred = False

    def join(self, name: str) -> None:
        self.fleet.add(worker(name)).speed = PACE

    def _go(self, waiter: Any, request: InferenceRequest, prompt: Prompt | None) -> bool:
        waiter.route_or_fail(prompt)
        self.routed.append(waiter)
        if self.is_deferred:
            return False
        try:
            free = self.queues.spare(self.fleet.eligible(request.model))
        except GatewayError as error:
            waiter.fail(error)
            return True
        least = min(free, key=lambda each: self.ledger.load(each.member.worker.id).num_in_flight)
        waiter.booking = self.ledger.book(least.member.worker.id, len(request.body), len(request.body))
        return True

    def ask(self, tenant: str = "t", num_tokens: int = 100, **more: Any) -> Asked:
        """Send a request. Raises TooManyRequests where it is rejected."""
        priority, slo_ms, peer = more.get("priority"), more.get("slo_ms"), more.get("peer", "127.0.0.1")
        top = {"model": more.get("model", "m"), "priority": more.get("body_priority")}
        path = more.get("path", "/v1/completions")
        asked = Asked(InferenceRequest(RouteKind.COMPLETION, path, b"x" * num_tokens, top), peer=peer)
        headers = [(b"x-tenant", tenant.encode()), (b"x-request-id", b"7")]
        headers += [(b"x-priority", b"%d" % priority)] if priority is not None else []
        headers += [(b"x-slo", b"%d" % slo_ms)] if slo_ms else []
        http = HttpRequest("POST", path.encode(), [*headers, *more.get("headers", ())])
        http.caller = more.get("caller")
        asked.ticket = self.gate.admit(http, asked.request, cast(Responder, asked))
        asked.on_end = lambda: self.gate.ended(asked, asked.request, None, None)
        goes_on, prompt = self.gate.route(asked, asked.request, None)
        if goes_on:
            self._decide(asked, prompt)
        return asked

    def _decide(self, asked: Asked, prompt: Prompt | None) -> None:
        """Send a request, or hold it where its model is at zero."""
        if self.queues.zero.is_on:
            try:
                self.fleet.eligible(asked.request.model)
            except GatewayError as error:
                if not self.gate.hold(asked, asked.request, error):
                    asked.fail(error)
                return
        self._go(asked, asked.request, prompt)

    def end(self, asked: Asked, usage: Any = None) -> None:
        self.gate.ended(asked, asked.request, None, usage)
        if asked.booking:
            self.ledger.release(asked.booking)
            self.queues.freed(asked.booking.worker)
        self.loop.advance(0.0)

    def first_token(self, asked: Asked) -> None:
        assert asked.booking is not None
        self.ledger.first_token(asked.booking)
        self.queues.freed(asked.booking.worker)
        self.loop.advance(0.0)

    def in_flight(self, name: str) -> int:
        return self.ledger.load(WorkerId(name)).num_in_flight

    def num_waiting(self) -> int:
        return sum(len(known.queue) for known in self.queues.models.values())

    def is_clean(self) -> bool:
        """True if nothing is kept of requests that have ended."""
        return not self.num_waiting() and not any(t.num_active for t in self.gate.tenants.known())

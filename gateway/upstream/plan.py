"""The plan of a request: which worker gets it, what is sent, and how the answer is read on its way back.

    field      a plain request         other plans
    decide     any worker              the worker that keeps a response; a prefill and a decode worker
    ahead      nothing                 the prefill leg
    upgrade    no: a head and a body   a WebSocket's offer, without a body
    body       the client's            KV transfer fields for the decode leg
    reader     none                    holds back the stream of a decode leg, renames responses, a tunnel
    observer   none                    both legs, a tunnel

One exchange (`proxy/exchange.py`) executes every plan. `proxy/dispatch.py` chooses the plan of a request; its
parts come from `disaggregation/legs.py`, `proxy/responses.py` and `proxy/websocket.py`.
"""

from collections.abc import Callable, Collection
from typing import Final

from gateway.core.decision import Decision, Prompt
from gateway.core.errors import GatewayError
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.http.messages import HttpRequest, OutgoingHead, ResponseHead
from gateway.upstream.connection import ResponseSink

MAX_FAULTS: Final = 2
"""Workers that had one request and failed it, after which no other one gets it: it may take each one down."""

Decide = Callable[[Prompt | None, Collection[WorkerId], int], Decision]
"""Chooses and books the worker of one attempt, given the prompt, the workers that failed this request and the
number of the attempt. Raises NoWorker or UnknownModel."""


class Observer:
    """Learns of the course of one request; a plan's observer overrides what it needs."""

    __slots__ = ()

    def first_token(self, decision: Decision, arrived_s: float, now: float) -> None:
        """The first token of a streamed answer has come."""

    def attempt_failed(self, decision: Decision) -> None:
        """The worker failed before its answer began; another attempt or an error follows."""

    def worker_down(self, worker: WorkerId, why: str) -> None:
        """A worker of the fleet is down, whether it has this request or not; `why` is the cause."""

    def closed(self, decision: Decision | None, usage: Usage | None) -> None:
        """The request is over, however it ended; `usage` is there where an answer was complete."""


class Plan:
    """How one request is executed. None in a field: as for a plain request. The fields are final, in a class
    that takes a third of the time of a frozen dataclass to make.

    `ahead` begins what comes before the request. True: the request may be sent at once; False: `ahead` calls
    `Execution.send` when it may. `reader` makes the sink of the connection, which hands the answer on to the
    `Execution`.
    """

    __slots__ = ("decide", "ahead", "upgrade", "body", "reader", "observer")

    def __init__(
        self,
        *,
        decide: Decide | None = None,
        ahead: Callable[[Decision], bool] | None = None,
        upgrade: Callable[[Decision], OutgoingHead] | None = None,
        body: Callable[[Decision, bytes], bytes] | None = None,
        reader: Callable[[Decision], ResponseSink] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.decide: Final = decide
        self.ahead: Final = ahead
        self.upgrade: Final = upgrade
        self.body: Final = body
        self.reader: Final = reader
        self.observer: Final = observer

    def __repr__(self) -> str:
        return f"Plan(decide={self.decide}, upgrade={self.upgrade}, observer={self.observer!r})"


PLAIN: Final = Plan()


class Execution:
    """The exchange that executes a plan, as the parts of the plan see it."""

    __slots__ = ("http", "request", "request_id", "arrived_s", "decision", "is_closed", "failed_at")

    http: HttpRequest
    request: InferenceRequest
    request_id: bytes
    """The client's own, or a generated one; no worker gets it."""
    arrived_s: float
    """On the loop's clock."""
    decision: Decision | None
    """The latest; None before the first."""
    is_closed: bool
    failed_at: tuple[WorkerId, ...]
    """Workers that had the request and failed it, in order (`discovery/request_faults.py`)."""

    @property
    def log_id(self) -> str:
        """The request's id, as log lines have it."""
        return self.request_id[:128].decode("latin-1")

    @property
    def worker_id(self) -> bytes:
        """The request's id at the worker: the decision's, since engines use it as a key; another one for each
        attempt."""
        assert self.decision is not None, "a worker was chosen"
        return self.decision.id.encode()

    @property
    def has_answer(self) -> bool:
        """True once the head of an answer was passed on."""
        raise NotImplementedError

    def send(self) -> None:
        """Send the request to the worker that was decided."""
        raise NotImplementedError

    def release(self) -> None:
        """Abort the attempt and give back its bookings; `decide_again` or `fail` follows."""
        raise NotImplementedError

    def decide_again(self) -> None:
        """Decide once more, with the same prompt, and send. Raises NoWorker or UnknownModel."""
        raise NotImplementedError

    def attempt_lost(self, reason: str) -> None:
        """The connection is lost, and this worker does not get the request a second time."""
        raise NotImplementedError

    def fail(self, error: GatewayError) -> None:
        """Answer with this error; nothing happens once the request is over."""
        raise NotImplementedError

    def touch(self) -> None:
        """Restart the idle timeout."""
        raise NotImplementedError

    # retries -----------------------------------------------------------------------------------

    def failed_workers(self) -> Collection[WorkerId]:
        """Workers that did not answer this request."""
        raise NotImplementedError

    def pays_retry(self) -> bool:
        """Take one retry from the budget; False where it has no room."""
        raise NotImplementedError

    # the worker's answer, from a connection or from a reader ------------------------------------

    def upstream_head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def upstream_data(self, data: bytes) -> None:
        raise NotImplementedError

    def upstream_ended(self, data: bytes) -> None:
        raise NotImplementedError

    def upstream_lost(self, reason: str) -> None:
        raise NotImplementedError

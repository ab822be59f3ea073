"""What all requests under way share: router, pools of connections, options, metrics.

`handle` takes one parsed request and gives it to an exchange (`exchange.py`), which lives until its
answer has ended.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.apis.multipart import MARK, renamed_form
from gateway.apis.response_ids import ResponseIds
from gateway.apis.to_chat import as_chat
from gateway.bookings.shared_ledger import LOCK_TOKENS
from gateway.config import Config
from gateway.core.decision import Decision, Prompt
from gateway.core.decoding import LARGE
from gateway.core.errors import FAILED, ContextTooLong, GatewayError
from gateway.core.fleet import Eligible
from gateway.core.kv_connector import Handoff
from gateway.core.outcome import SERVER_ERROR
from gateway.core.requests.model_alias import renamed
from gateway.core.requests.model_name import renamed_query
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import Kind, route_of
from gateway.core.requests.steering import behind
from gateway.core.usage import Usage
from gateway.core.worker import Worker, WorkerId
from gateway.disaggregation.stats import Splits
from gateway.http import cache_report
from gateway.http.headers import head_to_worker
from gateway.http.messages import HttpRequest
from gateway.http.response_observer import Answer
from gateway.http.usage_injection import UnaskedScanner, with_usage
from gateway.models.offload import LongPrompts
from gateway.models.prompt_source import PromptSource, WorkerTokenizer
from gateway.observability.metrics import Metrics, WorkerMetrics
from gateway.observability.otlp import Traces
from gateway.observability.request_end import Teller
from gateway.proxy import intake, responses_exchange
from gateway.proxy.deadlines import Deadlines
from gateway.proxy.exchange import InferenceExchange
from gateway.proxy.large_intake import LargeIntake, Refuse
from gateway.proxy.retries import Retries
from gateway.proxy.split_exchange import SplitExchange
from gateway.proxy.usage_check import Usages
from gateway.proxy.websocket import TunnelExchange, parse_tunnel
from gateway.routing.decision_log import Records
from gateway.routing.prompt_limit import longest_prompt
from gateway.routing.remote_lookup import Others
from gateway.routing.router import Router
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks
from gateway.server.body_budget import Bodies
from gateway.server.responder import Exchange, Responder
from gateway.tenancy.admission.base import Waiter
from gateway.tenancy.admission.gate import Gate
from gateway.tenancy.admission.tenants import Ticket
from gateway.tokenization.chat_template import TooLong
from gateway.upstream.access import Ways
from gateway.upstream.connection import Pool, TlsContext

log = logging.getLogger("kvgate.proxy")


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Seconds, counts and bytes; see `config.py` for their reasons. 0 seconds means no limit."""

    connect_timeout_s: float = 5.0
    deadlines: Deadlines = Deadlines()
    pool_idle_s: float = 4.0
    max_attempts: int = 2
    retry_share: float = 0.2
    expose_headers: bool = False
    prefill_timeout_s: float = 60.0
    allow_transfer_fields: bool = False
    session_header: bytes = b""
    session_cookie: bytes = b""
    mask_cached_tokens: bool = False


def proxy_options(config: Config) -> ProxyOptions:
    return ProxyOptions(
        connect_timeout_s=config.connect_timeout_s,
        deadlines=Deadlines(config.first_byte_timeout_s, config.idle_timeout_s, config.total_timeout_s),
        pool_idle_s=config.pool_idle_s,
        max_attempts=config.max_attempts,
        retry_share=config.retry_share,
        expose_headers=config.expose_headers,
        prefill_timeout_s=config.prefill_timeout_s,
        allow_transfer_fields=config.allow_transfer_fields,
        session_header=config.session_header.lower().encode(),
        session_cookie=config.session_cookie.encode(),
        mask_cached_tokens=config.mask_cached_tokens,
    )


AskUsage = Callable[[Worker, bool], UnaskedScanner | None]
"""Whether a stream's usage is asked for where its client does not: what takes it out again, or None. True
where it is needed."""


InTurn = Callable[[Callable[[], None]], None]
"""Has a decision made when it is this gateway's turn, which is soon (`--booking atomic`)."""


@dataclass(slots=True, eq=False)
class Proxy:
    """What all exchanges share."""

    router: Router
    prompts: PromptSource
    worker_tokenizer: WorkerTokenizer
    metrics: Metrics
    records: Records
    tasks: Tasks
    options: ProxyOptions
    suspect: Callable[[WorkerId, str, bool], None]
    blame: Callable[[WorkerId, str], None] = lambda worker, reason: None
    """Told of a request that failed, where there is no reason to look whether the worker is there."""
    tls_context: TlsContext = lambda: None
    ways: Ways = field(default_factory=Ways)
    under_lock: InTurn | None = None
    ask_usage: AskUsage = lambda worker, is_needed: None
    to_report: Collection[str] = ()
    """Decisions whose requests ask the engine to announce its hit (`ingest/blind_recovery.py`)."""
    others: Others | None = None
    handoffs: Mapping[str, Handoff] = field(default_factory=dict)
    splits: Splits | None = None
    gate: Gate | None = None
    response_ids: ResponseIds = field(default_factory=ResponseIds)
    bodies: Bodies = field(default_factory=Bodies)
    tellers: list[Teller] = field(default_factory=list)
    """Are told of each request that has ended."""
    traces: Traces | None = None
    pools: dict[str, Pool] = field(default_factory=dict)
    exchanges: set[InferenceExchange] = field(default_factory=set)
    intakes: set[LargeIntake] = field(default_factory=set)
    loop: asyncio.AbstractEventLoop = field(default_factory=lambda: asyncio.get_running_loop())
    long_prompts: LongPrompts = field(init=False)
    retries: Retries = field(init=False)
    usages: Usages = field(init=False)
    log: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))
    """Lines that requests cause, alike by their first value."""

    def __post_init__(self) -> None:
        self.long_prompts = LongPrompts(self.prompts)
        self.retries, self.usages = Retries(), Usages(self.metrics)
        self.take(self.options)
        self.open_gate(self.gate)

    def take(self, options: ProxyOptions) -> None:
        """For requests that begin from now on."""
        self.options = options
        self.retries.limit(max_attempts=options.max_attempts, share=options.retry_share)
        for pool in self.pools.values():
            pool.connect_timeout_s, pool.idle_s = options.connect_timeout_s, options.pool_idle_s

    def open_gate(self, gate: Gate | None) -> None:
        """What has begun without one ends without it."""
        self.gate = gate
        if gate is not None:
            gate.queues.go = self.go

    def handle(self, http: HttpRequest, responder: Responder, refuse: Refuse) -> Exchange:
        """Take one request to an open route. Raises what `handle_parsed` does, and InvalidRequest for a body
        it cannot read; a large one is read later, and `refuse` answers what is wrong with it."""
        if self.traces is not None:
            self.traces.begin(http, responder.peer)
        if len(http.body) >= LARGE:
            return LargeIntake(self, http, responder, refuse)
        return self.handle_parsed(http, responder, self.request_of(http))

    def handle_parsed(
        self, http: HttpRequest, responder: Responder, request: InferenceRequest
    ) -> InferenceExchange:
        """Give a request to its exchange. Raises UnknownResponse and TooManyRequests; all later errors are
        answered by the exchange."""
        if self.options.mask_cached_tokens:  # in a compressed answer nothing could be
            http.headers = [header for header in http.headers if header[0] != b"accept-encoding"]
        http.body = b""  # it is the request's now, which lets go of it when no attempt needs it any more
        fleet, model = self.router.fleet, request.model
        is_prompt = request.kind is Kind.CHAT or request.kind is Kind.COMPLETION
        is_splittable = request.may_split or (fleet.is_bound(model) and is_prompt)
        may_split = self.splits is not None and is_splittable and fleet.has_prefills(model)
        if route_of(request.path).keeps_state:
            exchange = responses_exchange.created(self, http, responder, request)
        else:
            exchange = (SplitExchange if may_split else InferenceExchange)(self, http, responder, request)
        return self._admitted(exchange, http, responder, request)

    def about_response(self, http: HttpRequest, responder: Responder) -> InferenceExchange:
        """Take a request about a response that a worker keeps. Raises UnknownResponse, UnknownRoute,
        MethodNotAllowed and TooManyRequests."""
        if self.traces is not None:
            self.traces.begin(http, responder.peer)
        request, own, worker = responses_exchange.about(self, http)
        if (who := http.who) is not None:
            request.tenant = who.tenant
        exchange = responses_exchange.ResponsesExchange(self, http, responder, request)
        exchange.pin(own, worker)
        return self._admitted(exchange, http, responder, request)

    def _admitted(
        self, exchange: InferenceExchange, http: HttpRequest, responder: Responder, request: InferenceRequest
    ) -> InferenceExchange:
        if self.gate is not None:
            exchange.ticket = self.gate.admit(http, request, responder)
        elif request.priority is not None and request.priority < 0:
            request.priority = 0  # nobody says here who may step ahead
        if request.given_priority is not None:
            request.body = behind(request.body, request.given_priority, request.priority or 0)
        exchange.begin()
        return exchange

    def request_of(self, http: HttpRequest) -> InferenceRequest:
        """Raises InvalidRequest or Forbidden."""
        return intake.request_of(self, http)

    def route(self, exchange: InferenceExchange, request: InferenceRequest, prompt: Prompt | None) -> None:
        """Have an exchange decide and send, once it may."""
        try:
            if self.gate is not None and exchange.ticket is not None:
                self.gate.route(exchange, request, prompt)
            else:
                self.go(exchange, request, prompt)
        except Exception:  # noqa: BLE001  see _failed
            _failed(exchange)

    def go(self, exchange: Waiter, request: InferenceRequest, prompt: Prompt | None) -> bool:
        """Now; or in this gateway's turn, a prompt that is worth one: False, it is not decided yet."""
        if self.under_lock is None:
            exchange.route_or_fail(prompt)
            return True
        prompt = self.router.tokenize(request) if prompt is None else prompt
        if prompt.num_tokens < LOCK_TOKENS:
            exchange.route_or_fail(prompt)
            return True
        self.under_lock(partial(_route, exchange, prompt, self.gate))
        return False

    def ended(
        self,
        exchange: InferenceExchange,
        request: InferenceRequest,
        answer: Answer | None,
        usage: Usage | None,
        was_sent: bool,
    ) -> None:
        """An exchange is over; what it booked is released next."""
        self.exchanges.discard(exchange)
        self.retries.ended(exchange.tries)
        self.let_go(exchange.http)
        if self.gate is not None:
            self.gate.ended(exchange, request, answer, usage, was_sent=was_sent)

    def let_go(self, http: HttpRequest) -> None:
        """Its body is not needed any more."""
        self.long_prompts.let_go(http.num_held)
        self.bodies.let_go(http)

    def takes_time(self, request: InferenceRequest) -> bool:
        """Whether a decision has to wait for its prompt, or for what others know of it."""
        is_here = self.others is None and self.prompts.is_local(request)
        return not is_here or self.long_prompts.is_long(request)

    async def prompt_of(self, request: InferenceRequest, authorization: bytes | None) -> Prompt:
        """By whoever makes it, and with what others know of it. Raises PromptError, UnknownModel or
        NoWorker."""
        eligible = self.router.fleet.eligible(request.model)
        if not self.prompts.is_local(request):
            key = authorization.decode("latin-1") if authorization else None
            chosen = self._tokenizing(eligible)
            url, name = chosen.member.worker.url, chosen.served.name
            request = as_chat(request) if request.kind is Kind.AGENT else request
            prompt = await self.worker_tokenizer.ask(url, request, key, name)
        elif self.long_prompts.is_long(request):
            prompt = await self._long_prompt(request, eligible)
        else:
            prompt = self.router.tokenize(request)
        return await self.others.tell(request, prompt) if self.others else prompt

    async def _long_prompt(self, request: InferenceRequest, eligible: Sequence[Eligible]) -> Prompt:
        """Raises ContextTooLong for one that none of these workers takes, and PromptError."""
        most = 0 if request.is_cut else longest_prompt(eligible)
        try:
            return await self.long_prompts.ask(request, self.router.hasher(request), most)
        except TooLong as exc:
            if not 0 < most < exc.num_tokens:
                raise
            raise ContextTooLong(most, exc.num_tokens) from exc

    def _tokenizing(self, eligible: Sequence[Eligible]) -> Eligible:
        """Any whose tokens are those of the others, and that is not left alone if another one is not."""
        some = [e for e in eligible if not e.is_apart] or eligible
        asked = self.worker_tokenizer
        return random.choice([e for e in some if not asked.is_resting(e.member.worker.url)] or some)

    def tunnel(self, http: HttpRequest, responder: Responder) -> TunnelExchange:
        """Take a WebSocket to a worker. Raises InvalidRequest, Forbidden or TooManyRequests."""
        if self.traces is not None:
            self.traces.begin(http, responder.peer)
        request = parse_tunnel(http, self.router.fleet.served())
        exchange = TunnelExchange(self, http, responder, request)
        if self.gate is not None:
            exchange.ticket = self.gate.admit(http, request, responder)
        exchange.begin()
        return exchange

    def head_for(self, http: HttpRequest, model: str, worker: Worker, size: int, request_id: bytes) -> bytes:
        """Of a request as a worker gets it, before a body of so many bytes."""
        pool = self.pool(worker.url)
        return head_to_worker(
            http,
            worker,
            target=self.target_at(http, model, worker),
            netloc=pool.netloc,
            prefix=pool.path_prefix,
            num_bytes=size,
            request_id=request_id,
            key=pool.key,
        )

    def body_at(self, request: InferenceRequest, worker: Worker) -> bytes:
        """By the name that the worker knows the model by."""
        fleet = self.router.fleet
        if request.model not in fleet.aliases or not request.body:
            return request.body
        name = fleet.name_at(worker, request.model)
        return renamed_form(request.body, name) if request.body[:2] == MARK else renamed(request.body, name)

    def target_at(self, http: HttpRequest, model: str, worker: Worker) -> bytes:
        """With that name where the query has the model too."""
        fleet = self.router.fleet
        if model not in fleet.aliases or b"?" not in http.target:
            return http.target
        return renamed_query(http.target, fleet.name_at(worker, model))

    def body_for(
        self, request: InferenceRequest, decision: Decision, ticket: Ticket | None
    ) -> tuple[bytes, UnaskedScanner | None]:
        """What the worker gets, and what then takes out of its stream what was asked for us."""
        body, unasked = self.body_at(request, decision.worker), None
        if request.may_ask_usage:
            is_needed = self.gate is not None and self.gate.needs_usage(ticket)
            unasked = self.ask_usage(decision.worker, is_needed)
        if decision.id in self.to_report:
            body = cache_report.asking(body)
        return with_usage(body) if unasked else body, unasked

    def heard(self, worker: WorkerId, metrics: WorkerMetrics, status: int) -> None:
        """A worker has answered, to the end."""
        if status < SERVER_ERROR:
            metrics.num_answered += 1
        else:
            self.blame(worker, f"it answered {status}")

    def num_fetching(self, worker: WorkerId) -> int:
        """Requests whose answers need what this one computed, and holds until they have it."""
        return sum(isinstance(each, SplitExchange) and each.needs(worker) for each in self.exchanges)

    def worker_down(self, worker: WorkerId) -> None:
        """What it has not begun to answer goes to another one."""
        for exchange in list(self.exchanges):
            exchange.worker_down(worker)

    def stop(self, drain_s: float) -> None:
        """What is under way has so long to end."""
        if self.gate is not None:
            self.gate.stop(drain_s)

    def cut(self) -> None:
        """Requests and tunnels that are still open when we stop: each is named in the log."""
        for body in list(self.intakes):
            body.cancel()
        for exchange in list(self.exchanges):
            exchange.cancel("the gateway stopped before the answer was complete")

    def pool(self, url: str) -> Pool:
        pool = self.pools.get(url)
        if pool is None:
            options = self.options
            pool = self.pools[url] = Pool(
                url,
                connect_timeout_s=options.connect_timeout_s,
                idle_s=options.pool_idle_s,
                tls_context=self.tls_context,
                way=self.ways.of(url),
                reachable=self.ways.reachable,
            )
        return pool

    def drop_pool(self, url: str) -> None:
        if pool := self.pools.pop(url, None):
            pool.close()


def _route(exchange: Waiter, prompt: Prompt, gate: Gate | None) -> None:
    try:
        exchange.route_or_fail(prompt)
    except Exception:  # noqa: BLE001  see _failed
        _failed(exchange)
    if gate is not None:
        gate.queues.decided()


def _failed(exchange: Waiter) -> None:
    """A bug must not leave its client waiting, keep what was taken for it, nor cost the others their turn."""
    log.exception("%r failed", exchange)
    exchange.fail(GatewayError(FAILED))

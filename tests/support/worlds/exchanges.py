"""Proxy with fake transports as workers and a clock that is moved by hand."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.apis.error_format import event_of
from gateway.config import config_of
from gateway.core.blocks import root_hash
from gateway.core.errors import GatewayError
from gateway.core.fleet import Fleet
from gateway.core.worker import WorkerId
from gateway.http.messages import Header, HttpRequest, ResponseHead
from gateway.models.prompt_source import PromptSource
from gateway.models.worker_tokenizer import WorkerTokenizer
from gateway.observability.metrics import Metrics
from gateway.policies.baselines import RoundRobin
from gateway.proxy.context import Context
from gateway.proxy.dispatch import Dispatch
from gateway.proxy.exchange import InferenceExchange
from gateway.proxy.intake import request_of
from gateway.proxy.prompts import Prompts
from gateway.proxy.usage_check import UsageCheck
from gateway.proxy.websocket import Tunnel
from gateway.routing.decision_log import DecisionLog
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks
from gateway.server.responder import Responder
from gateway.tenancy.admission.gate import gate_of
from gateway.upstream.connection import Pool, UpstreamConnection
from gateway.upstream.outgoing import Outgoing
from gateway.upstream.pools import Pools
from tests.support.fakes import BLOCK_SIZE, Known, worker
from tests.support.transports import FakeLoop, FakeTransport

BODY = b'{"model":"m","prompt":[1,2,3],"stream":true}'


class InlineTasks:
    """Runs a task at once; tasks started here await nothing real."""

    def start(self, name: str, coro: Coroutine[Any, Any, Any]) -> None:
        with pytest.raises(StopIteration):
            coro.send(None)


class FakePool(Pool):
    """Pool with fake transports as connections; `error` is raised by the next `connect`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.transports: list[FakeTransport] = []
        self.error: OSError | None = None

    async def connect(self) -> UpstreamConnection:
        if self.error:
            raise self.error
        connection = UpstreamConnection(self)
        self.transports.append(FakeTransport(connection))
        return connection


class Answered:
    """Responder that writes a transcript."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.errors: list[GatewayError] = []
        self.has_begun = False
        self.client_is_full = False
        self.more_headers: list[Header] = []
        self.peer = "127.0.0.1"

    def head(self, head: ResponseHead, data: bytes = b"") -> None:
        self.has_begun = True
        self.events.append(head.status)

    def data(self, data: bytes) -> None:
        if data:
            self.events.append(data)

    def end(self, data: bytes = b"") -> None:
        self.data(data)
        self.events.append("end")

    def end_in_error(self, held: bytes, error: GatewayError, request_id: bytes) -> None:
        self.end(held + event_of(error, "", request_id.decode()))

    def switch(self, head: bytes, receive: Callable[[bytes], None]) -> None:
        self.has_begun = True
        self.events.append(head.partition(b"\r\n")[0])
        self.from_client = receive

    def hold_client(self, is_held: bool) -> None:
        self.events.append("held" if is_held else "let go")

    def fail(self, error: GatewayError, headers: object = None) -> None:
        self.errors.append(error)
        self.events += [error.status, error.code]

    def abort(self) -> None:
        self.events.append("abort")


class ExchangeWorld:
    """Workers are named in order; each request is sent to the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, **options: Any) -> None:
        """Options are those of `gateway.config`, by key."""
        self.loop = FakeLoop.install(monkeypatch)
        self.metrics, self.records, known = Metrics(), DecisionLog(), Known()
        prompts, fleet = PromptSource({}, self.metrics), Fleet()
        self.router = Router(
            fleet=fleet,
            index=known.index,
            assumed=known.assumed,
            policy=RoundRobin(),
            tokenize=prompts.tokenize,
            clock=self.loop.time,
        )
        self.suspected: list[tuple[str, str, bool]] = []
        pools = Pools()
        config = config_of(**options)
        context = Context(
            config=config,
            router=self.router,
            prompts=Prompts(prompts, self.router, cast(WorkerTokenizer, None)),
            metrics=self.metrics,
            records=self.records,
            tasks=cast(Tasks, InlineTasks()),
            pools=pools,
            outgoing=Outgoing(fleet, pools),
            usages=UsageCheck(self.metrics),
            suspect=lambda *what: self.suspected.append(what),
            gate=gate_of(config, self.router),
        )
        self.dispatch = self.make_dispatch(context)
        self.pools: dict[str, FakePool] = {}
        for name in names:
            self.add_worker(name)

    def add_worker(self, name: str) -> None:
        self.router.fleet.add(worker(name))
        self.router.index.add_worker(WorkerId(name), root_hash("root"), BLOCK_SIZE)
        self.router.assumed.add_worker(WorkerId(name), keep_s=600.0, max_blocks=1000)
        self.pools[name] = FakePool(f"http://{name}")
        self.context.pools.by_url[f"http://{name}"] = self.pools[name]

    def make_dispatch(self, context: Context) -> Dispatch:
        return Dispatch(context)

    @property
    def context(self) -> Context:
        return self.dispatch.context

    def use(self, **services: Any) -> None:
        """Other services, for requests that begin from now on."""
        self.dispatch.context = replace(self.dispatch.context, **services)

    def ask(
        self, body: bytes = BODY, target: bytes = b"/v1/completions"
    ) -> tuple[InferenceExchange, Answered]:
        answered = Answered()
        http = HttpRequest("POST", target, [(b"x-request-id", b"7")], body)
        request = request_of(self.context, http)
        return self.dispatch.handle_parsed(http, cast(Responder, answered), request), answered

    def offer(self, target: bytes = b"/v1/realtime?model=m") -> tuple[Tunnel, Answered]:
        """A WebSocket."""
        answered = Answered()
        http = HttpRequest("GET", target, [(b"x-request-id", b"7")], is_upgrade=True)
        return self.dispatch.tunnel(http, cast(Responder, answered)), answered

    def transport(self, name: str = "w:1") -> FakeTransport:
        return self.pools[name].transports[-1]

    def in_flight(self) -> int:
        return sum(self.router.ledger.load(member.worker.id).num_in_flight for member in self.router.fleet)

    def is_clean(self) -> bool:
        retries = self.context.retries
        is_over = not (retries.num_in_flight or retries.num_retrying)
        return is_over and not self.in_flight() and not self.dispatch.exchanges


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = chunk(b"")

"""A gateway between one client and one worker, without sockets: bytes in, bytes out, both sides.

The bytes that leave it are read by h11, an independent parser.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import h11
import pytest

from gateway.core.decision import Prompt
from gateway.http.framing import HttpLimits
from gateway.http.messages import HttpRequest
from gateway.http.upgrade import HTTP2_REFUSAL
from gateway.models.worker_tokenizer import WorkerTokenizer
from gateway.proxy.api import Api
from gateway.server.connection import ClientConnection
from gateway.server.responder import Exchange, Responder
from gateway.tokenization.prompt_encoder import PromptError
from tests.conformance.cases import Case
from tests.support.transports import FakeTransport
from tests.support.worlds.exchanges import ExchangeWorld

WORKER_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_OUR_ID = re.compile(rb"x-request-id: [0-9a-f-]+\r\n", re.IGNORECASE)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """`data` in parts that begin at `cuts`."""
    borders = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    return [data[a:b] for a, b in zip(borders, borders[1:], strict=False)]


@dataclass
class Received:
    """Request as h11 read it at the worker."""

    head: h11.Request
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.head.headers if known == name]


@dataclass
class Answered:
    """Answer as h11 read it at the client; 1xx are answers too. `is_whole` is False for a cut one."""

    status: int
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = True


class NoTokenizer:
    """Worker without /tokenize."""

    def is_resting(self, url: str) -> bool:
        return False

    async def ask(self, *about: object) -> Prompt:
        raise PromptError("no /tokenize here")


class Wire:
    """Both wires of a gateway; `workers_answer` is the worker's answer to each request, in one piece."""

    def __init__(self, patch: pytest.MonkeyPatch, workers_answer: bytes = WORKER_OK) -> None:
        self.world = ExchangeWorld(patch, "w:1")
        self.world.context.prompts.worker_tokenizer = cast(WorkerTokenizer, NoTokenizer())
        self.received: list[Received] = []
        self.handed: list[tuple[str, bytes, bytes]] = []
        self.to_worker = b""
        self._workers_answer = workers_answer
        self._api = Api(self.world.dispatch, self.world.router.fleet, self.world.metrics)
        self._waiting: deque[bytes] = deque()
        self.connection = ClientConnection(self._handle, HttpLimits(), set(), self._api.refused)
        self.client = FakeTransport(self.connection)

    def _handle(self, http: HttpRequest, responder: Responder) -> Exchange | None:
        self.handed.append((http.method, http.target, http.body))
        return self._api.handle(http, responder)

    def send(self, parts: Iterable[bytes], *, eager: bool = False) -> None:
        """Send from the client; the worker answers at the end, or eagerly after each part."""
        for part in parts:
            self._waiting.append(part)
            self._feed()
            if eager:
                self.settle()
        self.settle()

    def settle(self) -> None:
        """Run until the worker has answered every request and no more parts can be read."""
        while True:
            self._feed()
            asked = [t for t in self.world.pools["w:1"].transports if self._takes(t)]
            for transport in asked:
                transport.feed(self._workers_answer)
            if not asked and not (self._waiting and self.client.is_reading):
                return

    @property
    def is_open(self) -> bool:
        return not self.client.end

    def out(self) -> bytes:
        """All bytes that the client was sent, with `*` in place of generated request ids."""
        return _OUR_ID.sub(b"x-request-id: *\r\n", self.client.out)

    def answers(self, methods: Sequence[bytes] = ()) -> list[Answered]:
        if self.client.out == HTTP2_REFUSAL:  # no HTTP/1.1, but counted as this
            return [Answered(505, [(b"connection", b"close")])]
        return read_answers(self.client.out, methods, is_closed=not self.is_open)

    def _feed(self) -> None:
        while self._waiting and self.client.is_reading:
            self.client.feed(self._waiting.popleft())

    def _takes(self, transport: FakeTransport) -> bool:
        """True if a request came, which must be one and whole: the gateway never pipelines."""
        if not (sent := transport.taken()):
            return False
        self.to_worker += _OUR_ID.sub(b"x-request-id: *\r\n", sent)
        self.received.append(read_request(sent))
        return True


def read_request(data: bytes) -> Received:
    """Read exactly one request, framed by one Content-Length and nothing else."""
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(data)
    head, body = parser.next_event(), b""
    assert isinstance(head, h11.Request), head
    while isinstance(event := parser.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage), event
    assert parser.trailing_data == (b"", False)
    received = Received(head, body)
    assert received.values(b"content-length") == [b"%d" % len(body)]
    assert received.values(b"transfer-encoding") == []
    assert len(received.values(b"host")) == 1
    assert data.endswith(b"\r\n\r\n" + body)
    return received


def read_answers(data: bytes, methods: Sequence[bytes] = (), *, is_closed: bool) -> list[Answered]:
    """All answers in `data`; `methods` of their requests matter where one is HEAD."""
    found: list[Answered] = []
    final = 0
    while data:
        parser = h11.Connection(h11.CLIENT)
        method = methods[final] if final < len(methods) else b"GET"
        parser.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(data)
        while isinstance(event := parser.next_event(), h11.InformationalResponse):
            found.append(Answered(event.status_code))
        if event is h11.NEED_DATA and found and found[-1].status < 200:
            break
        assert isinstance(event, h11.Response), f"not a head: {data!r}"
        answer = Answered(event.status_code, list(event.headers))
        answer.is_whole = _read_body(parser, answer, is_closed=is_closed)
        found.append(answer)
        final += 1
        data = parser.trailing_data[0] if answer.is_whole else b""
    return found


def _read_body(parser: h11.Connection, answer: Answered, *, is_closed: bool) -> bool:
    has_ended = False
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return False
        if isinstance(event, h11.Data):
            answer.body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return True
        elif event is h11.NEED_DATA and is_closed and not has_ended:
            has_ended = True
            parser.receive_data(b"")
        else:
            return False


def run(case: Case, parts: list[bytes], *, eager: bool = False) -> Wire:
    with pytest.MonkeyPatch.context() as patch:
        wire = Wire(patch)
        wire.send(parts, eager=eager)
    return wire

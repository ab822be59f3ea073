"""Policy of the garbage collector; requests and connections leave no cycles to it."""

import asyncio
import gc
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.http.framing import HttpLimits
from gateway.http.messages import HttpRequest, OutgoingHead, ResponseHead
from gateway.observability.metrics import PauseHistogram
from gateway.runtime.gc_policy import INTERVAL_S, PORTIONS, YOUNG, GcPolicy
from gateway.server.body_budget import BodyBudget
from gateway.server.connection import ClientConnection
from gateway.server.http2.frames import rst_stream
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.protocol import GrpcProtocol
from gateway.server.responder import Responder
from gateway.upstream.connection import Pool
from tests.support.ext_proc import request_headers, response_body, response_headers
from tests.support.http2 import HELLO, EchoHandler, opened, request
from tests.support.patience import until
from tests.support.transports import FakeLoop, FakeTransport
from tests.support.worlds.endpoint_picks import DONE, W1, Epp
from tests.support.worlds.exchanges import ExchangeWorld


class Node:
    """Part of a cycle."""

    other: "Node"


def young_nodes() -> int:
    return sum(isinstance(each, Node) for each in gc.get_objects())


def make_cycle() -> None:
    first, second = Node(), Node()
    first.other, second.other = second, first


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    return FakeLoop.install(monkeypatch)


@contextmanager
def settled(pauses: PauseHistogram) -> Iterator[None]:
    garbage = GcPolicy(pauses.observe, iter(range(1_000_000)).__next__)
    garbage.settle()
    try:
        yield
    finally:
        garbage.release()
        gc.collect()


def test_the_policy_applies_until_it_is_undone(loop: FakeLoop) -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    with settled(PauseHistogram()):
        assert gc.get_threshold() == (YOUNG, PORTIONS, PORTIONS)
        assert gc.get_freeze_count() > 10_000
    assert (gc.get_threshold(), len(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_objects_that_survive_twice_are_frozen(loop: FakeLoop) -> None:
    with settled(PauseHistogram()):
        held = Node()
        gc.collect(0)
        assert young_nodes() == 1
        gc.collect(1)
        assert young_nodes() == 0
        assert held is not None


@pytest.mark.slow
def test_a_young_cycle_is_collected(loop: FakeLoop) -> None:
    with settled(PauseHistogram()):
        make_cycle()
        assert young_nodes() == 2
        gc.collect(0)
        assert young_nodes() == 0


@pytest.mark.slow
def test_each_collection_is_timed(loop: FakeLoop) -> None:
    pauses = PauseHistogram()
    with settled(pauses):
        gc.collect(0)
        gc.collect(1)
        assert sum(pauses.counts) == 2
        assert pauses.take_worst_s() == 1.0  # the clock advances by one per reading
    gc.collect()
    assert sum(pauses.counts) == 2


@pytest.mark.slow
def test_young_objects_are_collected_at_intervals_and_survivors_at_longer_ones(loop: FakeLoop) -> None:
    pauses = PauseHistogram()
    with settled(pauses):
        make_cycle()
        held = Node()
        loop.advance(INTERVAL_S * 1.5)
        assert young_nodes() == 1
        loop.advance(INTERVAL_S * (PORTIONS - 1))
        assert young_nodes() == 0
        assert sum(pauses.counts) == PORTIONS
        assert held is not None
    loop.advance(1)
    assert sum(pauses.counts) == PORTIONS


# no cycles --------------------------------------------------------------------------------------


@contextmanager
def no_cycles() -> Iterator[None]:
    """Objects made inside must be freed without the collector."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        left = [type(each).__name__ for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    ours = {"ClientConnection", "UpstreamConnection", "HttpRequestParser", "HttpResponseParser"}
    ours |= {
        "TunnelExchange",
        "WorkerEnd",
        "Beyond",
        "InferenceExchange",
        "InferenceRequest",
        "Responder",
        "Answer",
        "Decision",
        "HttpRequest",
        "StreamPicker",
        "FakeStream",
        "GrpcProtocol",
        "Call",
        "Http2Stream",
    }
    assert ours.isdisjoint(left), left


class Sink:
    def __init__(self) -> None:
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def upstream_head(self, head: ResponseHead) -> None: ...
    def upstream_data(self, data: bytes) -> None: ...
    def upstream_ended(self, data: bytes) -> None:
        self.ended.set_result(data)

    def upstream_lost(self, reason: str) -> None:
        raise AssertionError(reason)


async def until_empty(connections: Collection[object]) -> None:
    await until(lambda: not connections)


async def ask_and_close(url: str) -> None:
    pool, sink = Pool(url), Sink()
    connection = await pool.connect()
    connection.send(OutgoingHead("GET", b"/", [(b"host", b"a")]), b"", sink)
    assert await sink.ended == b"hello"
    pool.close()
    await until_empty(pool._open)
    assert pool._sweeper is not None
    pool._sweeper.cancel()


@pytest.mark.slow
async def test_connections_on_both_sides_leave_no_cycle() -> None:
    def handle(request: HttpRequest, responder: Responder) -> None:
        responder.send(200, [], b"hello")

    open_connections: set[ClientConnection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: ClientConnection(handle, HttpLimits(), open_connections), "127.0.0.1", 0
    )
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await ask_and_close(url)  # the first one makes lasting objects
    with no_cycles():
        await ask_and_close(url)
        await until_empty(open_connections)
    server.close()


@pytest.mark.slow
async def test_a_websocket_leaves_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1")
    agreed = b"HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    offer = (
        b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    )

    def converse() -> None:
        client = FakeTransport(ClientConnection(world.dispatch.tunnel, HttpLimits(), set()))
        client.feed(offer + b"early")
        worker = world.transport()
        worker.feed(agreed + b"a")
        assert worker.out.endswith(b"early")
        assert client.out.endswith(b"a")
        worker.lose()
        client.lose()
        world.pools["w:1"].transports.clear()
        world.loop.timers.clear()

    converse()
    with no_cycles():
        converse()
    assert world.is_clean()


@pytest.mark.slow
def test_a_request_and_its_answer_leave_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1")

    def ask() -> None:
        _, answered = world.ask()
        world.transport().feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert answered.events[-1] == "end"

    ask()
    with no_cycles():
        ask()


class LoopTasks:
    """Tasks of a real loop, in a world with a fake clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def start(self, name: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._loop.create_task(coro, name=name)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["making a prompt", "connecting"])
async def test_a_client_that_disconnects_while_a_task_waits_leaves_no_cycle(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    tasks = LoopTasks()
    world = ExchangeWorld(monkeypatch, "w:1")
    world.use(tasks=tasks)

    async def wait(*_: object) -> Any:
        await asyncio.Event().wait()

    if stage == "connecting":
        monkeypatch.setattr(world.pools["w:1"], "connect", wait)
    else:
        monkeypatch.setattr(world.context.prompts, "takes_time", lambda request: True)
        monkeypatch.setattr(world.context.prompts, "known_of", wait)

    async def ask_and_leave() -> None:
        exchange, _ = world.ask()
        await asyncio.sleep(0)  # the task begins
        exchange.client_gone()
        await asyncio.sleep(0)  # it is cancelled
        world.loop.timers.clear()

    await ask_and_leave()
    with no_cycles():
        await ask_and_leave()
        await asyncio.sleep(0)
    assert world.is_clean()


def test_streams_of_the_picker_leave_no_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch, W1)
    with no_cycles():
        for is_whole in (True, False):
            picker, _ = epp.picked()
            picker.message(response_headers())
            if is_whole:
                picker.message(response_body(DONE, is_end=True))
                picker.half_closed()
            else:
                picker.aborted("reset")
        picker, _ = epp.stream()
        picker.message(request_headers(((b":method", b"GET"), (b":path", b"/unknown")), is_end=True))
        picker.half_closed()
        del picker, _
    assert epp.is_free


def test_grpc_connections_leave_no_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLoop.install(monkeypatch)
    with no_cycles():
        protocol = GrpcProtocol(
            {b"/test.Echo/Run": EchoHandler}, Http2Limits(), BodyBudget(), set(), lambda *fault: None, "peer"
        )
        transport = FakeTransport(protocol)
        transport.feed(HELLO + request(1) + opened(3) + opened(5) + rst_stream(5, 8))
        transport.lose()
        del protocol, transport

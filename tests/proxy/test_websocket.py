"""WebSockets without sockets or time: events of both sides, and every resource released once."""

from collections.abc import Callable

import pytest

from gateway.core.caller import Caller
from gateway.core.errors import Forbidden, InvalidRequest, NotSupported
from gateway.core.worker import ServedModel
from gateway.http.messages import HttpRequest
from gateway.proxy.websocket import FLUSH_S, Tunnel, parse_tunnel
from tests.support.transports import FakeTransport
from tests.support.worlds.exchanges import Answered, ExchangeWorld

AGREED = b"HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols"
Open = tuple[ExchangeWorld, Tunnel, Answered, FakeTransport]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ExchangeWorld:
    return ExchangeWorld(monkeypatch, "w:1", "w:2")


def opened(world: ExchangeWorld) -> tuple[Tunnel, Answered, FakeTransport]:
    tunnel, answered = world.offer()
    transport = world.transport()
    transport.taken()
    transport.feed(AGREED)
    assert answered.events.pop() == SWITCHED
    return tunnel, answered, transport


# which model -----------------------------------------------------------------------------------


def model(query: str, *served: ServedModel) -> str:
    http = HttpRequest("GET", b"/v1/realtime" + query.encode(), [])
    return parse_tunnel(http, {model.name: model for model in served}).model


M, ALIAS, LORA, OTHER = (
    ServedModel("m", "r"),
    ServedModel("n", "r"),
    ServedModel("l", "r", "l"),
    ServedModel("o", "s"),
)


def test_the_model_is_named_or_the_only_one() -> None:
    assert model("?model=a%2Fb&x=y", M, OTHER) == "a/b"
    assert model("", M) == model("?model=", M, ALIAS) == model("", LORA, M) == "m"
    assert model("") == ""  # no worker has joined: the router reports it


def test_with_several_models_one_must_be_named() -> None:
    with pytest.raises(InvalidRequest, match=r"/v1/realtime\?model=NAME, one of m, o$"):
        model("", M, OTHER)


def test_a_key_opens_its_models_only() -> None:
    served = {model.name: model for model in (M, OTHER)}
    http = HttpRequest("GET", b"/v1/realtime", [])
    http.caller = Caller("acme", "id", ["m"])
    request = parse_tunnel(http, served)  # the only one of the key's
    assert (request.model, request.tenant) == ("m", "acme")
    named = HttpRequest("GET", b"/v1/realtime?model=o", [])
    named.caller = http.caller
    with pytest.raises(Forbidden):
        parse_tunnel(named, served)
    http.caller = Caller("acme", "id", ["x", "y"])
    with pytest.raises(Forbidden):
        parse_tunnel(http, served)


def test_with_salts_a_websocket_is_rejected() -> None:
    http = HttpRequest("GET", b"/v1/realtime?model=m", [])
    http.caller = Caller("acme", salt="s")
    with pytest.raises(NotSupported, match="cannot be isolated"):
        parse_tunnel(http, {"m": M})


# bytes -----------------------------------------------------------------------------------------


def test_bytes_are_passed_both_ways_unchanged(world: ExchangeWorld) -> None:
    tunnel, answered = world.offer()
    transport = world.transport()
    assert transport.taken().startswith(b"GET /v1/realtime?model=m HTTP/1.1\r\n")
    transport.feed(AGREED + b"a")
    transport.feed(b"GET / HTTP/1.1\r\n\r\n")
    answered.from_client(b"\x81\x00")
    assert answered.events == [SWITCHED, b"a", b"GET / HTTP/1.1\r\n\r\n"]
    assert transport.taken() == b"\x81\x00"
    assert world.metrics.tunnel_bytes == {"client": 2, "worker": 19}
    assert world.pools["w:1"].num_reads == 3  # the upgrade, what came with it, and what followed
    assert (world.in_flight(), world.metrics.num_tunnels_open) == (1, 1)
    assert repr(world.pools["w:1"]) == "Pool(w:1, open=0, idle=0)"
    world.dispatch.cut()


def test_backpressure_crosses_the_tunnel(world: ExchangeWorld) -> None:
    tunnel, answered, transport = opened(world)
    tunnel.client_full()
    assert not transport.is_reading
    tunnel.client_free()
    assert transport.is_reading
    transport.protocol.pause_writing()
    transport.protocol.resume_writing()
    assert answered.events == ["held", "let go"]


def test_a_client_that_was_full_before_pauses_the_worker(world: ExchangeWorld) -> None:
    tunnel, answered = world.offer()
    tunnel.client_full()
    assert not world.transport().is_reading
    tunnel.client_free()
    assert world.transport().is_reading
    answered.client_is_full = True
    world.transport().feed(AGREED)
    assert not world.transport().is_reading
    tunnel.client_free()
    assert world.transport().is_reading


# ends ------------------------------------------------------------------------------------------


def test_a_client_that_disconnects_ends_the_tunnel(world: ExchangeWorld) -> None:
    tunnel, answered, transport = opened(world)
    answered.from_client(b"bye")
    tunnel.client_gone()
    assert (transport.taken(), transport.end) == (b"bye", "closed")
    world.loop.advance(FLUSH_S + 0.1)
    assert transport.end == "aborted"  # the worker never took the last bytes
    transport.lose()
    assert answered.events == []
    assert world.metrics.num_client_disconnects == 0
    assert (world.is_clean(), world.metrics.num_tunnels_open, world.metrics.responses[101]) == (True, 0, 1)


def test_a_worker_that_takes_the_last_bytes_in_time_is_closed_normally(world: ExchangeWorld) -> None:
    tunnel, _, transport = opened(world)
    tunnel.client_gone()
    transport.lose()
    world.loop.advance(FLUSH_S + 0.1)
    assert transport.end == "closed"


def test_a_worker_that_closes_ends_the_tunnel(world: ExchangeWorld) -> None:
    tunnel, answered, transport = opened(world)
    transport.feed(b"bye")
    transport.lose()
    assert answered.events == [b"bye", "end"]
    assert world.is_clean()
    assert world.suspected == []
    tunnel.client_gone()  # too late to count
    assert (world.metrics.num_tunnels_open, world.metrics.responses) == (0, {101: 1})


def test_a_worker_that_dies_ends_the_tunnel(world: ExchangeWorld) -> None:
    _, answered, transport = opened(world)
    transport.lose(ConnectionResetError("reset"))
    assert answered.events == ["end"]
    assert world.suspected == [("w:1", "the worker died: reset", False)]
    assert world.metrics.worker(world.suspected[0][0]).num_failed == 1  # type: ignore[arg-type]
    assert world.is_clean()


@pytest.mark.parametrize(
    "late",
    [
        lambda tunnel, answered: answered.from_client(b"late"),
        lambda tunnel, answered: tunnel.from_worker(b"late"),
        lambda tunnel, answered: tunnel.worker_full(True),
        lambda tunnel, answered: tunnel.worker_gone(OSError("late")),
        lambda tunnel, answered: tunnel.client_gone(),
    ],
)
def test_events_after_the_end_are_ignored(
    world: ExchangeWorld, late: Callable[[Tunnel, Answered], None]
) -> None:
    tunnel, answered, transport = opened(world)
    world.dispatch.cut()
    assert answered.events == ["abort"]
    late(tunnel, answered)
    assert (answered.events, transport.taken(), transport.end) == (["abort"], b"", "closed")
    assert (world.metrics.num_tunnels_open, world.metrics.responses) == (0, {101: 1})
    assert world.is_clean()


# time ------------------------------------------------------------------------------------------


def test_silence_ends_a_tunnel_and_either_side_keeps_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", first_byte_timeout_s=5, idle_timeout_s=60, total_timeout_s=100)
    _, answered, transport = opened(world)
    for _ in range(5):
        world.loop.advance(59)
        transport.feed(b"x")
        world.loop.advance(59)
        answered.from_client(b"y")
    assert answered.events == [b"x"] * 5  # hours, whatever the timeouts of answers
    world.loop.advance(59)
    assert world.in_flight() == 1
    world.loop.advance(2)
    assert answered.events[5:] == ["end"]
    assert transport.end == "closed"
    assert world.suspected == []
    assert world.is_clean()


def test_without_a_timeout_a_tunnel_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", first_byte_timeout_s=5, idle_timeout_s=0)
    _, answered, _ = opened(world)
    world.loop.advance(100_000)
    assert answered.events == []


def test_a_worker_that_does_not_accept_in_time_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", first_byte_timeout_s=5)
    _, answered = world.offer()
    world.loop.advance(5.1)
    assert answered.events == [504, "worker_timeout"]
    assert world.is_clean()


# before the upgrade is accepted ----------------------------------------------------------------


def test_a_lost_worker_is_replaced_before_the_upgrade(world: ExchangeWorld) -> None:
    _, answered = world.offer()
    world.transport().lose()
    world.transport("w:2").feed(AGREED)
    assert answered.events == [SWITCHED]
    assert world.in_flight() == 1


def test_an_answer_without_an_upgrade_is_passed_on(world: ExchangeWorld) -> None:
    _, answered = world.offer()
    world.transport().feed(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")
    assert answered.events == [403, b"no", "end"]
    assert world.is_clean()


def test_a_client_that_disconnects_before_the_upgrade_aborts_it(world: ExchangeWorld) -> None:
    tunnel, _ = world.offer()
    tunnel.client_gone()
    assert world.transport().end == "aborted"
    assert world.metrics.num_client_disconnects == 1
    assert world.is_clean()


def test_failed_probes_end_an_upgrade_that_is_not_accepted(world: ExchangeWorld) -> None:
    """An open tunnel continues: its worker may well be alive."""
    tunnel, answered, transport = opened(world)
    world.dispatch.worker_down(world.router.fleet.eligible("m")[0].member.worker.id, "it is silent")
    assert (answered.events, transport.end) == ([], "")

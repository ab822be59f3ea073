import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.http import HttpRequest
from tests.exchanges import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, "w:1", pool_idle_s=2.0, connect_timeout_s=3.0)


def test_a_body_that_cannot_be_read_leaves_nothing_behind(world: World) -> None:
    with pytest.raises(InvalidRequest) as caught:
        world.ask(b'{"model":"m"}')
    assert caught.value.param == "prompt"
    assert world.is_clean()
    assert not world.pools["w:1"].transports


def test_an_exchange_is_known_while_it_lasts(world: World) -> None:
    exchange, _ = world.ask()
    assert world.proxy.exchanges == {exchange}
    assert "w:1" in repr(exchange)
    exchange.client_gone()
    assert world.proxy.exchanges == set()


def test_one_pool_for_each_endpoint_with_the_configured_times(world: World) -> None:
    pool = world.proxy.pool("http://w:9")
    assert world.proxy.pool("http://w:9") is pool
    assert world.proxy.pool("http://w:8") is not pool
    assert (pool._idle_s, pool._connect_timeout_s) == (2.0, 3.0)


def test_a_pool_is_dropped_with_its_endpoint(world: World) -> None:
    world.ask()
    resting = world.transport()
    resting.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert resting.end == ""
    world.proxy.drop_pool("http://w:1")
    assert resting.end == "aborted"
    assert "http://w:1" not in world.proxy.pools
    world.proxy.drop_pool("http://w:1")  # a second time does nothing


def test_a_session_is_what_a_header_says_or_else_the_field_user(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, "w:1", session_header=b"x-session-id", session_cookie=b"sid")
    body = b'{"model":"m","prompt":"x","user":"u"}'
    for headers, session in (([], "u"), ([(b"cookie", b"sid=c")], "c"), ([(b"x-session-id", b"h")], "h")):
        assert (
            world.proxy.request_of(HttpRequest("POST", b"/v1/completions", headers, body)).session == session
        )

"""Answers on the wire, for each kind of request."""

import pytest

from gateway.core.errors import NoWorker, TooManyRequests
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.server.responder import Responder, request_id
from tests.support.recorded_wire import RecordedWire


def respond(wire: RecordedWire, method: str = "GET", **request: bool) -> Responder:
    return Responder(wire, HttpRequest(method, b"/", [], **request))  # type: ignore[arg-type]


def test_a_head_is_sent_with_the_data_behind_it() -> None:
    wire = RecordedWire()
    responder = respond(wire)
    responder.head(ResponseHead(200, []))
    assert wire.writes == []
    responder.data(b"a")
    responder.end(b"b")
    assert wire.writes == [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
        b"1\r\nb\r\n0\r\n\r\n",
    ]
    assert wire.kept_alive == [True]


def test_a_head_without_data_yet_is_sent_alone() -> None:
    wire = RecordedWire()
    responder = respond(wire)
    responder.head(ResponseHead(200, []))
    responder.data(b"")
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_answers_without_a_body(method: str, status: int) -> None:
    wire = RecordedWire()
    responder = respond(wire, method)
    responder.head(ResponseHead(status, [], 5))
    responder.end(b"hello")
    assert not wire.writes[0].endswith(b"hello")
    assert wire.kept_alive == [True]


def test_draining_closes_with_a_header() -> None:
    wire = RecordedWire()
    wire.is_draining = True
    respond(wire).send(200, [], b"")
    assert b"connection: close" in wire.writes[0]
    assert wire.kept_alive == [False]


def test_an_error_has_retry_after() -> None:
    wire = RecordedWire()
    respond(wire).fail(NoWorker("none is up", retry_after_s=2))
    assert wire.writes[0].startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2\r\n" in wire.writes[0]


def test_an_aborted_http_1_0_answer_ends_in_a_reset() -> None:
    wire = RecordedWire()
    responder = respond(wire, is_http10=True)
    responder.head(ResponseHead(200, []))
    responder.data(b"a")
    responder.abort()
    assert wire.writes[-1] == b"RESET"


def test_a_request_id_of_the_client_is_kept() -> None:
    assert request_id(HttpRequest("GET", b"/", [(b"x-request-id", b"abc")]))[1] == b"abc"
    assert len(request_id(HttpRequest("GET", b"/", []))[1]) == 32


def test_configured_headers_go_with_every_answer() -> None:
    for answer in (lambda r: r.send(200, [], b""), lambda r: r.fail(NoWorker("none"))):
        wire = RecordedWire()
        responder = respond(wire)
        responder.more_headers = [(b"x-ratelimit-limit-requests", b"2")]
        answer(responder)
        assert b"\r\nx-ratelimit-limit-requests: 2\r\n" in wire.writes[0]


def test_an_error_has_retry_after_in_milliseconds() -> None:
    wire = RecordedWire()
    respond(wire).fail(TooManyRequests("slowly", code="queue_full", kind="overloaded", wait_s=1.25))
    assert wire.writes[0].startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"\r\nretry-after: 2\r\nretry-after-ms: 1250\r\n" in wire.writes[0]
    assert b'"type":"overloaded"' in wire.writes[0] and b'"code":"queue_full"' in wire.writes[0]


@pytest.mark.parametrize(("name", "peer"), [(("10.0.0.1", 5), "10.0.0.1"), ("", ""), (b"", ""), (None, None)])
def test_the_peer_is_an_address_or_empty_on_a_unix_socket(name: object, peer: str | None) -> None:
    wire = RecordedWire()
    wire.peername = name
    assert respond(wire).peer == peer


def test_an_error_on_anthropics_route_has_its_format_and_header() -> None:
    wire = RecordedWire()
    request = HttpRequest("POST", b"/v1/messages?beta=true", [(b"x-request-id", b"mine")])
    Responder(wire, request).fail(NoWorker("none is up", retry_after_s=1), [request_id(request)])
    head, _, body = wire.writes[0].partition(b"\r\n\r\n")
    assert b"\r\nrequest-id: mine\r\n" in head and b"\r\nx-request-id: mine\r\n" in head
    assert b'"type":"overloaded_error","message":"none is up"' in body and b'"request_id":"mine"' in body
    wire = RecordedWire()
    other = HttpRequest("POST", b"/v1/completions", [])
    Responder(wire, other).fail(NoWorker("none is up"), [request_id(other)])
    assert b"\r\nrequest-id:" not in wire.writes[0] and b'"type":"server_error"' in wire.writes[0]


def test_a_stream_ends_in_an_error_behind_held_data() -> None:
    wire = RecordedWire()
    request = HttpRequest("POST", b"/v1/messages", [])
    responder = Responder(wire, request)
    responder.head(ResponseHead(200, []))
    responder.end_in_error(b"held\n\n", NoWorker("gone"), b"r")
    assert b"held\n\nevent: error\ndata: {" in wire.writes[0] and b"[DONE]" not in wire.writes[0]
    assert wire.writes[0].endswith(b"\r\n0\r\n\r\n")

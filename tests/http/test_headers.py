import pytest

from gateway.core.worker import Worker, WorkerId
from gateway.http.headers import (
    head_to_client,
    head_to_worker,
    is_event_stream,
    sent_again,
    upgrade_to_client,
    upgrade_to_worker,
)
from gateway.http.messages import Header, HttpRequest, OutgoingHead, ResponseHead
from tests.support.fakes import decision


def to_worker(*headers: Header, rank: int = 0, size: int = 1) -> OutgoingHead:
    worker = Worker(WorkerId("w:1"), "http://w:1", (), dp_rank=rank, dp_size=size)
    http = HttpRequest("POST", b"/v1/completions?x=1", list(headers))
    return head_to_worker(http, worker, netloc=b"w:1", prefix=b"/base", num_bytes=3, request_id=b"7")


OURS = b"host: w:1\r\ncontent-length: 3\r\nx-request-id: 7\r\nvia: 1.1 kvgate\r\n\r\n"


def test_the_head_to_a_worker_has_end_to_end_headers_only() -> None:
    sent = to_worker(
        (b"host", b"gateway"),
        (b"connection", b"x-mine"),
        (b"x-mine", b"1"),
        (b"authorization", b"Bearer k"),
        (b"content-length", b"99"),
        (b"content_length", b"99"),
        (b"transfer_encoding", b"chunked"),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"accept_encoding", b"gzip"),
        (b"x-request-id", b"other"),
        (b"x_request_id", b"other"),
        (b"x-dynamo-request-id", b"0af76519-16cd-43dd-8448-eb211c80319c"),
        (b"x-data-parallel-rank", b"5"),
        (b"x-kvgate-worker", b"w:2"),
    )
    assert sent.encoded() == b"POST /base/v1/completions?x=1 HTTP/1.1\r\nauthorization: Bearer k\r\n" + OURS


def test_a_workers_own_key_replaces_the_key_of_the_client() -> None:
    headers = [(b"authorization", b"Bearer k"), (b"x-api-key", b"k"), (b"a", b"1")]
    http, worker = HttpRequest("POST", b"/p", headers), Worker(WorkerId("w:1"), "http://w:1", ())
    sent = head_to_worker(
        http, worker, netloc=b"w:1", prefix=b"", num_bytes=3, request_id=b"7", key=b"Bearer own"
    )
    assert sent.encoded() == b"POST /p HTTP/1.1\r\na: 1\r\nauthorization: Bearer own\r\n" + OURS


def test_a_request_that_is_sent_again_has_another_id() -> None:
    first = to_worker((b"a", b"x-request-id: 7"))
    before, again = first.encoded(), sent_again(first).encoded()
    assert again == before.replace(b"\r\nx-request-id: 7\r\n", b"\r\nx-request-id: 7-2\r\n") != before
    assert first.encoded() == before


def test_the_rank_header_of_a_client_is_replaced() -> None:
    sent = to_worker((b"x-data-parallel-rank", b"5"), rank=2, size=4)
    assert [value for name, value in sent.headers if name == b"x-data-parallel-rank"] == [b"2"]


def test_the_head_to_a_client_has_end_to_end_headers_only() -> None:
    head = ResponseHead(
        201,
        [(b"content-length", b"3"), (b"x-kvgate-worker", b"forged"), (b"connection", b"close"), (b"a", b"1")],
        3,
    )
    sent = head_to_client(head, b"7", None, is_stream=False)
    assert (sent.status, sent.headers, sent.length) == (201, [(b"a", b"1"), (b"x-request-id", b"7")], 3)
    theirs = head_to_client(ResponseHead(200, [(b"x-request-id", b"8")]), b"7", None, is_stream=False)
    assert theirs.headers == [(b"x-request-id", b"7")], "the client's id, whatever a worker makes of its own"


def test_a_decision_is_shown_in_headers_where_enabled() -> None:
    forged = ResponseHead(200, [(b"x-kvgate-worker", b"forged")])
    sent = head_to_client(forged, b"7", decision("d1", "w:1"), is_stream=False)
    assert sent.headers[1:] == [
        (b"x-kvgate-worker", b"w:1"),
        (b"x-kvgate-overlap-tokens", b"64"),
        (b"x-kvgate-decision", b"d1"),
    ]


@pytest.mark.parametrize(
    ("headers", "is_events"),
    [
        ([], False),
        ([(b"content-type", b"application/json")], False),
        ([(b"content-type", b"text/event-stream")], True),
        ([(b"content-type", b"Text/Event-Stream; charset=utf-8")], True),
        ([(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")], False),
        ([(b"content-encoding", b"gzip"), (b"content-type", b"text/event-stream")], False),
        ([(b"content-encoding", b"br"), (b"content-type", b"text/event-stream")], False),
        ([(b"content-encoding", b" Identity"), (b"content-type", b"text/event-stream")], True),
    ],
)
def test_event_streams_have_no_content_length(headers: list[Header], is_events: bool) -> None:
    """A stream may end with an error event of the gateway, which no earlier length would fit."""
    head = ResponseHead(200, headers, 10)
    assert is_event_stream(head) == is_events
    assert head_to_client(head, b"7", None, is_stream=is_events).length == (None if is_events else 10)


def test_an_upgrade_and_its_acceptance_cross_the_gateway() -> None:
    """The only hop-by-hop headers that cross are those of the WebSocket itself."""
    worker = Worker(WorkerId("w:1"), "http://w:1", ())
    offered = [
        (b"connection", b"upgrade, x-mine"),
        (b"upgrade", b"websocket"),
        (b"x-mine", b"1"),
        (b"a", b"1"),
    ]
    http = HttpRequest("GET", b"/v1/realtime", offered, is_upgrade=True)
    assert upgrade_to_worker(http, worker, netloc=b"w:1", prefix=b"", request_id=b"7").encoded() == (
        b"GET /v1/realtime HTTP/1.1\r\na: 1\r\nhost: w:1\r\nx-request-id: 7\r\nvia: 1.1 kvgate\r\n"
        b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    )
    consent = [(b"connection", b"upgrade, keep-alive"), (b"upgrade", b"websocket"), (b"keep-alive", b"5")]
    head = ResponseHead(101, [*consent, (b"sec-websocket-accept", b"A"), (b"x-kvgate-worker", b"other")])
    assert upgrade_to_client(head, b"7", None) == (
        b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: A\r\nx-request-id: 7\r\n"
        b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    )

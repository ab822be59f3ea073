from gateway.epp.envoy_connection import EnvoyConnection, changes
from gateway.http.messages import Header, OutgoingHead

GIVEN = [
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer c"),
    (b"x-llm-d-slo-ttft-ms", b"1"),
]
OURS = [(b"host", b"w"), (b"content-length", b"3"), (b"via", b"1.1 kvgate"), (b"x-request-id", b"7")]


def _head(target: bytes, *headers: Header) -> OutgoingHead:
    return OutgoingHead("POST", target, list(headers))


def test_only_differences_are_changes() -> None:
    changed, removed = changes(GIVEN, b"/v1", _head(b"/v1", GIVEN[0], (b"authorization", b"Bearer w"), *OURS))
    assert changed == [(b"authorization", b"Bearer w"), (b"x-request-id", b"7")]
    assert removed == [b"x-llm-d-slo-ttft-ms"]


def test_another_path_and_a_dropped_header_are_changes() -> None:
    changed, removed = changes(GIVEN[:2], b"/v1", _head(b"/base/v1", GIVEN[0]))
    assert changed == [(b":path", b"/base/v1")] and removed == [b"authorization"]


def test_headers_that_envoy_owns_are_left_alone() -> None:
    given = [
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"te", b"trailers"),
        (b"host", b"a"),
        (b"content-length", b"3"),
    ]
    assert changes(given, b"/", _head(b"/", (b"host", b"w"))) == ([], [])


def test_a_clients_own_destination_is_overwritten_and_its_other_steering_is_removed() -> None:
    given = [
        (b"x-gateway-destination-endpoint", b"10.0.0.9:1"),
        (b"x-gateway-destination-endpoint-subset", b"10.0.0.9:1"),
        (b"x-slo-ttft-ms", b"1"),
    ]
    changed, removed = changes(given, b"/", _head(b"/", (b"x-slo-ttft-ms", b"2")))
    assert changed == []
    assert removed == [b"x-gateway-destination-endpoint-subset", b"x-slo-ttft-ms"]


def test_the_request_is_handed_on_and_an_abort_forgets_its_reader() -> None:
    requests: list[tuple[OutgoingHead, bytes]] = []
    connection = EnvoyConnection(lambda head, body: requests.append((head, body)))
    sink, head = object(), _head(b"/")
    connection.send(head, b"body", sink)  # type: ignore[arg-type]
    assert requests == [(head, b"body")] and connection.sink is sink
    connection.divert(lambda before: before)
    connection.pause()
    connection.resume()
    connection.abort()
    assert connection.sink is None

from gateway.epp.envoy_connection import EnvoyConnection, changes

GIVEN = [
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer c"),
    (b"x-llm-d-slo-ttft-ms", b"1"),
]


def test_only_differences_are_changes() -> None:
    head = (
        b"POST /v1 HTTP/1.1\r\ncontent-type: application/json\r\nauthorization: Bearer w\r\n"
        b"host: w\r\ncontent-length: 3\r\nvia: 1.1 kvgate\r\nx-request-id: 7\r\n\r\n"
    )
    changed, removed = changes(GIVEN, b"/v1", head)
    assert changed == [(b"authorization", b"Bearer w"), (b"x-request-id", b"7")]
    assert removed == [b"x-llm-d-slo-ttft-ms"]


def test_another_path_and_a_dropped_header_are_changes() -> None:
    changed, removed = changes(
        GIVEN[:2], b"/v1", b"POST /base/v1 HTTP/1.1\r\ncontent-type: application/json\r\n\r\n"
    )
    assert changed == [(b":path", b"/base/v1")] and removed == [b"authorization"]


def test_headers_that_envoy_owns_are_left_alone() -> None:
    given = [
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"te", b"trailers"),
        (b"host", b"a"),
        (b"content-length", b"3"),
    ]
    assert changes(given, b"/", b"GET / HTTP/1.1\r\nhost: w\r\n\r\n") == ([], [])


def test_the_request_is_handed_on_and_an_abort_forgets_its_reader() -> None:
    requests: list[tuple[bytes, bytes]] = []
    connection = EnvoyConnection(lambda head, body: requests.append((head, body)))
    sink = object()
    connection.send(b"head", b"body", sink)  # type: ignore[arg-type]
    assert requests == [(b"head", b"body")] and connection.sink is sink
    connection.divert(lambda before: before)
    connection.pause()
    connection.resume()
    connection.abort()
    assert connection.sink is None

import pytest

from gateway.http.messages import HOP_BY_HOP, HttpRequest, chunk, encode_head, end_to_end, status_line


def test_hop_by_hop_headers_do_not_cross() -> None:
    headers = [
        (b"connection", b"close, X-Mine"),
        (b"x-mine", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"trailer", b"x"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"proxy-authorization", b"secret"),
        (b"authorization", b"Bearer k"),
        (b"traceparent", b"00-1-2-01"),
        (b"host", b"a"),
        (b"x-kvgate-worker", b"forged"),
    ]
    assert end_to_end(headers, drop=HOP_BY_HOP | {b"host"}) == [
        (b"authorization", b"Bearer k"),
        (b"traceparent", b"00-1-2-01"),
    ]


def test_heads_have_their_wire_form() -> None:
    assert encode_head(status_line(404), [(b"a", b"1")]) == b"HTTP/1.1 404 Not Found\r\na: 1\r\n\r\n"
    assert status_line(299) == b"HTTP/1.1 299 Unknown"
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"


def test_the_path_is_the_target_without_its_query() -> None:
    request = HttpRequest("GET", b"/ready?model=a/b", [(b"x-a", b"1"), (b"x-a", b"2")])
    assert request.path == "/ready"
    assert request.header(b"x-a") == b"1"
    assert request.header(b"x-b") is None


def test_the_path_of_an_absolute_url_is_used() -> None:
    targets = [b"http://h:1/v1/models?x=1", b"HTTPS://h/", b"http://h", b"/http://h/", b"http://h?a=/b"]
    assert [HttpRequest("GET", target, []).path for target in targets] == [
        "/v1/models",
        "/",
        "/",
        "/http:/h",
        "/",
    ]


@pytest.mark.parametrize(
    ("target", "normal"),
    [
        (b"/v1/models", b"/v1/models"),
        (b"/v1/models/", b"/v1/models"),
        (b"/v1/models//", b"/v1/models"),
        (b"//v1/models", b"/v1/models"),
        (b"/v1//chat/completions/?x=//a/", b"/v1/chat/completions?x=//a/"),
        (b"http://h//v1/models/", b"/v1/models"),
        (b"/", b"/"),
        (b"//", b"/"),
        (b"//?a=/", b"/?a=/"),
        (b"*", b"*"),
        (b"/v1/models//models/llama/", b"/v1/models//models/llama/"),  # names of models are paths
        (b"//v1//models/org//name", b"/v1/models/org//name"),
        (b"/v1/%2fmodels/..", b"/v1/%2fmodels/.."),
    ],
)
def test_a_target_has_one_normal_form(target: bytes, normal: bytes) -> None:
    request = HttpRequest("GET", target, [])
    assert (request.target, request.path) == (normal, normal.partition(b"?")[0].decode())

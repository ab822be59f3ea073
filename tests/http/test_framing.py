import pytest

from gateway.core.errors import GatewayError
from gateway.http.framing import MAX_ANSWER_HEADERS, BadAnswer, HttpLimits, check_answer, check_request
from gateway.http.messages import Header

HOST = (b"host", b"a")
CHUNKED = (b"transfer-encoding", b"chunked")
EXPECT = (b"expect", b"100-Continue")


def test_an_answer_with_very_many_headers_is_rejected() -> None:
    headers = [(b"a", b"")] * MAX_ANSWER_HEADERS
    assert check_answer("1.1", 200, headers) == (None, False)
    with pytest.raises(BadAnswer, match="over 256 headers"):
        check_answer("1.1", 200, [*headers, (b"a", b"")])


@pytest.mark.parametrize(
    ("version", "target", "headers", "expects"),
    [
        ("1.1", b"/", [HOST], False),
        ("1.0", b"/", [], False),
        ("1.0", b"/", [HOST], False),
        ("1.1", b"/", [HOST, CHUNKED], False),
        ("1.1", b"/", [HOST, (b"transfer-encoding", b"Chunked \t")], False),
        ("1.1", b"/", [HOST, (b"content-length", b"100")], False),
        ("1.1", b"/", [HOST, EXPECT], True),
        ("1.0", b"/", [HOST, EXPECT], False),
        ("1.1", b"*", [HOST], False),
        ("1.1", b"http://h", [HOST], False),
        ("1.1", b"HTTPS://h:1/a@b", [HOST], False),
        ("1.1", b"http://[::1]:80?a", [HOST], False),
    ],
)
def test_framing_of_valid_requests(version: str, target: bytes, headers: list[Header], expects: bool) -> None:
    assert check_request(version, target, headers, 100) == expects


@pytest.mark.parametrize(
    ("version", "target", "headers", "status"),
    [
        ("2.0", b"/", [HOST], 505),
        ("0.9", b"/", [], 505),
        ("1.1", b"/", [], 400),
        ("1.1", b"/", [HOST, HOST], 400),
        ("1.0", b"/", [HOST, HOST], 400),
        ("1.0", b"/", [CHUNKED], 400),
        ("1.1", b"/", [HOST, (b"transfer-encoding", b"gzip, chunked")], 501),
        ("1.1", b"/", [HOST, (b"transfer-encoding", b"gzip"), CHUNKED], 400),
        ("1.1", b"/", [HOST, (b"transfer-encoding", b",chunked")], 501),
        ("1.1", b"/", [HOST, (b"content-length", b"101")], 413),
        ("1.1", b"/", [HOST, EXPECT, (b"expect", b"magic")], 417),
        ("1.1", b"/", [HOST, (b"expect", b"magic"), EXPECT], 417),
        ("1.1", b"http:///a", [HOST], 400),
        ("1.1", b"http://", [HOST], 400),
        ("1.1", b"http://good@evil/", [HOST], 400),
        ("1.1", b"ftp://h/a", [HOST], 400),
    ],
)
def test_invalid_framing_of_requests_is_rejected(
    version: str, target: bytes, headers: list[Header], status: int
) -> None:
    with pytest.raises(GatewayError) as caught:
        check_request(version, target, headers, 100)
    assert caught.value.status == status


def test_framing_of_valid_answers() -> None:
    assert check_answer("1.1", 200, [(b"content-length", b"7")]) == (7, False)
    assert check_answer("1.0", 200, []) == (None, False)
    assert check_answer("1.1", 599, [CHUNKED]) == (None, True)


@pytest.mark.parametrize(
    ("version", "status", "headers"),
    [
        ("2.0", 200, []),
        ("1.1", 99, []),
        ("1.1", 600, []),
        ("1.1", 200, [(b"transfer-encoding", b"gzip")]),
        ("1.1", 200, [(b"transfer-encoding", b"gzip, chunked")]),
        ("1.1", 200, [CHUNKED, CHUNKED]),
    ],
)
def test_invalid_framing_of_answers_is_rejected(version: str, status: int, headers: list[Header]) -> None:
    with pytest.raises(BadAnswer):
        check_answer(version, status, headers)


LIMITS = HttpLimits(body_timeout_s=60, min_body_rate=500)


@pytest.mark.parametrize(
    ("after_s", "num_bytes", "left_s"),
    [(0, 0, 60), (59, 0, 1), (60, 0, 0), (100, 0, 0), (60, 500, 1), (60, 30_000, 60), (3600, 10**7, 60)],
)
def test_the_timeout_of_a_body_grows_with_its_bytes(after_s: float, num_bytes: int, left_s: float) -> None:
    assert LIMITS.body_left_s(1000.0 + after_s, 1000.0, num_bytes) == left_s

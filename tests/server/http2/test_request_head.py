"""Headers of requests and trailers: what is read of them, and what makes them malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2.request_head import (
    NAME_BYTES,
    StreamHead,
    field_fault,
    request_fault,
    trailers_fault,
)
from tests.support.http2 import POST


def test_a_request_has_what_a_server_reads() -> None:
    head = StreamHead([*POST, (b"grpc-timeout", b"1S"), (b"content-length", b"12")])
    assert (head.method, head.path, head.content_type) == (b"POST", b"/test.Echo/Run", b"application/grpc")
    assert (head.timeout, head.num_expected, head.fault) == (b"1S", 12, "")
    assert "good" in repr(head)


@pytest.mark.parametrize(
    ("length", "num_expected", "fault"),
    [
        (b"0", 0, ""),
        (b"9" * 18, int("9" * 18), ""),
        (b"", -1, "a broken content-length"),
        (b"-1", -1, "a broken content-length"),
        (b"9" * 19, -1, "a broken content-length"),
    ],
)
def test_content_lengths(length: bytes, num_expected: int, fault: str) -> None:
    head = StreamHead([*POST, (b"content-length", length)])
    assert (head.num_expected, head.fault) == (num_expected, fault)


@given(st.binary(max_size=12))
def test_names_have_the_letters_of_tokens_only(name: bytes) -> None:
    is_good = name != b"" and all(octet in NAME_BYTES for octet in name)
    assert (field_fault(name, b"") == "") == is_good


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([*POST, (b":path", b"/b")], "after a header"),
        ([(b":path", b"/a"), (b":path", b"/b")], "twice"),
        ([(b":path", b"")], "an empty :path"),
        ([(b":status", b"200")], "unknown"),
        ([(b":path", b"/a"), (b":method", b"POST")], "without"),
    ],
)
def test_malformed_pseudo_headers(headers: list[tuple[bytes, bytes]], words: str) -> None:
    assert words in request_fault(headers)
    assert words in StreamHead(headers).fault


def test_a_good_request_has_no_fault() -> None:
    assert request_fault(list(POST)) == "" and trailers_fault([(b"x", b"y")]) == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (b"X", b"", "upper case"),
        (b"", b"", "invalid"),
        (b"a b", b"", "invalid"),
        (b"a\0", b"", "invalid"),
        (b"upgrade", b"h2c", "connections"),
        (b"te", b"gzip", "connections"),
        (b"a", b"b\r\nc: d", "line breaks"),
        (b"a", b"\0", "line breaks"),
    ],
)
def test_malformed_headers(name: bytes, value: bytes, words: str) -> None:
    assert words in field_fault(name, value)
    assert (
        request_fault([*POST, (name, value)]) == trailers_fault([(name, value)]) == field_fault(name, value)
    )

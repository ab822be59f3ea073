"""Upgrades to other protocols, and the answer to a client that begins in HTTP/2."""

import pytest

from gateway.http.messages import Header
from gateway.http.upgrade import HTTP2_REFUSAL, has_body, offers_websocket, without_offer


@pytest.mark.parametrize(
    ("value", "is_offered"),
    [
        (b"websocket", True),
        (b"WebSocket", True),
        (b"h2c, websocket", True),
        (b"websockets", False),
        (b"h2c", False),
        (b"", False),
    ],
)
def test_offered_protocols_are_read(value: bytes, is_offered: bool) -> None:
    assert offers_websocket([(b"a", b"websocket"), (b"upgrade", value)]) is is_offered


@pytest.mark.parametrize(
    ("headers", "has"),
    [
        ([], False),
        ([(b"content-length", b"0")], False),
        ([(b"content-length", b"1")], True),
        ([(b"transfer-encoding", b"chunked")], True),
    ],
)
def test_requests_with_bodies_offer_nothing(headers: list[Header], has: bool) -> None:
    assert has_body(headers) is has


def test_the_head_without_the_offer() -> None:
    headers = [(b"connection", b"upgrade"), (b"upgrade", b"h2c"), (b"a", b"1")]
    assert without_offer(b"GET", b"/x", "1.1", headers) == (
        b"GET /x HTTP/1.1\r\nconnection: upgrade\r\na: 1\r\n\r\n"
    )


def test_http_2_frames_of_a_refusal() -> None:
    """Empty settings; then: no stream was processed, HTTP/1.1 is required (RFC 9113, 6.8 and 7)."""
    settings, goaway = HTTP2_REFUSAL[:9], HTTP2_REFUSAL[9:]
    assert settings == bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    assert goaway[:9] == bytes((0, 0, len(goaway) - 9, 7, 0, 0, 0, 0, 0))
    assert goaway[9:17] == bytes((0, 0, 0, 0, 0, 0, 0, 0xD))
    assert goaway[17:].isascii()

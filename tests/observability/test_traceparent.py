"""Trace of a request: a child of the client's, or a new one."""

import pytest

from gateway.http.messages import HttpRequest, end_to_end
from gateway.observability.traceparent import OURS, PARENT, SpanContext, begin, read, traced, write

CLIENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OWN = SpanContext("a" * 32, "b" * 16, True)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        (CLIENT, True),
        (CLIENT[:-1] + b"0", True),
        (b"cc" + CLIENT[2:] + b"-later", True),  # a later version may have more
        (CLIENT + b"-more", False),
        (b"ff" + CLIENT[2:], False),
        (CLIENT.upper(), False),
        (b"00-" + b"0" * 32 + CLIENT[35:], False),
        (CLIENT[:36] + b"0" * 16 + b"-01", False),
        (b"", False),
        (None, False),
    ],
)
def test_valid_traceparents(value: bytes | None, is_one: bool) -> None:
    assert (read(value) is not None) is is_one


def test_a_written_traceparent_can_be_read() -> None:
    for is_sampled in (True, False):
        span = OWN._replace(is_sampled=is_sampled)
        assert read(write(span)) == span


@pytest.mark.parametrize("is_child", [True, False])
def test_a_worker_receives_only_our_span(is_child: bool) -> None:
    http = HttpRequest(
        "POST", b"/", [(PARENT, CLIENT), (b"tracestate", b"a=b"), (OURS, b"forged"), (b"x", b"y")]
    )
    begin(http, OWN, read(CLIENT), is_child=is_child)
    sent = end_to_end(http.headers)
    assert sent == [*([(b"tracestate", b"a=b")] if is_child else []), (b"x", b"y"), (PARENT, write(OWN))]
    found = traced(http)
    assert found is not None and (found.own, found.client, found.is_child) == (OWN, read(CLIENT), is_child)


def test_a_request_without_a_begun_trace_has_none() -> None:
    assert traced(None) is None and traced(HttpRequest("POST", b"/", [(PARENT, CLIENT)])) is None

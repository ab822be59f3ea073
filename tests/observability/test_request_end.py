"""Who made the error, and what is told of a request that nobody was asked about."""

import pytest

from gateway.core.errors import InvalidRequest, UnknownRoute
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import Kind
from gateway.http.caller import Who
from gateway.http.messages import HttpRequest
from gateway.observability.request_end import CUT, OUT_OF_TIME, STOPPED, End, refusal, tell, who_failed


def end(how: str, status: int, fault: str = "") -> End:
    return End(None, None, None, how, status, fault)


@pytest.mark.parametrize(
    ("how", "status", "fault", "who"),
    [
        ("ended", 200, "", None),
        ("ended", 400, "", "client"),  # a worker says so, of what the client asked
        ("ended", 500, "", "worker"),
        ("ended", 503, "", "worker"),
        ("cut", 200, CUT, "worker"),
        ("cut", 200, OUT_OF_TIME, "gateway"),
        ("cut", 200, STOPPED, "gateway"),
        ("failed", 502, "worker_failed", "worker"),
        ("failed", 504, "worker_timeout", "worker"),
        ("failed", 503, "no_worker", "gateway"),
        ("failed", 404, "model_not_found", "client"),
        ("failed", 429, "queue_timeout", "gateway"),
        ("refused", 429, "queue_full", "gateway"),
        ("refused", 429, "rate_limit_exceeded", "client"),
        ("refused", 400, "invalid_request", "client"),
        ("refused", 500, "internal_error", "gateway"),
        ("refused", 501, "not_supported", "client"),
        ("client gone", 499, "", "client"),
    ],
)
def test_who_made_the_error(how: str, status: int, fault: str, who: str | None) -> None:
    assert who_failed(end(how, status, fault)) == who


def test_a_refusal_knows_the_request_if_it_was_read() -> None:
    error = InvalidRequest("no")
    http = HttpRequest("POST", b"/v1/completions?key=secret", [])
    told = refusal(http, error, 400, 5.0, b"7")
    assert (told.request, told.route, told.request_id) == (None, "/v1/completions", b"7")
    assert (told.how, told.status, told.fault, told.lasted_s) == ("refused", 400, "invalid_request", 0.0)
    error.request = request = InferenceRequest(Kind.CHAT, "/v1/chat/completions", b"", {"model": "m"})
    assert refusal(http, error, 400, 5.0).request is request


def test_a_tenant_is_known_by_its_key_where_nothing_else_was_read() -> None:
    http = HttpRequest("POST", b"/v1/completions", [])
    assert refusal(http, None, 403, 0.0).tenant is None
    http.who = Who("acme")
    error = InvalidRequest("no")
    error.request = request = InferenceRequest(Kind.CHAT, "/v1/chat/completions", b"", {"model": "m"})
    assert [refusal(http, each, 403, 0.0).tenant for each in (None, error)] == ["acme"] * 2
    request.tenant = "as flow control has it"
    assert refusal(http, error, 429, 0.0).tenant == "as flow control has it"


def test_a_path_that_is_no_route_is_not_told() -> None:
    http = HttpRequest("GET", b"/v1/whatever-was-guessed", [])
    assert refusal(http, UnknownRoute("no"), 404, 0.0).route is None


def test_what_was_not_even_http() -> None:
    told = refusal(None, None, 400, 0.0)
    assert (told.fault, told.route, who_failed(told)) == ("malformed", None, "client")


def test_one_who_fails_is_asked_no_more_and_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[End] = []

    def broken(end: End) -> None:
        raise KeyError("a bug")

    tellers = [broken, heard.append]
    for _ in range(2):
        tell(tellers, end("ended", 200))
    assert len(heard) == 2 and tellers == [heard.append]
    assert caplog.text.count("disabled until restart") == 1

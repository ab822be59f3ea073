"""The end of a request: the side that failed, and the fields of a rejected request."""

import pytest

from gateway.core.caller import Caller
from gateway.core.errors import InvalidRequest, UnknownRoute
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.http.messages import HttpRequest
from gateway.observability.request_end import (
    CUT,
    OUT_OF_TIME,
    STOPPED,
    RequestEnd,
    error_origin,
    notify_ended,
    refusal,
)


def end(result: str, status: int, fault: str = "") -> RequestEnd:
    return RequestEnd(None, None, None, result, status, fault)


@pytest.mark.parametrize(
    ("result", "status", "fault", "side"),
    [
        ("ended", 200, "", None),
        ("ended", 400, "", "client"),  # the worker's answer to a wrong request
        ("ended", 500, "", "worker"),
        ("ended", 503, "", "worker"),
        ("aborted", 200, CUT, "worker"),
        ("aborted", 200, OUT_OF_TIME, "gateway"),
        ("aborted", 200, STOPPED, "gateway"),
        ("failed", 502, "worker_failed", "worker"),
        ("failed", 504, "worker_timeout", "worker"),
        ("failed", 503, "no_worker", "gateway"),
        ("failed", 404, "model_not_found", "client"),
        ("failed", 429, "queue_timeout", "gateway"),
        ("rejected", 429, "queue_full", "gateway"),
        ("rejected", 429, "rate_limit_exceeded", "client"),
        ("rejected", 400, "invalid_request", "client"),
        ("rejected", 500, "internal_error", "gateway"),
        ("rejected", 501, "not_supported", "client"),
        ("client_disconnected", 499, "", "client"),
    ],
)
def test_the_side_that_failed(result: str, status: int, fault: str, side: str | None) -> None:
    assert error_origin(end(result, status, fault)) == side


def test_a_rejection_has_the_fields_of_a_parsed_request() -> None:
    error = InvalidRequest("no")
    http = HttpRequest("POST", b"/v1/completions?key=secret", [])
    rejected = refusal(http, error, 400, 5.0, b"7")
    assert (rejected.request, rejected.route, rejected.request_id) == (None, "/v1/completions", b"7")
    assert (rejected.result, rejected.status, rejected.fault, rejected.lasted_s) == (
        "rejected",
        400,
        "invalid_request",
        0.0,
    )
    error.request = request = InferenceRequest(RouteKind.CHAT, "/v1/chat/completions", b"", {"model": "m"})
    assert refusal(http, error, 400, 5.0).request is request


def test_a_rejected_request_has_the_tenant_of_its_key() -> None:
    http = HttpRequest("POST", b"/v1/completions", [])
    assert refusal(http, None, 403, 0.0).tenant is None
    http.caller = Caller("acme")
    error = InvalidRequest("no")
    error.request = request = InferenceRequest(RouteKind.CHAT, "/v1/chat/completions", b"", {"model": "m"})
    assert [refusal(http, each, 403, 0.0).tenant for each in (None, error)] == ["acme"] * 2
    request.tenant = "as flow control has it"
    assert refusal(http, error, 429, 0.0).tenant == "as flow control has it"


def test_an_unknown_path_is_not_shown() -> None:
    http = HttpRequest("GET", b"/v1/whatever-was-guessed", [])
    assert refusal(http, UnknownRoute("no"), 404, 0.0).route is None


def test_invalid_http() -> None:
    rejected = refusal(None, None, 400, 0.0)
    assert (rejected.fault, rejected.route, error_origin(rejected)) == ("malformed", None, "client")


def test_an_observer_that_raises_is_disabled_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[RequestEnd] = []

    def broken(end: RequestEnd) -> None:
        raise KeyError("a bug")

    end_observers = [broken, heard.append]
    for _ in range(2):
        notify_ended(end_observers, end("ended", 200))
    assert len(heard) == 2 and end_observers == [heard.append]
    assert caplog.text.count("disabled until restart") == 1

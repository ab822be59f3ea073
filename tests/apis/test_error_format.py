"""Format of errors on each route."""

import json
from pathlib import Path

import pytest

from gateway.apis.error_format import body_of, event_of, event_of_answer, is_anthropic
from gateway.core.errors import (
    BodyTooLarge,
    Forbidden,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    NotSupported,
    NoWorker,
    RequestTimeout,
    TooManyRequests,
    Unauthorized,
    UnknownModel,
    UnknownRoute,
    WorkerFailed,
    WorkerTimeout,
)

MESSAGES = "/v1/messages"


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (MESSAGES, True),
        ("/v1/messages/count_tokens", True),
        ("/llm/v1/messages", True),
        ("/v1/messages/batches", True),
        ("/v1/messages2", False),
        ("/v1/chat/completions", False),
        ("", False),
    ],
)
def test_anthropic_routes_are_recognized(path: str, is_one: bool) -> None:
    assert is_anthropic(path) is is_one


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("x"), "invalid_request_error"),
        (Unauthorized("x", code="invalid_api_key"), "authentication_error"),
        (Forbidden("x", code="model_not_allowed"), "permission_error"),
        (UnknownModel("x"), "not_found_error"),
        (UnknownRoute("x"), "not_found_error"),
        (MethodNotAllowed("x"), "invalid_request_error"),
        (RequestTimeout("x"), "timeout_error"),
        (BodyTooLarge("x"), "request_too_large"),
        (TooManyRequests("x", code="queue_full", kind="overloaded", wait_s=1.0), "rate_limit_error"),
        (NotSupported("x"), "invalid_request_error"),
        (GatewayError("x"), "api_error"),
        (WorkerFailed("x"), "api_error"),
        (NoWorker("x"), "overloaded_error"),
        (WorkerTimeout("x"), "timeout_error"),
    ],
)
def test_each_error_has_its_type(error: GatewayError, kind: str) -> None:
    assert json.loads(body_of(error, MESSAGES, "req-1")) == {
        "type": "error",
        "error": {"type": kind, "message": "x", "details": {"error_code": error.code}},
        "request_id": "req-1",
    }
    assert body_of(error, "/v1/completions", "req-1") == error.body()


def test_a_stream_ends_with_an_error_in_the_format_of_its_route() -> None:
    error = WorkerFailed("gone")
    head, data, end = event_of(error, MESSAGES, "r").partition(b"data: ")
    assert (head, json.loads(end)["error"]["message"]) == (b"event: error\n", "gone")
    assert data and end.endswith(b"\n\n")
    assert event_of(error, "/v1/chat/completions", "r") == b"data: " + error.body() + b"\n\n"


@pytest.mark.parametrize(
    ("error", "openais", "anthropics"),
    [
        (InvalidRequest("x"), "invalid_request_error", "invalid_request_error"),
        (Unauthorized("x", code="invalid_api_key"), "invalid_request_error", "authentication_error"),
        (Forbidden("x", code="not_allowed"), "permission_error", "permission_error"),
        (UnknownRoute("x"), "invalid_request_error", "not_found_error"),
        (RequestTimeout("x"), "invalid_request_error", "timeout_error"),
        (BodyTooLarge("x"), "invalid_request_error", "request_too_large"),
        (WorkerFailed("x"), "server_error", "api_error"),
        (NoWorker("x"), "server_error", "overloaded_error"),
        (WorkerTimeout("x"), "server_error", "timeout_error"),
    ],
)
def test_the_documentation_has_each_type(error: GatewayError, openais: str, anthropics: str) -> None:
    """The table of docs/guides/clients.md, and what is sent."""
    text = (Path(__file__).parents[2] / "docs/guides/clients.md").read_text()
    rows = [line.split("|")[1:] for line in text.splitlines() if line.startswith("| ")]
    (row,) = [row for row in rows if str(error.status) in row[0]]
    assert (f"`{openais}`" in row[1], f"`{anthropics}`" in row[2]) == (True, True)
    assert json.loads(body_of(error, "/v1/completions", "r"))["error"]["type"] == openais
    assert json.loads(body_of(error, MESSAGES, "r"))["error"]["type"] == anthropics


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error":{"message":"too long","code":400}}', "too long"),  # vLLM
        (400, b'{"object":"error","message":"too long","type":"BadRequestError"}', "too long"),  # SGLang
        (400, b'{"error":"too long"}', "too long"),
        (422, b'{"detail":[{"msg":"too long"}]}', '{"detail":[{"msg":"too long"}]}'),
        (500, b"Internal Server Error", "Internal Server Error"),
        (500, b"\xff" + b"x" * 9000, "\ufffd" + "x" * 4095 + "..."),
        (404, b"", "the worker answered 404"),
        (500, b"[" * 60000, "[" * 4096 + "..."),
        (200, b'{"choices":[]}', "the worker answered 200 without an event stream"),
    ],
)
def test_a_workers_error_becomes_an_event(status: int, body: bytes, message: str) -> None:
    event = event_of_answer(status, body, "/v1/completions", "id-1")
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["message"] == message
    event = event_of_answer(status, body, MESSAGES, "id-1")
    assert event.startswith(b"event: error\ndata: ") and event.count(b"\n") == 3
    answer = json.loads(event.partition(b"data: ")[2])
    assert (answer["type"], answer["error"]["message"], answer["request_id"]) == ("error", message, "id-1")


def test_an_error_in_the_form_of_the_route_stays_as_it_is() -> None:
    ours = {"type": "error", "error": {"type": "invalid_request_error", "message": "x", "extra": 1}}
    event = event_of_answer(400, json.dumps(ours, indent=1).encode(), MESSAGES, "id-1")
    assert json.loads(event.partition(b"data: ")[2]) == ours and event.count(b"\n") == 3
    assert json.loads(
        event_of_answer(400, b'{"error":{"message":"x","n":1}}', "/v1/completions", "")[6:]
    ) == {"error": {"message": "x", "n": 1}}

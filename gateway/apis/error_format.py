"""Bodies of the gateway's errors: OpenAI's object, or Anthropic's where the table of routes says so.

The client's SDK then raises its own exception, with the message in it.
"""

from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import GatewayError, InvalidRequest, WorkerFailed
from gateway.core.outcome import SERVER_ERROR
from gateway.core.route_table import TABLE, ErrorFormat, paths

_ANTHROPIC = paths(route for route in TABLE if route.errors is ErrorFormat.ANTHROPIC)

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by status; a server without workers counts as an overloaded one."""


def is_anthropic(path: str) -> bool:
    """True for paths that Anthropic's SDK calls, and all below them. A base path may stand in front, since a
    request may be rejected before that is stripped."""
    return any(f"{known}/" in path + "/" for known in _ANTHROPIC)


def body_of(error: GatewayError, path: str, request_id: str) -> bytes:
    """The body of a whole answer."""
    return _anthropic(error, request_id) if is_anthropic(path) else error.body()


def event_of(error: GatewayError, path: str, request_id: str) -> bytes:
    """The end of a stream that had begun. No `[DONE]` follows: that marks a complete answer."""
    if is_anthropic(path):
        return b"event: error\ndata: " + _anthropic(error, request_id) + b"\n\n"
    return b"data: " + error.body() + b"\n\n"


def event_of_answer(status: int, body: bytes, path: str, request_id: str) -> bytes:
    """A worker's answer that came as no stream, as the event that ends a stream which the gateway had opened.
    An error object in the form of the route stays as it is."""
    if status < 400:
        return event_of(
            WorkerFailed(f"the worker answered {status} without an event stream"), path, request_id
        )
    try:
        found = msgspec.json.decode(body)
    except UNREADABLE:
        found = body.decode("utf-8", "replace")
    known = found.get("error") if type(found) is dict else None
    if type(known) is dict and (not is_anthropic(path) or found.get("type") == "error"):
        name = b"event: error\n" if is_anthropic(path) else b""
        return name + b"data: " + msgspec.json.encode(found) + b"\n\n"
    is_clients = status < SERVER_ERROR
    message = _message_in(found) or f"the worker answered {status}"
    error = InvalidRequest(message) if is_clients else WorkerFailed(message)
    error.status = status
    return event_of(error, path, request_id)


def _message_in(answer: object) -> str:
    """The message of an engine's error, in the places where engines have it; else all of it."""
    if type(answer) is dict:
        inner = answer.get("error")
        for found in (inner.get("message") if type(inner) is dict else inner, answer.get("message")):
            if type(found) is str and found:
                return found
    return answer if type(answer) is str else msgspec.json.encode(answer).decode()


def kind_of(status: int, is_clients: bool) -> str:
    return _KINDS.get(status) or ("invalid_request_error" if is_clients else "api_error")


def _anthropic(error: GatewayError, request_id: str) -> bytes:
    is_clients = error.kind in ("invalid_request_error", "permission_error")
    error_object: dict[str, Any] = {
        "type": kind_of(error.status, is_clients),
        "message": error.message,
        "details": {"error_code": error.code},
    }
    return msgspec.json.encode({"type": "error", "error": error_object, "request_id": request_id})

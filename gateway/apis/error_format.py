"""Bodies of the gateway's errors: OpenAI's object, or Anthropic's where the table of routes says so.

The client's SDK then raises its own exception, with the message in it.
"""

from typing import Any

import msgspec

from gateway.core.errors import GatewayError
from gateway.core.requests.routes import TABLE, ErrorFormat, paths

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

"""How an error of ours is put: as OpenAI's object, and on `/v1/messages` as Anthropic's, so that the SDK of
whoever asks raises its own exception, with the message in it.
"""

from typing import Any

import msgspec

from gateway.core.errors import GatewayError

MESSAGES = "/v1/messages/"

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
"""Anthropic's, by status. It has no status for a server without workers but that of an overloaded one."""


def is_anthropic(path: str) -> bool:
    """Of a request's path; also below a base path, where a request was refused before that was taken off."""
    return MESSAGES in path + "/"


def body_of(error: GatewayError, path: str, request_id: str) -> bytes:
    """The body of a whole answer."""
    return _anthropic(error, request_id) if is_anthropic(path) else error.body()


def event_of(error: GatewayError, path: str, request_id: str) -> bytes:
    """The end of a stream that had begun."""
    if is_anthropic(path):
        return b"event: error\ndata: " + _anthropic(error, request_id) + b"\n\n"
    return b"data: " + error.body() + b"\n\ndata: [DONE]\n\n"


def kind_of(status: int, is_clients: bool) -> str:
    return _KINDS.get(status) or ("invalid_request_error" if is_clients else "api_error")


def _anthropic(error: GatewayError, request_id: str) -> bytes:
    is_clients = error.kind in ("invalid_request_error", "permission_error")
    told: dict[str, Any] = {
        "type": kind_of(error.status, is_clients),
        "message": error.message,
        "details": {"error_code": error.code},
    }
    return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id})

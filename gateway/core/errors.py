"""The errors a client can meet. Each knows its answer: HTTP status, OpenAI code, and what to do.

The body is OpenAI's error object, so that every SDK raises its own typed exception; on routes of Anthropic's
it is put in their form (`apis/error_format.py`).
"""

import math

import msgspec

MAX_MESSAGE_CHARS = 4096
"""Length of a message to a client. Messages quote requests and list models, and either may be megabytes."""

FAILED = "internal gateway error; quote the request id to the operator"
"""The message to a client about a bug."""


class GatewayError(Exception):
    """Base of all answers that the gateway itself gives instead of a worker.

    `param` names the request field at fault; `retry_after_s` becomes a Retry-After header, and
    `retry_after_ms` one that SDKs know and that is not rounded. `should_retry`: the same request may do well
    in a moment, and doing it twice does no harm; the header that SDKs obey before the status.
    """

    status = 500
    code = "internal_error"
    kind = "server_error"
    should_retry = False
    retry_after_ms: int | None = None
    request: object = None
    """The InferenceRequest that it refuses, where that was read; for the log."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[:MAX_MESSAGE_CHARS] + "..."
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class InvalidRequest(GatewayError):
    """The request cannot be understood; nothing was sent to a worker."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"


class Unauthorized(InvalidRequest):
    """The client is not authenticated: no key, an unknown one, or an expired one."""

    status = 401
    code = "invalid_api_key"

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class Forbidden(InvalidRequest):
    """The client is authenticated, and the request is not allowed."""

    status = 403
    code = "not_allowed"
    kind = "permission_error"

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code


class UnknownRoute(InvalidRequest):
    status = 404
    code = "unknown_route"


class RouteForbidden(InvalidRequest):
    """A route that workers may have, and that is not for clients."""

    status = 403
    code = "route_forbidden"
    kind = "permission_error"


class UnknownResponse(InvalidRequest):
    status = 404
    code = "response_not_found"


class UnknownModel(InvalidRequest):
    status = 404
    code = "model_not_found"


class ModelMissing(InvalidRequest):
    """Neither the body nor anything else says for which model it is."""

    code = "model_missing"

    def __init__(self, message: str = "you must provide a model parameter") -> None:
        super().__init__(message, param="model")


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"


class ContextTooLong(InvalidRequest):
    """The prompt has more tokens than any worker of its model takes; in vLLM's words."""

    code = "context_length_exceeded"

    def __init__(self, max_model_len: int, num_tokens: int) -> None:
        """Error for a prompt of at least `num_tokens`."""
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"at least {num_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            param="input_tokens",
        )


class RequestTimeout(InvalidRequest):
    status = 408
    code = "request_timeout"
    should_retry = True


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "body_too_large"


class UnsupportedContent(InvalidRequest):
    """A header asks for another reading of the body than the gateway's."""

    status = 415
    code = "unsupported_content"

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class ExpectationFailed(InvalidRequest):
    status = 417
    code = "expectation_failed"


class UpgradeRequired(InvalidRequest):
    status = 426
    code = "upgrade_required"


class TooManyRequests(GatewayError):
    """More than there is room for now; `wait_s` is when it is worth to ask again."""

    status = 429
    code = "rate_limit_exceeded"
    should_retry = True

    def __init__(self, message: str, *, code: str, kind: str, wait_s: float) -> None:
        wait_s = min(max(wait_s, 0.001), MAX_RETRY_AFTER_S)
        super().__init__(message, retry_after_s=math.ceil(wait_s))
        self.retry_after_ms = math.ceil(wait_s * 1000)
        self.code = code
        self.kind = kind


MAX_RETRY_AFTER_S = 60.0
"""Longer predictions are worth little, and SDKs give up on longer waits."""


class HeadTooLarge(InvalidRequest):
    status = 431
    code = "header_too_large"


class NotSupported(InvalidRequest):
    status = 501
    code = "not_supported"


class VersionNotSupported(InvalidRequest):
    status = 505
    code = "version_not_supported"


class WorkerFailed(GatewayError):
    """A worker did not answer, or not in HTTP."""

    status = 502
    code = "worker_failed"
    should_retry = True


class NoWorker(GatewayError):
    """No worker that serves this model is up."""

    status = 503
    code = "no_worker"
    should_retry = True


class NoRoomForBody(GatewayError):
    """The request bodies in flight use all the memory that they may."""

    status = 503
    code = "no_room_for_body"
    should_retry = True


class OutdatedKeys(GatewayError):
    """The key file cannot be used any more, so that the caller's key may be revoked already."""

    status = 503
    code = "outdated_keys"


class WorkerTimeout(GatewayError):
    status = 504
    code = "worker_timeout"
    should_retry = True


class ConfigError(Exception):
    """A configuration that cannot be used: names the file (or flag, or variable) and the field."""

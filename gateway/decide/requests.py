"""A message of the decision service as a client's HTTP request, with limits."""

from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from gateway.core.errors import BodyTooLarge, GatewayError, InvalidRequest
from gateway.epp.control_headers import CONTROL
from gateway.epp.destination import SPOOFED
from gateway.http.content import check_contents
from gateway.http.messages import HttpRequest
from gateway.proto.kvgate.v1 import decide_pb2 as pb

DEFAULT_PATH: Final = "/v1/completions"
MAX_HEADERS: Final = 256
MAX_HEADERS_BYTES: Final = 64 << 10
MAX_PATH_CHARS: Final = 8192
MAX_EXCLUDED: Final = 1024
_LINE_ENDS: Final = frozenset(b"\r\n\0")


def http_of(message: pb.DecideRequest, max_body_bytes: int) -> HttpRequest:
    """The request that a decision is about. Raises InvalidRequest or BodyTooLarge."""
    headers = []
    if len(message.headers) > MAX_HEADERS or len(message.exclude) > MAX_EXCLUDED:
        raise InvalidRequest(
            f"at most {MAX_HEADERS} headers and {MAX_EXCLUDED} excluded workers are accepted"
        )
    num_bytes = 0
    for field in message.headers:
        name, value = field.name.lower().encode(), field.value
        num_bytes += len(name) + len(value)
        if num_bytes > MAX_HEADERS_BYTES:
            raise InvalidRequest(f"the headers are over {MAX_HEADERS_BYTES} bytes")
        if not name.replace(b"-", b"").replace(b"_", b"").isalnum() or not _LINE_ENDS.isdisjoint(value):
            raise InvalidRequest(f"'{field.name[:80]}' is not a valid HTTP header name or value")
        if name not in SPOOFED and name not in CONTROL:
            headers.append((name, value.strip()))
    check_contents([*headers])  # they stay as the caller has them
    path = path_of(message)
    if len(path) > MAX_PATH_CHARS or not path.startswith("/") or not _is_target(path):
        raise InvalidRequest("the path must begin with '/' and have no spaces or control characters")
    method = message.method or "POST"
    if not method.isalpha() or not method.isascii() or len(method) > 16:
        raise InvalidRequest(f"'{method[:16]}' is not an HTTP method")
    return HttpRequest(method.upper(), path.encode(), headers, _body_of(message, max_body_bytes))


def path_of(message: pb.DecideRequest) -> str:
    """Return the path as the caller has it."""
    return message.path or DEFAULT_PATH


def _is_target(path: str) -> bool:
    return path.isascii() and path.isprintable() and " " not in path


def _body_of(message: pb.DecideRequest, max_body_bytes: int) -> bytes:
    """The body, or one that is made of token ids and the model."""
    if message.body or not message.token_ids:
        return bytes(message.body)
    if 2 * len(message.token_ids) > max_body_bytes:
        raise BodyTooLarge(f"{len(message.token_ids)} token ids are over {max_body_bytes} bytes as a body")
    fields: dict[str, object] = {"prompt": list(message.token_ids)}
    if message.model:
        fields["model"] = message.model
    return msgspec.json.encode(fields)


def decoded(kind: type, data: bytes) -> object:
    """A message of this kind. Raises GatewayError for bytes that are none."""
    try:
        return kind.FromString(data)  # type: ignore[attr-defined]
    except DecodeError as exc:
        raise GatewayError(f"the message is not a {kind.__name__}: {exc}") from exc

"""A message of the decision service as a client's HTTP request, with limits."""

from typing import Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from gateway.core.errors import BodyTooLarge, GatewayError, InvalidRequest
from gateway.core.token_prompt import TokenPrompt
from gateway.decide.message_bounds import check_bounds
from gateway.decide.message_parts import apart, ids_of
from gateway.epp.control_headers import CONTROL
from gateway.epp.destination import SPOOFED
from gateway.http.content import check_contents
from gateway.http.messages import Header, HttpRequest
from gateway.proto.kvgate.v1 import decide_pb2 as pb

DEFAULT_PATH: Final = "/v1/completions"
MAX_HEADERS: Final = 256
MAX_HEADERS_BYTES: Final = 64 << 10
MAX_PATH_CHARS: Final = 8192
MAX_EXCLUDED: Final = 1024
_LINE_ENDS: Final = frozenset(b"\r\n\0")
_POST: Final = "POST"
_TOKEN_IDS: Final[int] = pb.DecideRequest.DESCRIPTOR.fields_by_name["token_ids"].number
_DECIDE: Final[int] = pb.SessionRequest.DESCRIPTOR.fields_by_name["decide"].number
NOTHING: Final = pb.DecideRequest()
_Message = TypeVar("_Message", bound=Message)


class AskedDecision:
    """A request for a decision; `prompt` has the token ids of a short one, which `message` then has not."""

    __slots__ = ("message", "prompt")

    def __init__(self, message: pb.DecideRequest, prompt: TokenPrompt | None = None) -> None:
        self.message = message
        self.prompt = prompt

    def __repr__(self) -> str:
        return f"AskedDecision({self.message}, {self.prompt})"


def asked_of(data: bytes) -> AskedDecision:
    """Decode a DecideRequest. Raises InvalidRequest, and GatewayError for bytes that are none."""
    check_bounds(data, pb.DecideRequest)
    return _asked_of(data)


def _asked_of(data: bytes) -> AskedDecision:
    parts = apart(data, _TOKEN_IDS)
    ids = ids_of(parts[0]) if parts is not None else None
    if parts is not None and ids:
        rest = _decoded(pb.DecideRequest, parts[1])
        if not (rest.body or rest.path or rest.method or rest.token_ids):
            return AskedDecision(rest, TokenPrompt(ids, parts[0]))
    return AskedDecision(_decoded(pb.DecideRequest, data))


def session_request_of(data: bytes) -> tuple[pb.SessionRequest, AskedDecision | None]:
    """Decode a SessionRequest, and the decision that it asks for. Raises as `asked_of` does."""
    check_bounds(data, pb.SessionRequest)
    parts = apart(data, _DECIDE)
    if parts is not None:
        rest = _decoded(pb.SessionRequest, parts[1])
        if not rest.WhichOneof("request"):
            return rest, _asked_of(parts[0])
    message = _decoded(pb.SessionRequest, data)
    return message, AskedDecision(message.decide) if message.WhichOneof("request") == "decide" else None


def report_of(data: bytes) -> pb.ReportRequest:
    """Decode a ReportRequest. Raises as `asked_of` does."""
    check_bounds(data, pb.ReportRequest)
    return _decoded(pb.ReportRequest, data)


def _decoded(kind: type[_Message], data: bytes) -> _Message:
    try:
        message: _Message = kind.FromString(data)
    except DecodeError as exc:
        raise GatewayError(f"the message is not a {kind.DESCRIPTOR.name}: {exc}") from exc
    return message


def http_of(asked: AskedDecision, max_body_bytes: int) -> HttpRequest:
    """The request that a decision is about. Raises InvalidRequest or BodyTooLarge."""
    message, prompt = asked.message, asked.prompt
    headers = _headers_of(message)
    if prompt is not None:
        _check_size(len(prompt.ids), max_body_bytes)
        http = HttpRequest(_POST, DEFAULT_PATH.encode(), headers, prompt.body(message.model))
        http.prompt = prompt
        return http
    path = path_of(message)
    if len(path) > MAX_PATH_CHARS or not path.startswith("/") or not _is_target(path):
        raise InvalidRequest("the path must begin with '/' and have no spaces or control characters")
    method = message.method or _POST
    if not method.isalpha() or not method.isascii() or len(method) > 16:
        raise InvalidRequest(f"'{method[:16]}' is not an HTTP method")
    return HttpRequest(method.upper(), path.encode(), headers, _body_of(message, max_body_bytes))


def _headers_of(message: pb.DecideRequest) -> list[Header]:
    given = message.headers
    if not given and not message.exclude:
        return []
    if len(given) > MAX_HEADERS or len(message.exclude) > MAX_EXCLUDED:
        raise InvalidRequest(
            f"at most {MAX_HEADERS} headers and {MAX_EXCLUDED} excluded workers are accepted"
        )
    headers: list[Header] = []
    num_bytes = 0
    for field in given:
        name, value = field.name.lower().encode(), field.value
        num_bytes += len(name) + len(value)
        if num_bytes > MAX_HEADERS_BYTES:
            raise InvalidRequest(f"the headers are over {MAX_HEADERS_BYTES} bytes")
        if not name.replace(b"-", b"").replace(b"_", b"").isalnum() or not _LINE_ENDS.isdisjoint(value):
            raise InvalidRequest(f"'{field.name[:80]}' is not a valid HTTP header name or value")
        if name not in SPOOFED and name not in CONTROL:
            headers.append((name, value.strip()))
    check_contents([*headers])  # they stay as the caller has them
    return headers


def path_of(message: pb.DecideRequest) -> str:
    """Return the path as the caller has it."""
    return message.path or DEFAULT_PATH


def _is_target(path: str) -> bool:
    return path.isascii() and path.isprintable() and " " not in path


def _check_size(num_ids: int, max_body_bytes: int) -> None:
    if 2 * num_ids > max_body_bytes:
        raise BodyTooLarge(f"{num_ids} token ids are over {max_body_bytes} bytes as a body")


def _body_of(message: pb.DecideRequest, max_body_bytes: int) -> bytes:
    """The body, or one that is made of token ids and the model."""
    if message.body or not message.token_ids:
        return bytes(message.body)
    _check_size(len(message.token_ids), max_body_bytes)
    fields: dict[str, object] = {"prompt": list(message.token_ids)}
    if message.model:
        fields["model"] = message.model
    return msgspec.json.encode(fields)

"""A decision, or the answer in its place, as a message of the decision service.

Decisions are written by hand, in a part of the time of protobuf's objects; the tests read each with protobuf.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final
from urllib.parse import urlsplit

from gateway.core.decision import Decision
from gateway.core.errors import GatewayError
from gateway.core.worker import Worker
from gateway.epp.wire import field, size_of
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import decide_pb2 as pb

_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})
"""A worker's own key is in no reply: any program that reaches the port could use it. The
caller has its own."""

_DECIDED: Final = b"\x0a"  # of DecideReply
_DECISION_ID: Final = b"\x0a"  # of Decided
_TARGET: Final = b"\x12"
_NUM_TOKENS: Final = b"\x18"
_OVERLAP_TOKENS: Final = b"\x20"
_OVERLAP_BLOCKS: Final = b"\x28"
_PREDICTED_TTFT_S: Final = b"\x31"
_REASON: Final = b"\x3a"
_FALLBACK: Final = b"\x42"
_PREFILL: Final = b"\x4a"
_SET_HEADER: Final = b"\x52"
_REMOVED_HEADER: Final = b"\x5a"
_PATH: Final = b"\x62"
_BODY: Final = b"\x6a"
_EXPIRES_S: Final = b"\x71"
_NAME: Final = b"\x0a"  # of HttpField
_VALUE: Final = b"\x12"
_TAG: Final = b"\x08"  # of SessionReply
_DECIDE: Final = b"\x12"
_REPORT: Final = b"\x1a"
_RESULT: Final = b"\x08"  # of ReportReply
_double: Final = Struct("<d").pack


def target_of(worker: Worker) -> bytes:
    return _target(worker.id, worker.url, worker.dp_rank)


@lru_cache(maxsize=4096)
def _target(name: str, url: str, dp_rank: int) -> bytes:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = pb.Target(worker=name, address=f"{host}:{port}", url=url, dp_rank=dp_rank)
    return bytes(target.SerializeToString())


def decided(
    decision: Decision,
    fallbacks: Sequence[Worker],
    expires_s: float,
    changed: Iterable[Header],
    removed: Iterable[bytes],
    body: bytes | None,
) -> bytes:
    """Return the DecideReply of a chosen worker, with the reasons, and what changes towards it: headers, and
    the path as `:path`, as `envoy_connection.changes` returns them; `body` is the worker's where it differs
    from the client's."""
    block_size, overlap = decision.worker.block_size, decision.overlap_tokens
    parts = [
        field(_DECISION_ID, decision.id.encode()),
        field(_TARGET, target_of(decision.worker)),
        _NUM_TOKENS + size_of(decision.num_tokens),
        _OVERLAP_TOKENS + size_of(overlap),
        _OVERLAP_BLOCKS + size_of(overlap // block_size if block_size else 0),
        field(_REASON, decision.reason.encode()),
        _EXPIRES_S + _double(expires_s),
    ]
    if (ttft_s := decision.ttft_s) is not None:
        parts.append(_PREDICTED_TTFT_S + _double(ttft_s))
    for each in fallbacks:
        parts.append(field(_FALLBACK, target_of(each)))
    if decision.prefill is not None:
        parts.append(field(_PREFILL, target_of(decision.prefill)))
    for name, value in changed:
        if name == b":path":
            parts.append(field(_PATH, _utf8(value)))
        elif name not in _CREDENTIALS:
            parts.append(field(_SET_HEADER, field(_NAME, _utf8(name)) + field(_VALUE, value)))
    for name in removed:
        parts.append(field(_REMOVED_HEADER, _utf8(name)))
    if body is not None:
        parts.append(field(_BODY, body))
    return field(_DECIDED, b"".join(parts))


def _utf8(text: bytes) -> bytes:
    return text if text.isascii() else text.decode("latin-1").encode()


def queued(retry_after_s: float) -> bytes:
    return bytes(pb.DecideReply(queued=pb.Queued(retry_after_s=retry_after_s)).SerializeToString())


def rejected(status: int, headers: Iterable[Header], body: bytes, error: GatewayError | None) -> bytes:
    """The gateway's own answer; `error` is None where it is no error, as for /v1/models."""
    reply = pb.DecideReply()
    made = reply.rejected
    made.status, made.body = status, body
    if error is not None:
        made.code, made.message = error.code, error.message
        made.retry_after_s = error.retry_after_s or 0
    for name, value in headers:
        made.headers.add(name=name.decode("latin-1"), value=value)
    return bytes(reply.SerializeToString())


def reported(result: int) -> bytes:
    """Return a ReportReply."""
    return _RESULT + size_of(result)


def in_session(tag: int, reply: bytes, *, is_report: bool) -> bytes:
    """Return a SessionReply with a DecideReply or a ReportReply."""
    return _TAG + size_of(tag) + field(_REPORT if is_report else _DECIDE, reply)

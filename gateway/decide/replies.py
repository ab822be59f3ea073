"""A decision, or the answer in its place, as a message of the decision service."""

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from gateway.core.decision import Decision
from gateway.core.errors import GatewayError
from gateway.core.worker import Worker
from gateway.epp.envoy_connection import changes
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import decide_pb2 as pb

_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})
"""A worker's own key is in no reply: any program that reaches the port could use it. The
caller has its own."""


def target_of(worker: Worker) -> pb.Target:
    parts = urlsplit(worker.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return pb.Target(worker=worker.id, address=f"{host}:{port}", url=worker.url, dp_rank=worker.dp_rank)


def decided(
    decision: Decision, fallbacks: Sequence[Worker], expires_s: float, *, block_size: int | None
) -> pb.DecideReply:
    """The chosen worker and the reasons; `requested` adds the changes towards it."""
    reply = pb.DecideReply()
    made = reply.decided
    made.decision_id, made.reason, made.expires_s = decision.id, decision.reason, expires_s
    made.target.CopyFrom(target_of(decision.worker))
    made.num_tokens, made.overlap_tokens = decision.num_tokens, decision.overlap_tokens
    made.overlap_blocks = decision.overlap_tokens // block_size if block_size else 0
    if decision.ttft_s is not None:
        made.predicted_ttft_s = decision.ttft_s
    made.fallbacks.extend(map(target_of, fallbacks))
    if decision.prefill is not None:
        made.prefill.CopyFrom(target_of(decision.prefill))
    return reply


def requested(
    reply: pb.DecideReply, given: list[Header], target: bytes, head: bytes, body: bytes | None
) -> None:
    """Add how the worker's request differs from the client's; `given` and `target` are the client's, `head`
    the worker's as HTTP/1.1, and `body` the worker's where it differs."""
    made = reply.decided
    changed, removed = changes(given, target, head)
    for name, value in changed:
        if name == b":path":
            made.path = value.decode("latin-1")
        elif name not in _CREDENTIALS:
            made.set_headers.add(name=name.decode("latin-1"), value=value)
    made.remove_headers.extend([name.decode("latin-1") for name in removed])
    if body is not None:
        made.body = body


def queued(retry_after_s: float) -> pb.DecideReply:
    return pb.DecideReply(queued=pb.Queued(retry_after_s=retry_after_s))


def rejected(
    status: int, headers: Iterable[Header], body: bytes, error: GatewayError | None
) -> pb.DecideReply:
    """The gateway's own answer; `error` is None where it is no error, as for /v1/models."""
    reply = pb.DecideReply()
    made = reply.rejected
    made.status, made.body = status, body
    if error is not None:
        made.code, made.message = error.code, error.message
        made.retry_after_s = error.retry_after_s or 0
    for name, value in headers:
        made.headers.add(name=name.decode("latin-1"), value=value)
    return reply

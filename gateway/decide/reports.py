"""Reports of a caller, as the answer of a worker that passes by: the exchange reads first token, usage and
status there as it does of a connection, and judges the counts by the same limits."""

from typing import Final

import msgspec

from gateway.core.outcome import SERVER_ERROR
from gateway.decide.states import DecisionEvent
from gateway.epp.envoy_connection import EnvoyConnection
from gateway.http.messages import ResponseHead
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from gateway.proxy.exchange import InferenceExchange

STREAM: Final = ResponseHead(200, [(b"content-type", b"text/event-stream")], None)
PLAIN: Final = ResponseHead(200, [(b"content-type", b"application/json")], None)
TOKEN: Final = b'data: {"choices":[{"text":"."}]}\n\n'
MAX_REASON_CHARS: Final = 200
MAX_RETRY_AFTER_CHARS: Final = 1024
MAX_ERROR_BYTES: Final = 16 << 10
BAD_GATEWAY: Final = 502

_EVENTS: Final = {
    "first_token": DecisionEvent.FIRST_TOKEN,
    "finished": DecisionEvent.FINISHED,
    "failed": DecisionEvent.FAILED,
}


def event_of(report: pb.ReportRequest) -> DecisionEvent | None:
    """The event that a report is about; None for one that this version does not know."""
    return _EVENTS.get(report.WhichOneof("event") or "")


def _heard(exchange: InferenceExchange) -> None:
    """Count an answer that the caller has seen as a sign of life of its worker."""
    if exchange.decision is not None:
        exchange.context.pools.heard(exchange.decision.worker.url)


def first_token(exchange: InferenceExchange) -> None:
    _heard(exchange)
    exchange.upstream_head(STREAM)
    exchange.upstream_data(TOKEN)


def finished(exchange: InferenceExchange, connection: EnvoyConnection, report: pb.Finished) -> None:
    """End the exchange with the worker's status, and with the usage where that was reported."""
    status, sink = report.status or 200, connection.sink
    if status < SERVER_ERROR:
        _heard(exchange)  # others may be of a proxy between
    if not 200 <= status < 600:
        status = BAD_GATEWAY  # no number of HTTP's, and each has its place in the metrics
    usage = _usage(report.usage) if report.HasField("usage") else b""
    assert sink is not None, "the exchange has its decision"
    if exchange.has_answer:
        event = b'data: {"choices":[],"usage":%b}\n\n' % usage if usage else b""
        return sink.upstream_ended(event + b"data: [DONE]\n\n")
    if status == 200:
        sink.upstream_head(PLAIN)
        return sink.upstream_ended(b'{"usage":%b}' % usage if usage else b"{}")
    after = report.retry_after[:MAX_RETRY_AFTER_CHARS].encode()
    sink.upstream_head(ResponseHead(status, [(b"retry-after", after)] if after else [], None))
    if not exchange.is_closed:  # a reader of refusals may have taken the place of the sink
        (connection.sink or sink).upstream_ended(report.error_body[:MAX_ERROR_BYTES])
    return None


def failed(exchange: InferenceExchange, report: pb.Failed) -> None:
    """End the exchange without an answer."""
    if report.cause != pb.Failed.WORKER:
        return exchange.client_gone()
    reason = f"reported: {report.reason[:MAX_REASON_CHARS] or 'connection lost'}"
    if exchange.has_answer:
        return exchange.upstream_lost(reason)
    return exchange.attempt_lost(reason)


def _usage(usage: pb.Usage) -> bytes:
    fields: dict[str, object] = {"prompt_tokens": usage.prompt_tokens}
    if usage.HasField("output_tokens"):
        fields["completion_tokens"] = usage.output_tokens
    if usage.HasField("cached_tokens"):
        fields["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    else:
        fields["prompt_tokens_details"] = {}  # the caller does not know; nothing at all could mean 0
    return msgspec.json.encode(fields)

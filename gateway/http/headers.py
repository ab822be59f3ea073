"""Heads of proxied messages: to a worker, and back to a client (RFC 9110, section 7.6)."""

from collections.abc import Mapping
from typing import Final

from gateway.core.decision import Decision
from gateway.core.worker import Worker
from gateway.http.forwarded import FORWARDED
from gateway.http.messages import (
    HOP_BY_HOP,
    Header,
    HttpRequest,
    OutgoingHead,
    ResponseHead,
    encode_head,
    end_to_end,
    status_line,
)

STEERING: Final[Mapping[bytes, str]] = {
    b"x-data-parallel-rank": "vLLM, SGLang: the rank, which is the gateway's decision",
    b"x-vllm-priority": "vLLM: steps ahead of others, over the body's priority",
    b"x-override-rid": "SGLang: a body's field, over what was checked there; so are those below",
    b"x-override-bootstrap-host": "SGLang",
    b"x-override-bootstrap-port": "SGLang",
    b"x-override-bootstrap-room": "SGLang",
    b"x-override-conversation-id": "SGLang",
    b"x-override-routed-dp-rank": "SGLang",
    b"x-override-disagg-prefill-dp-rank": "SGLang",
    b"x-override-priority": "SGLang",
    b"x-body-compressed": "SGLang: reads another body than the one that was checked",
    b"x-smg-target-worker": "SGLang's router: a worker",
    b"x-prefiller-host-port": "llm-d's sidecar: the host that computes the prompt",
    b"x-encoder-hosts-ports": "llm-d's sidecar: the hosts that encode images",
    b"x-data-parallel-host-port": "llm-d's sidecar: the rank's address",
    b"x-kv-cache-source-host-port": "llm-d's sidecar: the host that has the blocks",
    b"x-gateway-destination-endpoint": "Envoy before workers: a worker",
    b"x-worker-instance-id": "Dynamo: a worker",
    b"x-dynamo-request-id": "Dynamo: the request's name in its tables, which is the gateway's to choose",
}
"""Headers by which a client could steer an engine, like the fields that `requests/field_judgement.py`
judges: none is passed on."""

_NOT_TO_WORKER: Final = HOP_BY_HOP | {
    *STEERING,
    b"host",
    b"content-length",
    b"content_length",  # the same name to servers that turn headers into environment variables
    b"transfer_encoding",
    b"content-encoding",  # of the body as it was judged, there is none (`http/content.py`)
    b"content_encoding",
    b"content_type",
    b"expect",
    b"accept-encoding",  # what a compressed answer used could not be read, nor hidden where that is wanted
    b"accept_encoding",
    b"x-request-id",
    b"x_request_id",
    *FORWARDED,
}
_NOT_TO_WORKER_WITH_KEY: Final = _NOT_TO_WORKER | {b"authorization", b"x-api-key"}
WORKERS_OWN: Final = frozenset(
    {
        b"access-control-allow-origin",  # pages of which origins may read an answer is the gateway's to say
        b"access-control-allow-credentials",
        b"access-control-allow-methods",
        b"access-control-allow-headers",
        b"access-control-allow-private-network",
        b"access-control-expose-headers",
        b"access-control-max-age",
        b"location",  # addresses of the worker, which clients must not learn or use
        b"content-location",
        b"refresh",
        b"alt-svc",
    }
)
"""Headers of answers that would steer a client's browser or name a worker: none is passed on."""
_NOT_TO_CLIENT: Final = HOP_BY_HOP | WORKERS_OWN | {b"content-length", b"x-request-id"}
_NOT_TO_CLIENT_OF_STREAM: Final = _NOT_TO_CLIENT | {b"x-accel-buffering"}
_UNBUFFERED: Final[Header] = (b"x-accel-buffering", b"no")
"""Header that makes nginx pass on each event as it comes."""
_OFFER: Final[tuple[Header, ...]] = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))


def head_to_worker(
    http: HttpRequest,
    worker: Worker,
    *,
    netloc: bytes,
    prefix: bytes,
    num_bytes: int,
    request_id: bytes,
    target: bytes = b"",
    key: bytes | None = None,
) -> OutgoingHead:
    """Return request line and headers for a body of `num_bytes`; `prefix` is the endpoint's base path,
    `target` and `key` replace the client's own. `request_id` is the gateway's: engines use it as a key."""
    if key is None:
        headers = end_to_end(http.headers, _NOT_TO_WORKER)
    else:
        headers = end_to_end(http.headers, _NOT_TO_WORKER_WITH_KEY)
        headers.append((b"authorization", key))
    if http.forwarded:
        headers += http.forwarded
    headers += (
        (b"host", netloc),
        (b"content-length", b"%d" % num_bytes),
        (b"x-request-id", request_id),
        (b"via", b"1.1 kvgate"),
    )
    if worker.dp_size > 1:
        headers.append((b"x-data-parallel-rank", b"%d" % worker.dp_rank))
    return OutgoingHead(http.method, prefix + (target or http.target), headers)


def sent_again(head: OutgoingHead) -> OutgoingHead:
    """Return the head of a request for its second sending to one worker, which may have the first: under
    another id."""
    headers = [
        (name, value + b"-2") if name == b"x-request-id" else (name, value) for name, value in head.headers
    ]
    return OutgoingHead(head.method, head.target, headers)


def upgrade_to_worker(
    http: HttpRequest,
    worker: Worker,
    *,
    netloc: bytes,
    prefix: bytes,
    request_id: bytes,
    target: bytes = b"",
    key: bytes | None = None,
) -> OutgoingHead:
    """Return the head of a WebSocket upgrade request, which has no body."""
    head = head_to_worker(
        http,
        worker,
        netloc=netloc,
        prefix=prefix,
        num_bytes=0,
        request_id=request_id,
        target=target,
        key=key,
    )
    headers = [header for header in head.headers if header[0] != b"content-length"]
    return OutgoingHead(head.method, head.target, [*headers, *_OFFER])


def upgrade_to_client(head: ResponseHead, request_id: bytes, exposed: Decision | None) -> bytes:
    """Return the head of a worker's accepted upgrade."""
    agreed = [header for header in head.headers if header[0] == b"upgrade"]
    headers = head_to_client(head, request_id, exposed, is_stream=False).headers
    return encode_head(status_line(head.status), [*headers, (b"connection", b"Upgrade"), *agreed])


def head_to_client(
    head: ResponseHead, request_id: bytes, exposed: Decision | None, *, is_stream: bool
) -> ResponseHead:
    """Return the worker's head without its connection's headers, and with the decision where it may be
    exposed. `request_id` is the client's: the worker has another one.

    A stream has no length: an error event may end it elsewhere.
    """
    headers = end_to_end(head.headers, _NOT_TO_CLIENT_OF_STREAM if is_stream else _NOT_TO_CLIENT)
    if is_stream:
        headers.append(_UNBUFFERED)
    headers.append((b"x-request-id", request_id))
    if exposed:
        headers += _decision_headers(exposed)
    return ResponseHead(head.status, headers, None if is_stream else head.length)


def is_event_stream(head: ResponseHead) -> bool:
    """Return True if the body is a readable event stream, which a compressed one is not."""
    is_events = False
    for name, value in head.headers:
        if name == b"content-type":
            is_events = value.lower().startswith(b"text/event-stream")
    return is_events and not has_coding(head)


def has_coding(head: ResponseHead) -> bool:
    """Return True if the body is compressed, so that nothing in it can be read."""
    for name, value in head.headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            return True
    return False


def _decision_headers(decision: Decision) -> list[Header]:
    return [
        (b"x-kvgate-worker", decision.worker.id.encode()),
        (b"x-kvgate-overlap-tokens", b"%d" % decision.overlap_tokens),
        (b"x-kvgate-decision", decision.id.encode()),
    ]

"""`kvgate.DecideClient`: asks a gateway over gRPC which worker a request goes to, and reports its course."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc

from gateway.proto.kvgate.v1 import decide_pb2 as pb

_SERVICE = "/kvgate.v1.Decisions/"
_OPTIONS = [
    ("grpc.max_send_message_length", 70 << 20),
    ("grpc.max_receive_message_length", 70 << 20),
    ("grpc.keepalive_time_ms", 10_000),  # a gateway that hangs, or its host, is noticed
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),  # two minutes without it, after a long absence
]
_REPORT_WITHIN_S = 5.0
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Statuses of a report to a gateway that does not answer: its bookings end with it, or expire."""


@dataclass(frozen=True, slots=True)
class DecidedTarget:
    """A worker as a decision names it: `address` is host and port, `url` its base URL."""

    worker: str
    address: str
    url: str
    dp_rank: int


@dataclass(frozen=True, slots=True)
class RemoteDecision:
    """The worker that a gateway chose, and how the request goes there.

    `path` and `body` replace the client's where they are not None; `prefill` computes the prompt first, where
    that was asked for and pays. The booking ends `expires_s` after the last report.
    """

    id: str
    target: DecidedTarget
    num_tokens: int
    overlap_tokens: int
    overlap_blocks: int
    predicted_ttft_s: float | None
    reason: str
    fallbacks: tuple[DecidedTarget, ...]
    prefill: DecidedTarget | None
    set_headers: Mapping[str, bytes]
    remove_headers: tuple[str, ...]
    path: str | None
    body: bytes | None
    expires_s: float


class RequestRejected(Exception):
    """The gateway answers in place of a worker: pass on `status`, `headers` and `body`."""

    def __init__(self, reply: pb.Rejected) -> None:
        super().__init__(reply.message or f"status {reply.status}")
        self.status: int = reply.status
        self.code: str = reply.code
        self.retry_after_s: int = reply.retry_after_s
        self.headers: Mapping[str, bytes] = {each.name: each.value for each in reply.headers}
        self.body: bytes = reply.body


class RequestQueued(Exception):
    """All workers are saturated: ask again after `retry_after_s`."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"all workers are saturated; retry in {retry_after_s:.3g} s")
        self.retry_after_s = retry_after_s


class DecideClient:
    """Client of one gateway's decision service, at "host:port". Reports go to the gateway that decided.

    A context manager; with `credentials` it connects over TLS; `options` are of gRPC's channel. `decide`
    raises `grpc.aio.AioRpcError` where the gateway cannot be reached. Reports return False where they changed
    nothing: the booking has ended or expired, or the gateway is gone.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        channel_options = [*_OPTIONS, *options]
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=channel_options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options=channel_options)
        self._decide = self._method("Decide", pb.DecideReply)
        self._report = self._method("Report", pb.ReportReply)

    def _method(self, name: str, reply: Any) -> Any:
        return self._channel.unary_unary(
            _SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )

    async def __aenter__(self) -> "DecideClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def decide(
        self,
        path: str = "",
        body: bytes = b"",
        *,
        headers: Mapping[str, str | bytes] | None = None,
        model: str = "",
        token_ids: Sequence[int] = (),
        exclude: Sequence[str] = (),
        fallbacks: int = 0,
        with_prefill: bool = False,
        max_queue_s: float | None = None,
        timeout_s: float | None = None,
    ) -> RemoteDecision:
        """Book a worker for a request: a client's `path`, `headers` and `body`, or `model` and `token_ids`.
        Raises RequestRejected or RequestQueued. `exclude` names workers that failed the request.
        `max_queue_s` limits the wait in an admission queue; None: as long as the queue keeps requests."""
        message = pb.DecideRequest(
            path=path,
            body=body,
            model=model,
            token_ids=token_ids,
            exclude=exclude,
            num_fallbacks=fallbacks,
            with_prefill=with_prefill,
            max_queue_ms=0 if max_queue_s is None else max(1, math.ceil(max_queue_s * 1000)),
        )
        for name, value in (headers or {}).items():
            message.headers.add(name=name, value=value.encode() if isinstance(value, str) else value)
        reply = await self._decide(message, timeout=timeout_s)
        if reply.HasField("decided"):
            return _decision_of(reply.decided)
        if reply.HasField("queued"):
            raise RequestQueued(reply.queued.retry_after_s)
        raise RequestRejected(reply.rejected)

    async def first_token(self, decision: RemoteDecision) -> bool:
        """Report the first token of a streamed answer."""
        return await self._send(pb.ReportRequest(decision_id=decision.id, first_token=pb.FirstToken()))

    async def finished(
        self,
        decision: RemoteDecision,
        *,
        status: int = 200,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        retry_after: str = "",
        error_body: bytes = b"",
    ) -> bool:
        """Report the end of an answer, with the usage that the worker reported; releases the booking. The
        Retry-After header and the body of an error say whether the worker is saturated."""
        finished = pb.Finished(status=status, retry_after=retry_after, error_body=error_body)
        if prompt_tokens is not None:
            usage = pb.Usage(
                prompt_tokens=prompt_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens
            )
            finished.usage.CopyFrom(usage)
        return await self._send(pb.ReportRequest(decision_id=decision.id, finished=finished))

    async def failed(self, decision: RemoteDecision, reason: str = "", *, by_worker: bool = True) -> bool:
        """Report that no complete answer came; releases the booking. `by_worker` is False where the client
        left."""
        cause = pb.Failed.WORKER if by_worker else pb.Failed.CLIENT
        failed = pb.Failed(cause=cause, reason=reason)
        return await self._send(pb.ReportRequest(decision_id=decision.id, failed=failed))

    async def _send(self, report: pb.ReportRequest) -> bool:
        try:
            reply = await self._report(report, timeout=_REPORT_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _GONE:
                raise
            return False
        return bool(reply.result == pb.ReportReply.APPLIED)


def _target_of(target: pb.Target) -> DecidedTarget:
    return DecidedTarget(target.worker, target.address, target.url, target.dp_rank)


def _decision_of(made: pb.Decided) -> RemoteDecision:
    return RemoteDecision(
        id=made.decision_id,
        target=_target_of(made.target),
        num_tokens=made.num_tokens,
        overlap_tokens=made.overlap_tokens,
        overlap_blocks=made.overlap_blocks,
        predicted_ttft_s=made.predicted_ttft_s if made.HasField("predicted_ttft_s") else None,
        reason=made.reason,
        fallbacks=tuple(map(_target_of, made.fallbacks)),
        prefill=_target_of(made.prefill) if made.HasField("prefill") else None,
        set_headers={each.name: each.value for each in made.set_headers},
        remove_headers=tuple(made.remove_headers),
        path=made.path if made.HasField("path") else None,
        body=made.body if made.HasField("body") else None,
        expires_s=made.expires_s,
    )

"""Failures of an exchange: what a worker is charged with, the error of its client, and the retry's trace."""

from gateway.core.errors import GatewayError, NoWorker, WorkerFailed
from gateway.core.fleet import Fleet
from gateway.core.request import InferenceRequest
from gateway.core.worker import WorkerId
from gateway.http.response_observer import ResponseObserver
from gateway.observability.metrics import WorkerMetrics
from gateway.proxy.context import Context
from gateway.proxy.retries import Attempts
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.server.responder import Responder
from gateway.upstream.connection import OUR_ERRNOS
from gateway.upstream.plan import Execution


def may_try_another(
    fleet: Fleet, request: InferenceRequest, tries: Attempts, worker: WorkerId, *, is_up: bool
) -> bool:
    """True where a worker beside `worker` and those that failed gets requests (`is_up`: none that is late),
    and the retry budget has room."""
    others = {*tries.failed, worker}
    return tries.may_ask_another() and fleet.has_another(request.model, others, request.path, is_up)


def charge(
    context: Context,
    exchange: Execution,
    metrics: WorkerMetrics,
    reason: str,
    is_refused: bool = False,
    *,
    was_sent: bool = True,
) -> None:
    """Count a failure of the exchange's worker, report and charge it."""
    assert exchange.decision is not None
    metrics.num_failed += 1
    context.failed(exchange, exchange.decision.worker.id, reason, is_refused, was_sent=was_sent)


def lost(
    exchange: Execution, tries: Attempts, reason: str, log: RateLimitedLog, *, is_refused: bool
) -> WorkerFailed | None:
    """Record that the attempt at the exchange's worker failed; None where another worker may be tried, else
    the client's error."""
    assert exchange.decision is not None
    num_faults = len(exchange.failed_at)
    why = tries.lost(exchange.decision.worker.id, reason, is_refused=is_refused, num_faults=num_faults)
    return tries.gave_up(why, log, exchange.log_id) if why else None


def retried(context: Context, worker: WorkerId, reason: str, log_id: str, *, is_busy: bool) -> None:
    """Count and log that a request went to another worker."""
    context.metrics.retries["worker_busy" if is_busy else "worker_failed"] += 1
    context.log.info("worker %s failed (%s); retrying request %s on another worker", worker, reason, log_id)


def out_of_connections(exc: OSError, log: RateLimitedLog, log_id: str) -> NoWorker | None:
    """The client's error where the gateway has no file left for it; None where the worker failed."""
    if exc.errno not in OUR_ERRNOS:
        return None
    log.error("request %s: cannot connect (%s); raise the limit of open files", log_id, exc.strerror)
    return NoWorker("the gateway has no free connections; retry", retry_after_s=1)


def refuse(responder: Responder, error: GatewayError, request_id: bytes) -> None:
    """Answer with an error; an answer that has begun is cut."""
    if responder.has_begun:
        responder.abort()
    else:
        responder.fail(error, [(b"x-request-id", request_id)])


def cut_off(responder: Responder, answer: ResponseObserver | None, reason: str, request_id: bytes) -> None:
    """End an answer that cannot go on: a stream with an error event, any other with a cut."""
    if answer is not None and answer.can_be_ended:
        error = WorkerFailed(f"the answer is incomplete: {reason}")
        responder.end_in_error(answer.held(), error, request_id)
    else:
        responder.abort()

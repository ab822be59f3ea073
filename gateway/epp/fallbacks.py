"""Fallbacks of a decision: other workers for the same bytes, in the order in which the policy chooses them.

A worker that needs another path, key, model name or rank is none: headers and body are the chosen worker's.
"""

from collections.abc import Collection
from typing import Final

from gateway.core.decision import Decision, Prompt
from gateway.core.errors import GatewayError
from gateway.core.worker import Worker, WorkerId
from gateway.http.messages import Header
from gateway.policies.framework.composed_policy import twin_of
from gateway.proxy.exchange import InferenceExchange

MAX_FALLBACKS: Final = 8
"""Each costs a decision that books nothing."""


def fallbacks_of(
    exchange: InferenceExchange,
    prompt: Prompt | None,
    decision: Decision,
    exclude: Collection[WorkerId],
    num: int,
) -> list[Worker]:
    """Return up to `num` workers, the best first; `exclude` names workers that must not get the request."""
    router, request, chosen = exchange.context.router, exchange.request, decision.worker
    found: list[Worker] = []
    addresses, left_out = {chosen.url}, {*exclude, chosen.id}
    num = min(num, MAX_FALLBACKS)
    for _ in range(2 * num):
        if len(found) == num:
            break
        try:
            other = router.decide(
                request, prompt=prompt, exclude=left_out, twin=twin_of(router.policy)
            ).worker
        except GatewayError:  # none is left
            break
        left_out.add(other.id)
        if other.url not in addresses and _bytes_for(exchange, other) == _bytes_for(exchange, chosen):
            found.append(other)
            addresses.add(other.url)
    return found


def _bytes_for(exchange: InferenceExchange, worker: Worker) -> tuple[bytes, list[Header], bytes]:
    """The request as this worker would get it, but for its host."""
    outgoing, request = exchange.context.outgoing, exchange.request
    head = outgoing.head(exchange.http, request.model, worker, 0, b"")
    headers = [header for header in head.headers if header[0] != b"host"]
    return head.target, headers, outgoing.body(request, worker)

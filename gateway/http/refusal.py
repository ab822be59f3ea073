"""Refusal: an answer by which a worker takes no request for now, and whether it is saturated or failed.

    status       saturated                                                      else
    429, 529     always                                                         –
    503          with a time (`http/retry_after.py`), or in the words           failed: dead inside, asleep,
                 or the error type of an engine or proxy                        loading
    500          with the error type of an engine, or the code 429 or 529       an error, which passes on

`FULL` is this table, and `refusal_of` the one place that reads it: requests, both legs of a split one, Envoy,
callers of Decide and probes ask here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from gateway.core.outcome import SATURATED, SERVER_ERROR, UNAVAILABLE
from gateway.http.messages import ResponseHead
from gateway.http.retry_after import retry_after_s

TOO_MANY: Final = 429
OVERLOADED: Final = 529
"""No registered status; Anthropic's API and its imitations answer so, with `overloaded_error`."""

BUSY_S: Final = 1.0
"""Time for which a saturated worker that names none gets no requests: long enough that a burst does not ask
it again and again, short enough that an engine which frees a place with each answer is not left idle."""
MAX_BUSY_S: Final = 10.0
"""The longest such time, whatever the worker names: a queue of requests is worked off within seconds, and a
worker that is asked once in this time is not left out by mistake."""


class SaturationSign(IntFlag):
    """Sign of saturation beside a status."""

    NONE = 0
    TIME = 1
    WORDS = 2
    TYPE = 4


FULL: Final[Mapping[int, SaturationSign]] = {
    TOO_MANY: SaturationSign.NONE,
    OVERLOADED: SaturationSign.NONE,
    UNAVAILABLE: SaturationSign.TIME | SaturationSign.WORDS | SaturationSign.TYPE,
    SERVER_ERROR: SaturationSign.TYPE,
}
"""Statuses of saturated workers, and the evidence of which each needs one kind; NONE: the status says it."""

WORDS: Final = re.compile(
    rb"currently busy|backlog limit"  # vLLM >= 0.29, --max-num-queued-reqs and -tokens
    rb"|queue timeout reached|by a higher priority request"  # SGLang, --max-queued-requests
    rb"|queue (?:is )?(?:already |currently )?full"  # SGLang; Knative, before KServe
    rb"|maximum pending requests"  # Ollama, OLLAMA_MAX_QUEUE
    rb"|(?:server|engine|model|service|workers?|slots?)(?: is| are)?(?: all| too)? busy"  # Ollama, Dynamo
    rb"|overload"  # TGI, --max-concurrent-requests; Envoy's overload manager
    rb"|reset reason: overflow"  # Envoy's circuit breakers
    rb"|no slots? available"  # llama.cpp
    rb"|exceeds maximum queue size"  # Triton, max_queue_size
    rb"|due to backpressure"  # Ray Serve, max_queued_requests
    rb"|(?:at|no|insufficient|over|exceeds|out of) (?:\w{1,16} )?capacity|rate limit|slow down"  # hosted APIs
    rb"|too many (?:\w{1,16} )?requests",
    re.IGNORECASE,
)
"""Words by which engines and proxies before them say in a 503 that they are saturated."""

TYPES: Final = re.compile(
    rb'"(?:type|error_type|code|status)"\s{0,8}:\s{0,8}(?:(?:429|529)\s{0,8}[,}]|"[a-z_ .-]{0,40}?'
    rb"(?:overloaded|rate[_ -]?limit|too[_ -]?many[_ -]?requests|queue[_ -]?full|resource[_ -]?exhausted"
    rb'|server[_ -]?busy|slow[_ -]?down)(?:[_ -]?(?:exceeded|error|exception))?")',
    re.IGNORECASE,
)
"""Types of errors by which engines say so in JSON. Quotes of a client's text are escaped there."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer by which a worker takes no request for now. `retry_after_s` as the worker names it."""

    status: int
    is_busy: bool
    retry_after_s: float | None

    @property
    def reason(self) -> str:
        return f"{SATURATED} ({self.status})" if self.is_busy else f"answered {self.status}"

    @property
    def is_retryable(self) -> bool:
        """True if the worker has done nothing for the request, so that another one may."""
        return self.is_busy or self.status == UNAVAILABLE

    @property
    def busy_s(self) -> float:
        """Time for which the worker gets no requests."""
        wanted_s = BUSY_S if self.retry_after_s is None else self.retry_after_s
        return min(max(wanted_s, BUSY_S), MAX_BUSY_S)

    def to_client(self, head: ResponseHead) -> ResponseHead:
        """Return the worker's head with a Retry-After: from then on the worker is asked again."""
        if not self.is_busy or any([name == b"retry-after" for name, _ in head.headers]):
            return head
        headers = [*head.headers, (b"retry-after", str(math.ceil(self.busy_s)).encode())]
        return ResponseHead(head.status, headers, head.length)


def is_refusal(status: int) -> bool:
    """True for a status by which a worker may take no request for now; its headers and body say more."""
    return status in FULL


def refusal_of(head: ResponseHead, body: bytes, now_s: float) -> Refusal:
    """Return what a worker means by such an answer with this body, or its beginning. `now_s` is the time in
    seconds since 1970, for dates."""
    needed, after_s = FULL[head.status], retry_after_s(head.headers, now_s)
    is_busy = (
        needed is SaturationSign.NONE
        or (bool(needed & SaturationSign.TIME) and after_s is not None)
        or (bool(needed & SaturationSign.WORDS) and WORDS.search(body) is not None)
        or (bool(needed & SaturationSign.TYPE) and TYPES.search(body) is not None)
    )
    return Refusal(head.status, is_busy, after_s)


def is_full_error(event: bytes) -> bool:
    """True for an error event of a stream by which an engine says that it is saturated."""
    return TYPES.search(event) is not None or WORDS.search(event) is not None

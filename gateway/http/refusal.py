"""Refusal: a 503 or 429 by which a worker takes no request for now, and whether it is saturated or failed.

saturated   429; 503 with a Retry-After or in the words that engines have for it
failed      any other 503: dead inside, asleep, loading
"""

import math
import re
from dataclasses import dataclass
from typing import Final

from gateway.core.outcome import SATURATED, UNAVAILABLE
from gateway.http.messages import ResponseHead

TOO_MANY: Final = 429

BUSY_S: Final = 1.0
"""Time for which a saturated worker that names none gets no requests: long enough that a burst does not ask
it again and again, short enough that an engine which frees a place with each answer is not left idle."""
MAX_BUSY_S: Final = 10.0
"""The longest such time, whatever the worker names: a queue of requests is worked off within seconds, and a
worker that is asked once in this time is not left out by mistake."""

BUSY: Final = re.compile(
    rb"currently busy|backlog limit"  # vLLM >= 0.29, --max-num-queued-reqs and -tokens
    rb"|queue is full|queue timeout reached|by a higher priority request"  # SGLang, --max-queued-requests
    rb"|server busy|maximum pending requests"  # Ollama, OLLAMA_MAX_QUEUE
    rb"|overloaded"  # TGI, --max-concurrent-requests
    rb"|no slot available",  # llama.cpp
    re.IGNORECASE,
)
"""Words by which engines say in a 503 that they are saturated; none of them sends a Retry-After."""


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
    """True for a status by which a worker may take no request for now; its body says more."""
    return status in (UNAVAILABLE, TOO_MANY)


def refusal_of(head: ResponseHead, body: bytes) -> Refusal:
    """Return what a worker means by a 503 or 429 with this body, or its beginning."""
    after_s = retry_after_s(head)
    is_busy = head.status == TOO_MANY or after_s is not None or BUSY.search(body) is not None
    return Refusal(head.status, is_busy, after_s)


def retry_after_s(head: ResponseHead) -> float | None:
    """Return the seconds of a Retry-After header; None without one, or where it names a date."""
    for name, value in head.headers:
        if name == b"retry-after" and value.strip().isdigit() and len(value) < 10:
            return float(value)
    return None

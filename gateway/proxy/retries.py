"""Retries: a request that failed at one worker goes to another one, within a retry budget.

    the connection was refused      always: no worker got the request
    it failed at two workers        never again: it may be the cause
    the worker keeps state of it    never, once its body was sent (`InferenceRequest.may_repeat`)
    else                            up to `max_attempts`, as long as the budget has room

The budget bounds the extra load on a failing fleet: at most `share` of the requests in flight are retries,
and each request earns `share` of one. So workers get no more than 1 + `share` times the clients' requests,
except for a few retries each second where clients send little.
"""

from typing import Final

from gateway.config.proxy import ProxySection
from gateway.core.errors import WorkerFailed, WorkerTimeout
from gateway.core.worker import WorkerId
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.upstream.plan import MAX_FAULTS

FLOOR: Final = 10
"""Retries in flight, and retries per second, that are always allowed: a share of a quiet gateway's few
requests would be less than one."""


DEFAULTS: Final = ProxySection()


class RetryBudget:
    """The retry budget of a process, as table `[proxy]` limits it."""

    def __init__(self, limits: ProxySection = DEFAULTS) -> None:
        self.limit(limits)
        self.num_in_flight = 0
        self.num_retrying = 0
        self.num_denied = 0
        self._left = float(FLOOR)
        self._second = 0
        self._num_before = self._num_now = self._num_extra = 0

    def __repr__(self) -> str:
        return f"RetryBudget({self.num_retrying} of {self.num_in_flight} in flight, {self._left:.1f} left)"

    def limit(self, limits: ProxySection) -> None:
        self.max_attempts = limits.max_attempts
        self.share = limits.retry_share

    def began(self, now: float) -> None:
        """Count a request that has begun; `ended` is called for it once."""
        self.num_in_flight += 1
        self._left = min(self._left + self.share, FLOOR + self.share * self.num_in_flight)
        second = int(now)
        if second != self._second:
            self._num_before = self._num_now if second == self._second + 1 else 0
            self._second, self._num_now, self._num_extra = second, 0, 0
        self._num_now += 1

    def ended(self, tries: "Attempts") -> None:
        self.num_in_flight -= 1
        self.num_retrying -= tries.is_retry

    def has_room(self, *, is_retry: bool = False) -> bool:
        """True if the budget allows one more try; `is_retry` marks a request that was retried before."""
        if not self.share or (self._left < 1.0 and not self._has_extra()):
            return False
        return is_retry or self.num_retrying < max(FLOOR, self.share * self.num_in_flight)

    def take(self, *, is_retry: bool) -> None:
        if self._left >= 1.0:
            self._left -= 1.0
        else:
            self._num_extra += 1
        self.num_retrying += not is_retry

    def _has_extra(self) -> bool:
        """True where requests earn less than the floor in this second, and some of it is left."""
        return self._num_extra < FLOOR - self.share * max(self._num_before, self._num_now)


class Attempts:
    """Attempts of a request so far. `was_sent` is True once its current worker got it."""

    __slots__ = ("failed", "num_asked", "was_sent", "is_retry", "may_repeat", "_budget")

    def __init__(self, budget: RetryBudget, *, may_repeat: bool) -> None:
        self.failed: dict[WorkerId, str] = {}
        self.num_asked = 0
        self.was_sent = False
        self.is_retry = False
        self.may_repeat = may_repeat
        self._budget = budget

    def __str__(self) -> str:
        return "; ".join([f"{worker}: {reason}" for worker, reason in self.failed.items()])

    def may_ask_another(self) -> bool:
        """True if another worker may be tried in place of passing on a retryable status."""
        if not self.may_repeat or self.num_asked + 1 >= self._budget.max_attempts:
            return False
        return self._budget.has_room(is_retry=self.is_retry)

    def lost(self, worker: WorkerId, reason: str, *, is_refused: bool, num_faults: int = 0) -> str:
        """Record a failed attempt. Return the reason against a retry; "" if the budget has paid for one.
        `num_faults` workers had the request and failed it: it is the cause from two on."""
        budget = self._budget
        self.failed[worker] = reason
        self.num_asked += not is_refused
        if self.was_sent and not self.may_repeat:
            return "not retried, since the worker may have stored a part of it"
        if num_faults >= MAX_FAULTS:
            self.may_repeat = False
            return f"{num_faults} workers failed on it, so the request itself is the likely cause"
        if self.num_asked >= budget.max_attempts:
            return "no attempts are left"
        if not self.was_sent:
            return ""
        return "" if self.pays() else "too many requests are being retried"

    def pays(self) -> bool:
        """Take one retry from the budget. False if it has no room."""
        budget = self._budget
        if not budget.has_room(is_retry=self.is_retry):
            budget.num_denied += 1
            return False
        budget.take(is_retry=self.is_retry)
        self.is_retry = True
        return True

    def gave_up(self, why: str, log: RateLimitedLog, log_id: str) -> WorkerFailed:
        """Return the error of a request without a worker left; SDKs read from it if they should retry."""
        log.warning("request %s: no worker answered (%s); tried %s", log_id, why, self)
        error = WorkerFailed(f"no worker answered ({len(self.failed)} tried): {why}", retry_after_s=1)
        error.should_retry = self.may_repeat or not self.was_sent
        return error

    def was_late(self) -> WorkerTimeout:
        error = WorkerTimeout("the worker sent no answer in time", retry_after_s=1)
        error.should_retry = self.may_repeat
        return error

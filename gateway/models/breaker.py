"""Circuit breaker for a worker's `/tokenize`: no calls for a while after some failures in a row. Pure.

closed ── NUM_FAILURES in a row ──► open for REST_S ── over ──► one call is let through
  ▲                                  ▲                              │ fails: open for twice as long,
  └────────── it succeeds ───────────┼──────────────────────────────┘ MAX_REST_S at most
                                     └─ others meanwhile: rejected
"""

NUM_FAILURES = 5
"""Failures in a row: one slow answer under load is no reason."""
REST_S = 2.0
MAX_REST_S = 60.0


class CircuitBreaker:
    """Circuit breaker; times are monotonic seconds, given by the caller."""

    __slots__ = ("_num_failures", "_rest_s", "_until")

    def __init__(self) -> None:
        self._num_failures = 0
        self._rest_s = REST_S
        self._until = 0.0

    def __repr__(self) -> str:
        return f"CircuitBreaker({self._num_failures} failures in a row)"

    def is_open(self, now: float) -> bool:
        return now < self._until

    def may_ask(self, now: float) -> bool:
        """True if a call may be made. After a rest only one caller gets True until its call has ended."""
        if now < self._until:
            return False
        if self._num_failures >= NUM_FAILURES:
            self._until = now + self._rest_s
        return True

    def answered(self) -> None:
        self._num_failures, self._rest_s, self._until = 0, REST_S, 0.0

    def failed(self, now: float) -> bool:
        """Count a failure. Returns True if the breaker opens, or stays open, by it."""
        self._num_failures += 1
        if self._num_failures < NUM_FAILURES:
            return False
        if self._num_failures > NUM_FAILURES:
            self._rest_s = min(2 * self._rest_s, MAX_REST_S)
        self._until = now + self._rest_s
        return True

"""Whether it is worth to ask somebody who failed: not for a while after some failures in a row. Pure.

closed ── NUM_FAILURES in a row ──► open for REST_S ── over ──► one is let through
   ▲                                  ▲                              │ fails: open for twice as long,
   └────────── it answers ────────────┼──────────────────────────────┘ MAX_REST_S at most
                                      └─ others meanwhile: refused
"""

NUM_FAILURES = 5
"""In a row: one slow answer under load is no reason."""
REST_S = 2.0
MAX_REST_S = 60.0


class Breaker:
    """Times are monotonic seconds of the caller's."""

    __slots__ = ("_num_failures", "_rest_s", "_until")

    def __init__(self) -> None:
        self._num_failures = 0
        self._rest_s = REST_S
        self._until = 0.0

    def __repr__(self) -> str:
        return f"Breaker({self._num_failures} failures in a row)"

    def is_open(self, now: float) -> bool:
        return now < self._until

    def may_ask(self, now: float) -> bool:
        """True makes the caller the one who tries, where it was open: others are refused meanwhile."""
        if now < self._until:
            return False
        if self._num_failures >= NUM_FAILURES:
            self._until = now + self._rest_s
        return True

    def answered(self) -> None:
        self._num_failures, self._rest_s, self._until = 0, REST_S, 0.0

    def failed(self, now: float) -> bool:
        """Whether it opens, or stays open, by this."""
        self._num_failures += 1
        if self._num_failures < NUM_FAILURES:
            return False
        if self._num_failures > NUM_FAILURES:
            self._rest_s = min(2 * self._rest_s, MAX_REST_S)
        self._until = now + self._rest_s
        return True

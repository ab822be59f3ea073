"""Timeouts of an exchange, in seconds; 0 is no limit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """`first_byte_s` and `idle_s` run from the last activity, before and after the answer's head;
    `total_s` from the request's arrival."""

    first_byte_s: float = 0.0
    idle_s: float = 600.0
    total_s: float = 0.0

    def left(self, now: float, *, started: float, last_activity: float, has_answer: bool) -> float | None:
        """Return the seconds until the next check; 0 or less: a timeout is exceeded; None: no check is due.

        Before the head, without a limit, the next check is after `idle_s`, since the head may come by then.
        """
        ends: list[float] = []
        quiet_s = self.idle_s if has_answer else self.first_byte_s
        if quiet_s:
            ends.append(last_activity + quiet_s)
        elif not has_answer and self.idle_s:
            ends.append(now + self.idle_s)
        if self.total_s:
            ends.append(started + self.total_s)
        return min(ends) - now if ends else None

    def is_total_over(self, now: float, started: float) -> bool:
        return bool(self.total_s) and now >= started + self.total_s

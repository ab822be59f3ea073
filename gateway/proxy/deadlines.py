"""Timeouts of an exchange, from table `[proxy]`; 0 is no limit."""

from gateway.config.proxy import ProxySection


def time_left(
    timeouts: ProxySection, now: float, *, started: float, last_activity: float, has_answer: bool
) -> float | None:
    """Return the seconds until the next check; 0 or less: a timeout is exceeded; None: no check is due.

    The first-byte and idle timeouts run from the last activity, before and after the answer's head; the total
    timeout from the request's arrival. Before the head, without a limit, the next check is after the idle
    timeout, since the head may come by then.
    """
    ends: list[float] = []
    quiet_s = timeouts.idle_timeout_s if has_answer else timeouts.first_byte_timeout_s
    if quiet_s:
        ends.append(last_activity + quiet_s)
    elif not has_answer and timeouts.idle_timeout_s:
        ends.append(now + timeouts.idle_timeout_s)
    if timeouts.total_timeout_s:
        ends.append(started + timeouts.total_timeout_s)
    return min(ends) - now if ends else None


def is_total_over(timeouts: ProxySection, now: float, started: float) -> bool:
    return bool(timeouts.total_timeout_s) and now >= started + timeouts.total_timeout_s

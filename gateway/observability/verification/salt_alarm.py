"""Alarm for tenants' caches: an answer had cached tokens that its tenant never put there.

The index knows by events which blocks a worker has under each salt. Where it predicted none for a salted
prompt, and the engine reports some that no event has stored under that salt by the end of the answer, they
were cached under another one: the engine shares its cache, or publishes less than it keeps. The worker's
own proof (`discovery/salt_prober.py`), which is made again, shows which it is.
"""

import logging
from collections.abc import Callable

from gateway.core.worker import Worker
from gateway.observability.verification.misprediction import ErrorCause, Evidence
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.verification")

Suspect = Callable[[str, int], object]
"""Called with the endpoint's URL and the DP rank of a worker that may share its cache between salts."""


class SaltAlarm:
    """Logs, reports and counts such answers of workers with exact events."""

    def __init__(self, suspect: Suspect = lambda url, rank: None) -> None:
        self._suspect = suspect
        self._log = RateLimitedLog(log)

    def __repr__(self) -> str:
        return f"SaltAlarm({self._log})"

    def answered(self, worker: Worker, seen: Evidence, cause: ErrorCause) -> bool:
        """Handle a wrong prediction for a salted prompt; True where it was an alarm."""
        if not is_across_salts(seen, cause):
            return False
        self._log.warning(
            "worker %s: %d cached tokens for a prompt under a tenant's salt, none of them stored under it by "
            "any event; tenants may share its cache",
            worker.id,
            seen.cached,
        )
        self._suspect(worker.url, worker.dp_rank)
        return True


def is_across_salts(seen: Evidence, cause: ErrorCause) -> bool:
    """True where the cached tokens can only come from prompts with another salt."""
    return cause is ErrorCause.NOT_REPORTED and not seen.predicted and seen.cached > 0

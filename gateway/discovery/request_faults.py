"""Charges of failed requests: to the worker where one failed, or to the request itself. Pure.

    a request fails at a worker                          charged to the worker (`outlier_detection.py`)
    it fails at a second one                             charged to the request; both workers are acquitted
    a client's requests fail at a second worker, and     charged to the requests, until one is answered;
    none was answered since the first failure            the workers are acquitted

A worker that refuses a connection, or accepts none in time (it is silent then), did not see the request: that
is always charged to the worker. A client is
the API key, or the address where no key is required.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from gateway.core.outcome import UNLOADED
from gateway.core.worker import WorkerId
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.upstream.plan import MAX_FAULTS, Execution

log = logging.getLogger("kvgate.roster")

MAX_CLIENTS: Final = 1024
"""Clients with failures and no answer since; the one that began first is forgotten beyond."""
MAX_KEYS: Final = 1000
"""Keys that are counted by name; those beyond are counted as one."""
NO_KEY: Final = "none"
OTHER_KEYS: Final = "other"


class RequestFaults:
    """Judge of failed requests. `charge` counts a failure of a worker, `acquit` takes some back; `by_key`
    counts failures that were charged to requests."""

    def __init__(
        self,
        charge: Callable[[WorkerId, str, bool], None] = lambda worker, reason, is_silent: None,
        acquit: Callable[[WorkerId, int], None] = lambda worker, num: None,
    ) -> None:
        self._charge = charge
        self._acquit = acquit
        self._runs: dict[tuple[str, str], dict[WorkerId, int]] = {}
        """Charges by client and worker since the client's last answer."""
        self.by_key: Counter[str] = Counter()
        self._log = RateLimitedLog(log)

    def __repr__(self) -> str:
        return f"RequestFaults({len(self._runs)} clients, {self.by_key.total()} faults)"

    def failed(
        self,
        request: Execution,
        worker: WorkerId,
        reason: str,
        *,
        was_sent: bool = True,
        is_refused: bool = False,
    ) -> None:
        """Charge a failed attempt, and note it in `request.failed_at` where the worker had the request."""
        if reason == UNLOADED:
            return
        if is_refused or not was_sent:
            return self._charge(worker, reason, not is_refused)
        request.failed_at = earlier = (*request.failed_at, worker)
        run = self._run_of(_client_of(request))
        has_spread = any([other != worker for other in run])
        if not has_spread and len(set(earlier)) == 1:
            run[worker] = run.get(worker, 0) + 1
            return self._charge(worker, reason, False)
        if len(set(earlier)) == MAX_FAULTS and earlier[0] not in run:
            self._acquit(earlier[0], 1)  # charged before another request of the client was answered
        if has_spread:
            run.setdefault(worker, 0)
            self._acquit_all(run)
        return self._count(request, worker, reason)

    def answered(self, request: Execution) -> None:
        """Note an answer to a client: its next failure counts as its first."""
        if self._runs:
            self._runs.pop(_client_of(request), None)

    def _run_of(self, client: tuple[str, str]) -> dict[WorkerId, int]:
        run = self._runs.get(client)
        if run is None:
            if len(self._runs) >= MAX_CLIENTS:
                del self._runs[next(iter(self._runs))]
            run = self._runs[client] = {}
        return run

    def _acquit_all(self, run: dict[WorkerId, int]) -> None:
        for worker, num in run.items():
            if num:
                run[worker] = 0
                self._acquit(worker, num)

    def _count(self, request: Execution, worker: WorkerId, reason: str) -> None:
        key = (request.http.caller.name if request.http.caller else "") or NO_KEY
        is_known = key in self.by_key or len(self.by_key) < MAX_KEYS
        self.by_key[key if is_known else OTHER_KEYS] += 1
        text = "key %s: requests fail on several workers; none is ejected for it; last on %s (%s), request %s"
        self._log.warning(text, key, worker, reason, request.log_id)


def _client_of(request: Execution) -> tuple[str, str]:
    """Name and address of a client: by its key, else by its address."""
    caller = request.http.caller
    return (caller.name, "") if caller is not None else ("", request.http.client or "")

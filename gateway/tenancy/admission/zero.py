"""Models at zero: whether a request without a worker waits for the first one, and what it gets otherwise.

    no worker up ─► expected? ─ no ─► 404 or 503, as without this
                       └─ yes ─► waits in its model's queue, bounded in number, bytes and time
                                    ├─► the first worker is up: released in order, some at once per worker
                                    └─► time over, no room: 503 with the time until a worker is expected

A model is expected if workers served it before, an autoscaler asked for it, or the configuration names it. It
is at zero until a worker answers alone, or a prefill and a decode worker that fit are both up.
"""

import math
from typing import Final, Protocol

from gateway.config import Config
from gateway.core.errors import MAX_RETRY_AFTER_S, GatewayError, NoWorker, UnknownModel
from gateway.core.fleet import Fleet
from gateway.core.pd_pairs import misfit
from gateway.tenancy.admission.saturation import Saturation

RELEASED_PER_WORKER: Final = 64
"""Requests in flight per worker up to which those that waited are released, where no saturation is
configured: enough to fill a batch, and the rest is left for workers that come seconds later."""

REQUEST_BYTES: Final = 8192
"""Memory of a waiting request and its connection, beside its body."""

RELEASE: Final = Saturation(max_in_flight=RELEASED_PER_WORKER)


class Outlook(Protocol):
    """Expectations about workers that may come; see `Planner`."""

    def expects(self, model: str) -> bool:
        """True if workers for this model may come."""

    def waiting(self, model: str) -> None:
        """Note that requests wait for a model's first worker."""

    def until_worker_s(self, model: str) -> float | None:
        """Seconds until a model's next worker is expected; None where no start was seen yet."""


class ZeroRule:
    """Bounds of the wait for a first worker; off without an outlook, as nothing is known to come."""

    def __init__(self, fleet: Fleet, outlook: Outlook | None = None, config: Config | None = None) -> None:
        self.fleet = fleet
        self._outlook = outlook
        self.wait_s = self.objective_s = 0.0
        self.max_requests = self.max_bytes = 0
        if config is not None:
            self.reconfigure(config)

    def __repr__(self) -> str:
        return f"ZeroRule({self.wait_s:g} s, {self.max_requests} requests, {self.max_bytes} bytes)"

    def reconfigure(self, config: Config) -> None:
        options = config.scaling
        self.wait_s = options.zero_wait_s if options.starts_from_zero else 0.0
        self.objective_s = options.ttft_objective_s
        self.max_requests, self.max_bytes = options.zero_max_requests, options.zero_max_bytes

    @property
    def is_on(self) -> bool:
        return self.wait_s > 0.0 and self._outlook is not None

    def is_at_zero(self, model: str) -> bool:
        """True if requests for this model wait for a worker."""
        outlook = self._outlook
        if not self.is_on or outlook is None or not lacks_workers(self.fleet, model):
            return False
        return self.fleet.knows(model) or outlook.expects(model)

    def holds(self, model: str, error: GatewayError) -> bool:
        """True if a request that a decision found no worker for waits instead."""
        return isinstance(error, (NoWorker, UnknownModel)) and self.is_at_zero(model)

    def begins(self, model: str) -> None:
        """Note that requests for the model wait from now on."""
        if self._outlook is not None:
            self._outlook.waiting(model)

    def until_worker_s(self, model: str) -> float:
        """Seconds until a worker is expected: by the last starts, and at least the TTFT objective."""
        return max(self._known_left_s(model), self.objective_s)

    def _known_left_s(self, model: str) -> float:
        """Seconds that a start of the learnt length still takes; 0 if none is known, or it takes longer."""
        left_s = self._outlook.until_worker_s(model) if self._outlook is not None else None
        return left_s or 0.0

    def full(self, model: str) -> NoWorker:
        what = f"no worker for '{model}' is up, and no more requests may wait for one"
        return self._refusal(what, model)

    def expired(self, model: str, waited_s: float) -> NoWorker:
        """Refusal of a request that waited and got no worker. Where the start takes longer than known, a
        retry comes after as long again, at most MAX_RETRY_AFTER_S."""
        what = f"no worker for '{model}' came up within {waited_s:.3g} s"
        is_known = self._known_left_s(model) > 0.0
        return self._refusal(what, model, 0.0 if is_known else min(waited_s, MAX_RETRY_AFTER_S))

    def _refusal(self, what: str, model: str, least_s: float = 0.0) -> NoWorker:
        left_s = math.ceil(max(self.until_worker_s(model), least_s))
        return NoWorker(f"{what}; retry in about {left_s} s", retry_after_s=left_s)


def lacks_workers(fleet: Fleet, model: str) -> bool:
    """True if no worker can answer for a model now: none is up, or only some that need a prefill worker, and
    none that fits is."""
    try:
        eligible = fleet.eligible(model)
    except (NoWorker, UnknownModel):
        return True
    except GatewayError:
        return False  # no worker that comes will do
    if not fleet.is_bound(model) or any([not each.member.worker.is_bound for each in eligible]):
        return False
    prefills = [each.kind for each in fleet.prefills(model)]
    kinds = [each.kind for each in eligible]
    return not any([one and other and not misfit(one, other) for one in prefills for other in kinds])

"""The door of a gateway for Envoy: services that its pickers share."""

import logging
from collections import Counter
from dataclasses import dataclass, field

from gateway.config.epp import EppSection
from gateway.core.pool_objects import PoolObjects
from gateway.epp.addresses import Addresses
from gateway.epp.held_bookings import HeldBookings
from gateway.proxy.api import Api
from gateway.proxy.context import Context
from gateway.proxy.dispatch import Dispatch
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.epp")


@dataclass(slots=True, eq=False)
class Door:
    """Services that the pickers of a gateway share."""

    api: Api
    dispatch: Dispatch
    max_body_bytes: int
    held: HeldBookings = field(default_factory=HeldBookings)
    counts: Counter[str] = field(default_factory=Counter)
    """Streams by their outcome, and removed headers, moved bookings."""
    options: EppSection = field(default_factory=EppSection)
    objects: PoolObjects = field(default_factory=PoolObjects)
    """Priorities of inference objectives."""
    addresses: Addresses = field(default_factory=Addresses)
    """Addresses of workers, as Envoy takes them."""
    has_seen_answers: bool = False
    """Envoy shows the heads of answers: a stream that ends without one was left by its client."""
    log: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))

    @property
    def context(self) -> Context:
        return self.dispatch.context

"""Bookings that gateways on several hosts share through Redis."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from gateway.app.component import Component
from gateway.bookings import metrics as bookings
from gateway.bookings.metrics import BookingsCollector
from gateway.bookings.shared_memory import ProcessView
from gateway.config import Config
from gateway.redis.options import redis_of
from gateway.runtime.tasks import Tasks

if TYPE_CHECKING:
    from gateway.bookings.sync import SharedBookings


class SharedBookingsPart(Component):
    """Shared bookings of a process; `bookings` is None where no other host has any."""

    metric_sections = (("Bookings shared between gateways", bookings.METRICS),)

    def __init__(self, config: Config, place: ProcessView | None) -> None:
        self.bookings: SharedBookings | None = None
        if place is None or place.far_row is None or (options := redis_of(config)) is None:
            return
        from gateway.bookings import sync  # and its library

        self.bookings = sync.SharedBookings(options, place, is_atomic=config.redis.booking == "atomic")

    async def start(self, tasks: Tasks) -> None:
        """Start to publish and to subscribe. Raises ConfigError for a Redis that cannot be used."""
        if self.bookings:
            await self.bookings.start(tasks)

    async def stop(self) -> None:
        if self.bookings:
            await self.bookings.close()

    def collectors(self) -> Sequence[Collector]:
        return [BookingsCollector(self.bookings)] if self.bookings else []

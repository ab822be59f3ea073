"""Metrics of bookings that gateways on several hosts share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import counter, gauge, histogram

if TYPE_CHECKING:
    from gateway.bookings.sync import SharedBookings

REMOTE_IN_FLIGHT = gauge(
    "kvgate_remote_requests_in_flight",
    "Requests that gateways on other hosts sent to the worker and that have not finished.",
    "worker",
)
REMOTE_BOOKED = gauge(
    "kvgate_remote_booked_prompt_tokens",
    "Uncached prompt tokens that gateways on other hosts sent to the worker and that are not yet prefilled.",
    "worker",
)
REMOTE_GATEWAYS = gauge("kvgate_remote_gateways", "Gateway processes on other hosts that publish bookings.")
REMOTE_SILENCE = gauge(
    "kvgate_remote_silence_seconds",
    "Time in seconds since the last message of the gateway on another host that has been silent the longest.",
)
REMOTE_EXPIRED = counter(
    "kvgate_remote_expired_gateways_total", "Gateways on other hosts dropped, with all bookings, for silence."
)
REMOTE_IGNORED = counter(
    "kvgate_remote_ignored_total",
    "Gateways and workers on other hosts ignored because the table of remote bookings was full.",
)
UNDECODABLE = counter(
    "kvgate_bookings_undecodable_messages_total",
    "Messages on the bookings channel that could not be decoded.",
)
LOSSES = counter(
    "kvgate_bookings_connection_losses_total", "Lost connections to Redis of the bookings channel."
)
UNPUBLISHED = counter("kvgate_bookings_unpublished_messages_total", "Bookings messages that Redis rejected.")
SLICES = counter(
    "kvgate_time_slices_total",
    "Time slices of the distributed lock during which this process made decisions.",
)
LATE_SLICES = counter(
    "kvgate_late_time_slices_total",
    "Time slices that began before the bookings of the previous time slice had arrived.",
)
UNLOCKED = counter(
    "kvgate_unlocked_decisions_total", "Decisions made without a time slice of the distributed lock."
)
DELAY = histogram(
    "kvgate_bookings_delay_seconds",
    "Time in seconds from the publication of a bookings message to the arrival of the copy that Redis "
    "sends back.",
)

METRICS = (
    *(REMOTE_IN_FLIGHT, REMOTE_BOOKED, REMOTE_GATEWAYS, REMOTE_SILENCE, REMOTE_EXPIRED, REMOTE_IGNORED),
    *(UNDECODABLE, LOSSES, UNPUBLISHED, SLICES, LATE_SLICES, UNLOCKED, DELAY),
)


class BookingsCollector(Collector):
    def __init__(self, bookings: "SharedBookings") -> None:
        self._bookings = bookings

    def collect(self) -> Iterator[Metric]:
        bookings = self._bookings
        yield from self._remote()
        yield UNDECODABLE.single(bookings.num_undecodable)
        yield LOSSES.single(bookings.num_losses)
        yield UNPUBLISHED.single(bookings.publish_connection.num_unsent)
        if lock := bookings.lock:
            yield SLICES.single(lock.num_acquired)
            yield LATE_SLICES.single(lock.num_late)
            yield UNLOCKED.single(lock.num_without)
        yield DELAY.histograms([((), bookings.delays_s)])

    def _remote(self) -> Iterator[Metric]:
        remote_hosts, ledger = self._bookings.remote_hosts, self._bookings.place.ledger
        loads = [(worker, ledger.remote(worker)) for worker in ledger.known()]
        yield REMOTE_IN_FLIGHT.family((worker, load.num_in_flight) for worker, load in loads)
        yield REMOTE_BOOKED.family((worker, load.booked_tokens) for worker, load in loads)
        yield REMOTE_GATEWAYS.single(remote_hosts.num_gateways)
        yield REMOTE_SILENCE.single(self._bookings.age_s())
        yield REMOTE_EXPIRED.single(remote_hosts.num_dropped)
        yield REMOTE_IGNORED.single(remote_hosts.num_ignored)

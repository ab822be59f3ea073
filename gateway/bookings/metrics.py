"""How bookings are shared between gateways, as Prometheus sees it."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from gateway.bookings.sync import SharedBookings


class BookingsCollector(Collector):
    def __init__(self, bookings: "SharedBookings") -> None:
        self._bookings = bookings

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        bookings = self._bookings
        abroad, ledger = bookings.abroad, bookings.place.ledger
        loads = {worker: ledger.abroad(worker) for worker in ledger.known()}
        for name, text, values in (
            (
                "requests_in_flight",
                "Requests that other hosts' gateways sent and that are not finished",
                {worker: load.num_in_flight for worker, load in loads.items()},
            ),
            (
                "booked_prompt_tokens",
                "Uncached prompt tokens of theirs that are not yet prefilled",
                {worker: load.booked_tokens for worker, load in loads.items()},
            ),
        ):
            family = GaugeMetricFamily(f"kvgate_others_{name}", text, labels=["worker"])
            for worker, value in values.items():
                family.add_metric([worker], value)
            yield family
        yield _gauge("others_gateways", "Processes of other hosts that are heard", abroad.num_gateways)
        yield _gauge(
            "others_age_seconds", "Since the last word of the one that is silent longest", bookings.age_s()
        )
        yield _counter("others_dropped", "Times that one's bookings were dropped", abroad.num_dropped)
        yield _counter(
            "others_ignored", "Gateways and workers beyond what a host can tell apart", abroad.num_ignored
        )
        yield _counter("bookings_undecodable", "Messages that were none of ours", bookings.num_undecodable)
        yield _counter("bookings_losses", "Times that Redis was lost", bookings.num_losses)
        yield _counter("bookings_unsaid", "Messages that Redis did not take", bookings.speaker.num_unsaid)
        if turns := bookings.turns:
            yield _counter("turns", "Turns in which this process decided", turns.num_taken)
            yield _counter("turns_late", "Of them, before the last one's bookings were heard", turns.num_late)
            yield _counter("turns_without", "Decisions that did without a turn", turns.num_without)
        delays = HistogramMetricFamily(
            "kvgate_bookings_delay_seconds", "Until what is told is heard, by a message of our own"
        )
        delays.add_metric([], bookings.delays_s.buckets(), bookings.delays_s.sum)
        yield delays


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"kvgate_{name}", text)
    family.add_metric([], value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(f"kvgate_{name}", text)
    family.add_metric([], value)
    return family

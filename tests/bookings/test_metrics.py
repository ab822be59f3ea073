from gateway.bookings.message import BookingsMessage, WorkerBookings
from gateway.bookings.metrics import BookingsCollector
from gateway.bookings.shared_memory import view_alone
from gateway.bookings.sync import SharedBookings
from gateway.config import load
from gateway.core.worker import WorkerId
from gateway.redis.options import redis_of


async def test_remote_bookings_are_exposed() -> None:
    config = load({"redis": "redis://127.0.0.1:1", "booking": "atomic"}, environ={})
    place, options = view_alone(config), redis_of(config)
    assert place and options
    bookings = SharedBookings(options, place, is_atomic=True, clock=lambda: 12.0)
    place.ledger.book(WorkerId("a:1"), 5, 5)
    bookings.remote_hosts.receive(BookingsMessage(99, 1, 1, [WorkerBookings("a:1", 2, 300)]), 10.0)
    bookings.remote_hosts.receive(BookingsMessage(99, 2, 1), 11.0)
    assert bookings.lock
    bookings.lock.num_acquired = 7
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in BookingsCollector(bookings).collect()
        for sample in metric.samples
    }
    exposed = {
        name: value for name, value in samples.items() if not name[0].startswith("kvgate_bookings_delay")
    }
    assert exposed == {
        ("kvgate_remote_requests_in_flight", "a:1"): 2,
        ("kvgate_remote_booked_prompt_tokens", "a:1"): 300,
        ("kvgate_remote_gateways",): 2,
        ("kvgate_remote_silence_seconds",): 2,
        ("kvgate_remote_expired_gateways_total",): 0,
        ("kvgate_remote_ignored_total",): 0,
        ("kvgate_bookings_undecodable_messages_total",): 0,
        ("kvgate_bookings_connection_losses_total",): 0,
        ("kvgate_bookings_unpublished_messages_total",): 0,
        ("kvgate_time_slices_total",): 7,
        ("kvgate_late_time_slices_total",): 0,
        ("kvgate_unlocked_decisions_total",): 0,
    }
    await bookings.close()

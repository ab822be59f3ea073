"""An hour of figures: differences of the metrics, in intervals of ten seconds."""

import pytest

from gateway.admin.console.pooled_bound import PooledBound, PooledCounts
from gateway.admin.console.traffic_history import INTERVAL_S, NUM_INTERVALS, TrafficHistory, by_range
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.observability.metrics import TTFT_BOUNDS_S, Metrics
from tests.support.fakes import decision

W = WorkerId("w:1")


class TrafficWorld:
    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.metrics = Metrics()
        self.pooled = PooledBound([])
        self.history = TrafficHistory(self.metrics, self.pooled, lambda: self.now)

    def answer(self, ttft_s: float = 0.07) -> None:
        counts = self.metrics.decided(decision())
        counts.report(Usage(100, 7, 48), decision())
        counts.ttft_s.observe(ttft_s)
        counts.itl_s.observe(0.015)
        self.metrics.ended("m", "chat", 200, 0.3)


@pytest.fixture
def world() -> TrafficWorld:
    return TrafficWorld()


def test_an_interval_has_what_was_counted_in_it(world: TrafficWorld) -> None:
    world.answer()
    world.metrics.ended("m", "chat", 503, 0.3)
    world.metrics.errors["no_worker"] += 2
    world.pooled.counts = PooledCounts(48, 96, 100)
    world.history.sample()
    world.answer()
    world.history.sample()
    assert world.history.latest() == [
        {
            "id": 100_000,
            "answers": {"2xx": 2, "5xx": 1},
            "errors": {"no_worker": 2},
            "prompt_tokens": 200,
            "output_tokens": 14,
            "reported_prompt_tokens": 200,
            "reported_cached_tokens": 96,
            "predicted_cached_tokens": 128,
            "ttft": {"0.05-0.1": 2},
            "itl": {"0.01-0.02": 2},
            "e2e": {"0.25-0.5": 2},
            "pooled": {"missed_tokens": 48, "block_tokens": 96, "prompt_tokens": 100},
        }
    ]


def test_the_next_interval_begins_at_nothing(world: TrafficWorld) -> None:
    world.answer()
    world.history.sample()
    world.now += INTERVAL_S
    world.answer(0.5)
    world.pooled.counts = PooledCounts(48, 96, 100)
    world.history.sample()
    world.pooled.counts = PooledCounts(60, 112, 130)
    world.history.sample()
    first, second = world.history.latest()
    assert (first["answers"], second["answers"]) == ({"2xx": 1}, {"2xx": 1})
    assert second["ttft"] == {"0.2-0.5": 1} and second["e2e"] == {"0.25-0.5": 1}
    assert second["pooled"]["missed_tokens"] == 60 and second["pooled"]["prompt_tokens"] == 130


def test_a_worker_that_leaves_takes_nothing_back(world: TrafficWorld) -> None:
    world.answer()
    world.history.sample()
    world.metrics.drop_worker(W)
    world.history.sample()
    world.answer()
    world.history.sample()
    (interval,) = world.history.latest()
    assert (interval["prompt_tokens"], interval["answers"]) == (200, {"2xx": 2})


def test_an_hour_is_kept(world: TrafficWorld) -> None:
    for _ in range(NUM_INTERVALS + 3):
        world.answer()
        world.history.sample()
        world.now += INTERVAL_S
    shown = world.history.latest()
    assert len(shown) == NUM_INTERVALS - 1  # that of now has not been sampled yet
    assert [each["id"] for each in shown] == sorted(each["id"] for each in shown)
    assert len(world.history.latest(3)) == 2
    world.now += NUM_INTERVALS * INTERVAL_S
    assert world.history.latest() == []


def test_a_clock_that_goes_back_counts_in_the_latest_interval(world: TrafficWorld) -> None:
    world.history.sample()
    world.now -= 100.0
    world.answer()
    world.history.sample()
    world.now += 100.0
    assert [each["answers"] for each in world.history.latest()] == [{"2xx": 1}]


def test_without_a_bound_there_is_none() -> None:
    history = TrafficHistory(Metrics(), None, lambda: 5.0)
    history.sample()
    assert [each["pooled"] for each in history.latest()] == [None]


def test_buckets_are_named_by_their_range() -> None:
    counts = [1, *[0] * (len(TTFT_BOUNDS_S) - 1), 2]
    assert by_range(TTFT_BOUNDS_S, counts) == {"0-0.01": 1, "60.0-inf": 2}

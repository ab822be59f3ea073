"""The first message of a kind is logged at once, later ones as a count."""

import logging

import pytest

from gateway.runtime.rate_limited_log import MAX_SUBJECTS, MAX_TEXT, RateLimitedLog
from tests.support.patience import until

LOG = logging.getLogger("kvgate.test_rate_limited")
BAD = "worker %s: bad: %s"


class RateLimitWorld:
    def __init__(self) -> None:
        self.now = 0.0
        self.log = RateLimitedLog(LOG, every_s=60.0, clock=lambda: self.now)


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> RateLimitWorld:
    caplog.set_level(logging.INFO, LOG.name)
    return RateLimitWorld()


def test_the_first_message_is_logged_and_later_ones_are_counted(
    world: RateLimitWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_235):
        world.log.warning(BAD, "a", number)
    assert caplog.messages == ["worker a: bad: 0"]
    world.now = 61.0
    world.log.warning(BAD, "a", "again")
    assert caplog.messages[1:] == ["worker a: bad: 1234 (1,234 more in 61 s)"]
    world.now = 122.0
    world.log.warning(BAD, "a", "later")  # the message at 61 s is not lost either
    assert caplog.messages[2:] == ["worker a: bad: again (1 more in 61 s)"]


def test_after_a_calm_period_a_message_is_logged_at_once_again(
    world: RateLimitWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.log.info(BAD, "a", 1)
    world.now = 100.0
    world.log.info(BAD, "a", 2)
    assert caplog.messages == ["worker a: bad: 1", "worker a: bad: 2"]


def test_messages_and_subjects_are_counted_separately(
    world: RateLimitWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        world.log.warning(BAD, "a", 1)
        world.log.warning(BAD, "b", 1)
        world.log.warning("worker %s: worse", "a")
    assert caplog.messages == ["worker a: bad: 1", "worker b: bad: 1", "worker a: worse"]
    assert repr(world.log) == "RateLimitedLog(kvgate.test_rate_limited, 3 kinds)"


def test_subjects_are_bounded_and_so_are_values(
    world: RateLimitWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MAX_SUBJECTS + 500):
        world.log.warning(BAD, number, "x" * 10_000)
    assert len(caplog.messages) == MAX_SUBJECTS + 1
    assert all(len(message) < MAX_TEXT + 100 for message in caplog.messages)


async def test_a_running_loop_logs_counts_without_a_further_message(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(LOG, every_s=1.0)
    log.warning(BAD, "a", 1)
    log.warning(BAD, "a", 2)
    await until(lambda: len(caplog.messages) >= 2)
    assert caplog.messages[1].startswith("worker a: bad: 2 (1 more in ")


def test_idle_kinds_are_forgotten(world: RateLimitWorld) -> None:
    for number in range(MAX_SUBJECTS):
        world.log.warning(BAD, number, 1)
    world.now = 61.0
    world.log.warning(BAD, "a", 1)
    assert repr(world.log) == "RateLimitedLog(kvgate.test_rate_limited, 1 kinds)"

"""The offset of a worker's clock follows from the days that it prints."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from gateway.parity.worker_day import (
    EARLIEST,
    LATEST,
    QUARTER,
    ModelDay,
    days_at,
    nearest_offset,
    until_quarter,
)

HOUR = timedelta(hours=1)
NONE = timedelta()
LATE = timedelta(seconds=2)


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 3, 10, hour, minute, second, tzinfo=UTC)


DAY, NEXT, BEFORE = date(2026, 3, 10), date(2026, 3, 11), date(2026, 3, 9)


@pytest.mark.parametrize(
    ("now", "days"),
    [
        (at(5), [DAY, BEFORE]),
        (at(11), [DAY, BEFORE, NEXT]),
        (at(12), [DAY, NEXT]),
        (at(9, 59), [DAY, BEFORE]),
    ],
)
def test_days_of_the_world_are_two_or_three(now: datetime, days: list[date]) -> None:
    assert days_at(now) == days


def test_quarters_begin_at_each_midnight_of_a_zone() -> None:
    assert until_quarter(at(1, 14, 58)) == timedelta(seconds=2)
    assert until_quarter(at(1, 15)) == QUARTER


@pytest.mark.parametrize(
    ("now", "day", "believed", "offset"),
    [
        (at(10), DAY, NONE, NONE),
        (at(10), DAY, 9 * HOUR, 9 * HOUR),
        (at(15, 0, 2), NEXT, NONE, 9 * HOUR),
        (at(20), NEXT, NONE, 4 * HOUR),
        (at(0, 0, 2), BEFORE, NONE, -QUARTER),
        (at(7, 45, 2), BEFORE, -7 * HOUR, -8 * HOUR),
        (at(18, 15), DAY, 9 * HOUR, 5.5 * HOUR),
        (at(18, 30, 1), NEXT, NONE, 5.5 * HOUR),
    ],
)
def test_offset_is_the_nearest_of_that_day(
    now: datetime, day: date, believed: timedelta, offset: timedelta
) -> None:
    found = nearest_offset(day, now, believed)
    assert found == offset and (now + found).date() == day


@pytest.mark.parametrize("minutes", range(int(EARLIEST / timedelta(minutes=1)), 14 * 60 + 1, 45))
@pytest.mark.parametrize("own", [NONE, 9 * HOUR, -8 * HOUR])
def test_checks_of_a_day_find_every_zone_and_then_no_midnight_is_missed(minutes: int, own: timedelta) -> None:
    """After a day each prompt of the next has the worker's day, to the second."""
    real, model = timedelta(minutes=minutes), ModelDay()
    now = at(3, 20)
    for _ in range(100):
        model.observed("w", (now + real).date(), now, own)
        now += until_quarter(now) + LATE
    assert EARLIEST <= (own if model.offset is None else model.offset) <= LATEST
    assert (own if model.offset is None else model.offset) == real
    model.observed("w", (now + real + HOUR).date(), now, own)  # summer time: noticed once a day differs


def test_drift_is_noticed_by_the_first_check_at_which_days_differ() -> None:
    model = ModelDay()
    model.observed("w", DAY, at(12), NONE)
    assert (model.offset, model.zone()) == (None, None), "the gateway's own, with its summer time"
    model.observed("w", NEXT, at(23, 0, 2), NONE)
    assert model.zone() == model.zone("w") == timezone(HOUR)
    model.observed("w", NEXT, datetime(2026, 3, 11, 12, tzinfo=UTC), NONE)
    assert model.offset == HOUR, "still possible"
    model.observed("w", NEXT, datetime(2026, 3, 11, 23, 0, 2, tzinfo=UTC), NONE)
    assert model.offset == HOUR - QUARTER, "an hour back, a quarter at each check"


def test_most_workers_make_the_models_day_and_the_others_say_why() -> None:
    model = ModelDay()
    now = at(20)
    model.observed("a", DAY, now, NONE)
    model.observed("b", NEXT, now, NONE)
    assert (model.offset, list(model.others)) == (None, ["b"]), "one each: what is believed stays"
    model.observed("c", NEXT, now, NONE)
    assert model.offset == 4 * HOUR and list(model.others) == ["a"]
    assert "2026-03-10 there, and 2026-03-11 at most workers" in model.others["a"]
    model.left("c", now, NONE)
    model.left("b", now, NONE)
    model.left("x", now, NONE)
    assert (model.offset, model.others) == (None, {}) and "1 workers" in repr(model)
    model.observed("b", DAY, at(12), NONE)
    assert model.others == {}, "in other hours both have one day"

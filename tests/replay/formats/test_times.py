from collections.abc import Sequence

import pytest

from gateway.replay.formats.times import UNITS, ticks_of, unit_of


@pytest.mark.parametrize(
    ("value", "ticks"),
    [
        (1.5, (1.5, False)),
        (" 7 ", (7.0, False)),
        ("1970-01-01T00:00:10Z", (10.0, True)),
        ("1970-01-01 00:00:10.5000000", (10.5, True)),
        ("1970-01-01T02:00:10+02:00", (10.0, True)),
    ],
)
def test_numbers_and_iso_times_are_read(value: float | str, ticks: tuple[float, bool]) -> None:
    """A time without a zone is in UTC, wherever the replay runs."""
    assert ticks_of(value) == ticks


@pytest.mark.parametrize("value", ["nan", "inf", "", "soon", "0001-01-01", float("inf")])
def test_other_times_are_refused(value: float | str) -> None:
    with pytest.raises(ValueError):
        ticks_of(value)


@pytest.mark.parametrize("unit", list(UNITS))
def test_a_clock_that_counts_from_1970_shows_its_unit(unit: str) -> None:
    assert unit_of([(1.76e9 + i) * UNITS[unit] for i in range(5)], "ms") == unit


@pytest.mark.parametrize("unit", list(UNITS))
@pytest.mark.parametrize("gap_s", [0.05, 1.0, 15.0])
def test_a_clock_that_begins_anywhere_shows_its_unit_by_its_gaps(unit: str, gap_s: float) -> None:
    assert unit_of([7 + gap_s * i * UNITS[unit] for i in range(50)]) == unit


@pytest.mark.parametrize(
    ("ticks", "own", "unit"),
    [
        ([0, 1, 2, 4], "ms", "ms"),  # a thousand requests per second
        ([0, 0, 1, 1, 1, 2], "ms", "s"),
        ([0, 3000, 3000, 6000], "ms", "ms"),
        ([0, 42], "s", "s"),
        ([0, 600, 1200], "s", "s"),
        ([0, 60_000, 120_000], "s", "us"),
        ([0, 2e6, 4e6], "ms", "us"),
        ([5], "ms", "ms"),
        ([5, 5], None, "s"),
        ([], "s", "s"),
    ],
)
def test_the_unit_of_a_format_is_kept_where_the_gaps_allow_it(
    ticks: Sequence[float], own: str | None, unit: str
) -> None:
    assert unit_of(ticks, own) == unit


def test_milliseconds_of_many_requests_per_second_are_whole() -> None:
    assert unit_of([0.0, 15.0, 30.0], "ms", is_whole=False) == "s"
    assert unit_of([0, 15, 30], "ms", is_whole=True) == "ms"
    assert unit_of([0.0, 150.5, 300.5], "ms", is_whole=False) == "ms"

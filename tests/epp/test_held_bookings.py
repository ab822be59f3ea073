"""The end of bookings of unseen answers; test_picker.py has the exchanges."""

import pytest

from gateway.epp.held_bookings import FRESH_S, LONGEST_S, is_over


@pytest.mark.parametrize(
    ("held_s", "num_reported", "num_booked", "expected"),
    [
        (FRESH_S / 2, 0, 1, False),  # the report may be older than the request
        (FRESH_S, 0, 1, True),
        (FRESH_S, 1, 2, True),
        (FRESH_S, 2, 2, False),
        (20.0, 2, 2, False),  # the worker still runs as many
        (LONGEST_S, 2, 2, True),
        (9.9, 0, 0, False),
        (10.0, 0, 0, True),
    ],
)
def test_the_workers_own_count_corrects_the_predicted_time(
    held_s: float, num_reported: int, num_booked: int, expected: bool
) -> None:
    assert is_over(held_s, 10.0, num_reported, num_booked) is expected

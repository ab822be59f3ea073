import math

import pytest

from gateway.core.worker import ReportedLoad
from gateway.routing.concurrency import IN_A_ROW, KEPT_S, LEAST, ConcurrencyLimit


def limit_after(
    max_running: ConcurrencyLimit, *running_and_waiting: tuple[int, int], now: float = 1.0
) -> float:
    for running, waiting in running_and_waiting:
        max_running.look(ReportedLoad(running, waiting), now)
    return max_running.num


FULL = [(64, 5), (64, 9), (64, 2), (64, 1), (64, 30)]


def test_a_constant_number_of_running_requests_while_others_wait_is_the_limit() -> None:
    max_running = ConcurrencyLimit()
    assert len(FULL) == IN_A_ROW + 1
    assert limit_after(max_running, *FULL[:-1]) == math.inf
    assert limit_after(max_running, FULL[-1]) == 64
    assert (
        limit_after(max_running, (60, 0), (64, 0), (12, 0)) == 64
    )  # the limit stays while it is not reached
    assert repr(max_running) == "ConcurrencyLimit(64)"


@pytest.mark.parametrize(
    "reports",
    [
        [(64, 0)] * 9,  # no request waits: as many run as came
        [(number, 5) for number in range(60, 69)],  # requests wait for prompts before them
        [(LEAST - 1, 5)] * 9,
    ],
)
def test_other_reports_set_no_limit(reports: list[tuple[int, int]]) -> None:
    assert limit_after(ConcurrencyLimit(), *reports) == math.inf


def test_more_running_requests_than_the_limit_remove_it() -> None:
    max_running = ConcurrencyLimit()
    limit_after(max_running, *FULL)
    assert limit_after(max_running, (65, 3)) == math.inf


def test_an_unconfirmed_limit_expires() -> None:
    max_running = ConcurrencyLimit()
    limit_after(max_running, *FULL)
    assert limit_after(max_running, (3, 0), now=KEPT_S) == 64
    assert limit_after(max_running, (4, 0), now=KEPT_S + 2.0) == math.inf


def test_a_repeated_report_counts_once() -> None:
    max_running, report = ConcurrencyLimit(), ReportedLoad(64, 5)
    for now in range(3 * IN_A_ROW):
        max_running.look(report, float(now))
    assert max_running.num == math.inf

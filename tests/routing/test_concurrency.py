import math
import random
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.core.worker import FULL_KV, ReportedLoad
from gateway.routing.concurrency import AT_PEAK, IN_A_ROW, KEPT_S, LEAST, MIN_WAITING, OF, ConcurrencyLimit


def limit_after(
    max_running: ConcurrencyLimit, *running_and_waiting: tuple[int, int], now: float = 1.0
) -> float:
    for running, waiting in running_and_waiting:
        max_running.look(ReportedLoad(running, waiting), now)
    return max_running.num


FULL = [(64, 5), (64, 9), (64, 2), (64, 1), (64, 30)]


def test_the_most_that_ran_while_others_waited_is_the_limit() -> None:
    """Reports fluctuate below it, as places of ended answers are free until the next step."""
    max_running = ConcurrencyLimit()
    assert len(FULL) == IN_A_ROW + 1
    assert limit_after(max_running, (61, 5), (64, 2), (55, 1), (60, 30), (64, 3)) == math.inf
    assert limit_after(max_running, (58, 9)) == 64
    assert limit_after(max_running, (60, 0), (64, 0), (12, 0)) == 64, "it stays while it is not reached"
    assert limit_after(max_running, *[(57, 3)] * 9) == 64, "lower reports do not lower it"
    assert repr(max_running) == "ConcurrencyLimit(64)"


@pytest.mark.parametrize(
    "reports",
    [
        [(64, 0)] * 9,  # no request waits: as many run as came
        [(64, 5), (30, 5), (64, 5), (64, 5), (20, 5)] * 3,  # prompts before them are computed
        [(number, 5) for number in range(60, 69)],  # more and more run
        [(LEAST - 1, 5)] * 9,
        [(64, 5), (64, 5), (64, 0)] * 5,
    ],
)
def test_other_reports_set_no_limit(reports: list[tuple[int, int]]) -> None:
    assert limit_after(ConcurrencyLimit(), *reports) == math.inf


def test_a_full_cache_sets_no_limit() -> None:
    max_running = ConcurrencyLimit()
    for number in range(9):
        max_running.look(ReportedLoad(64, 1 + number, FULL_KV + 0.01), float(number))
    assert max_running.num == math.inf


def test_more_running_requests_raise_the_limit_or_remove_it() -> None:
    max_running = ConcurrencyLimit()
    limit_after(max_running, *FULL)
    assert limit_after(max_running, (65, 3)) == 65
    assert limit_after(max_running, (66, 0)) == 66, "a full batch without a queue is near it too"
    assert limit_after(max_running, (90, 0)) == math.inf


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


def test_a_reported_limit_holds_at_once_and_for_ever_unless_more_run() -> None:
    max_running = ConcurrencyLimit()
    max_running.look(ReportedLoad(), 0.0, 32)
    assert max_running.num == 32
    max_running.look(ReportedLoad(30, 9), 2 * KEPT_S, 32)
    assert max_running.num == 32
    max_running.look(ReportedLoad(60, 0), 2 * KEPT_S, 32)
    assert max_running.num == math.inf


AGREES = ReportedLoad(63, 9)


def first_tokens(counts: Iterable[int], waiting: int = MIN_WAITING, report: ReportedLoad = AGREES) -> float:
    """The limit after first tokens that bring the running answers to these counts."""
    limit = ConcurrencyLimit()
    limit.look(report, 1.0)
    for num in counts:
        limit.began(num, waiting, 2.0)
    return limit.num


AT_LIMIT = [*range(40, 64), *[62, 64, 63] * AT_PEAK]


def test_first_tokens_that_reach_the_same_peak_show_a_limit() -> None:
    assert first_tokens(AT_LIMIT) == 64
    assert first_tokens(AT_LIMIT[:-3]) == math.inf
    assert first_tokens([*AT_LIMIT, *[65] * AT_PEAK]) == 65


def test_without_a_limit_the_peak_is_exceeded() -> None:
    """Prompts are computed one after the other, and answers end at any time: the count walks at random."""
    rng = random.Random(4)
    for _ in range(300):
        num, counts = 60, []
        for _ in range(500):
            num += 1
            counts.append(num)
            while rng.random() < 0.5:
                num -= 1
        assert first_tokens(counts, report=ReportedLoad(counts[-1], 9)) == math.inf


@pytest.mark.parametrize(
    "more",
    [
        {"report": ReportedLoad(63, 0)},  # the engine says that none waits
        {"report": ReportedLoad(63, 9, FULL_KV + 0.01)},
        {"report": ReportedLoad(200, 9)},  # other gateways' requests run there, too
        {"report": ReportedLoad(9, 9)},
        {"waiting": MIN_WAITING - 1},
    ],
)
def test_first_tokens_show_no_limit_where_reports_disagree_or_few_wait(more: Any) -> None:
    assert first_tokens(AT_LIMIT, **more) == math.inf


def test_as_many_clients_as_ever_show_no_limit() -> None:
    """Forty clients that each ask again after an answer: where three wait, at most 37 answers run."""
    rng, limit = random.Random(7), ConcurrencyLimit()
    limit.look(ReportedLoad(38, 2), 1.0)
    for _ in range(5 * OF):
        waiting = min(rng.randrange(6), rng.randrange(6))
        limit.began(40 - waiting, waiting, 2.0)
    assert limit.num == math.inf

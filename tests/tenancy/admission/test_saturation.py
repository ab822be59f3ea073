"""Saturation of a worker: a table."""

import pytest

from gateway.core.ledger import Load
from gateway.core.speed import Speed
from gateway.core.value import replace
from gateway.core.worker import ReportedLoad
from gateway.tenancy.admission.saturation import Saturation, ttft_s

PACE = Speed(start_s=0.1, token_s=0.001, seq_s=0.0001)


@pytest.mark.parametrize(
    ("rule", "load", "reported", "is_full"),
    [
        (Saturation(), Load(1000, 10**9), ReportedLoad(0, 9, 1.0), False),
        (Saturation(max_in_flight=4), Load(3, 10**9), ReportedLoad(0, 9, 1.0), False),
        (Saturation(max_in_flight=4), Load(4, 0), ReportedLoad(), True),
        (Saturation(1.0), Load(1, 800), ReportedLoad(), False),  # .1 + 800 * (.001 + .0001) = .98 s
        (Saturation(1.0), Load(1, 820), ReportedLoad(), True),
        (Saturation(1.0), Load(5, 700), ReportedLoad(), True),  # five answers slow it: 1.15 s
        (Saturation(1.0), Load(1, 0), ReportedLoad(5, 2, 0.99), True),
        (Saturation(1.0), Load(1, 0), ReportedLoad(5, 0, 0.99), False),
        (Saturation(1.0), Load(1, 0), ReportedLoad(5, 2, 0.9), False),
        # idle: a queued request might wait for ever
        (Saturation(1.0), Load(0, 0), ReportedLoad(5, 2, 0.99), False),
        (Saturation(0.01, 1), Load(0, 0), ReportedLoad(), False),
    ],
)
def test_a_worker_is_full(rule: Saturation, load: Load, reported: ReportedLoad, is_full: bool) -> None:
    assert rule.is_full(load, PACE, reported) is is_full


def test_a_worker_at_its_concurrency_limit_is_full_if_it_stays_so_for_too_long() -> None:
    speed = replace(PACE, max_running=8.0, step_s=0.01, step_seq_s=0.001, answer_tokens=500.0)
    assert ttft_s(Load(8, 0), speed) == pytest.approx(0.1 + 500 * (0.01 / 8 + 0.001))  # 1.2 s
    for bound, is_full in ((1.0, True), (1.5, False)):
        assert Saturation(bound).is_full(Load(8, 0), speed, ReportedLoad()) is is_full
    assert not Saturation(1.0).is_full(Load(7, 0), speed, ReportedLoad())


def test_saturation_is_on_where_it_has_a_bound() -> None:
    assert [Saturation().is_on, Saturation(1.0).is_on, Saturation(0.0, 1).is_on] == [False, True, True]
    assert repr(Saturation(1.5, 7)) == "Saturation(above 1.5 s, in flight 7)"


def test_the_first_token_waits_for_the_booked_work() -> None:
    assert ttft_s(Load(0, 0), PACE) == pytest.approx(0.1)
    assert ttft_s(Load(2, 1000), PACE) == pytest.approx(0.1 + 1.2) == PACE.ttft_s(1000, 2)

import logging

import pytest

from engines import ENGINES
from gateway.core.eligibility import Eligibility
from gateway.core.engine import EngineMetrics
from gateway.core.fleet import Fleet
from gateway.core.worker import Served, Worker, WorkerId
from gateway.discovery.refused import Figures, log_unusable

BASE, ADAPTER = Served("m", "m"), Served("ad1", "m", "ad1", parent="m")


@pytest.mark.parametrize(
    ("engine", "served", "lines"),
    [
        (
            "sglang",
            (BASE, ADAPTER),
            [
                "worker http://w:1: not used for ad1 (sglang answers a request for an adapter from its base "
                "model); it gets no such requests"
            ],
        ),
        ("sglang", (BASE,), []),
        ("vllm", (BASE, ADAPTER), []),
    ],
)
def test_a_line_where_a_name_is_not_used(
    engine: str, served: tuple[Served, ...], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(eligibility=Eligibility(ENGINES))
    worker = Worker(WorkerId("w:1"), "http://w:1", served, engine=engine)
    fleet.add(worker)
    with caplog.at_level(logging.INFO):
        log_unusable(fleet, worker)
    assert [record.message for record in caplog.records] == lines


def test_figures_that_cannot_be_are_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    figures = Figures()
    bad = {0: EngineMetrics(num_requests_running=-1), 1: EngineMetrics(block_size=1 << 40)}
    with caplog.at_level(logging.INFO):
        figures.see("http://w:1", {0: EngineMetrics(num_requests_running=1)}, 0.0)
        for now in range(61):
            figures.see("http://w:1", bad, float(now))
    assert [record.message for record in caplog.records] == [
        f"worker http://w:1: figures ignored (block_size, num_requests_running impossible, {num} times); "
        "they count as not reported"
        for num in (1, 60)
    ]

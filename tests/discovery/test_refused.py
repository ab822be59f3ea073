import logging

import pytest

from engines import ENGINES
from gateway.core.eligibility import Eligibility
from gateway.core.engine import EngineMetrics, ModelInfo
from gateway.core.fleet import Fleet
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.discovery.probed import Facts, workers_of
from gateway.discovery.refused import (
    log_block_size,
    log_block_sizes,
    log_figures,
    log_sizeless,
    log_unusable,
)
from gateway.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger("kvgate.roster")
BASE, ADAPTER = ServedModel("m", "m"), ServedModel("ad1", "m", "ad1", parent="m")


@pytest.mark.parametrize(
    ("engine", "served", "lines"),
    [
        (
            "openai",
            (BASE, ADAPTER),
            [
                "worker http://w:1: not used for m, ad1 (openai has no cache_salt, which --tenant-salt-file "
                "needs); their requests go to other workers"
            ],
        ),
        ("vllm", (BASE, ADAPTER), []),
    ],
)
def test_an_unusable_name_is_logged(
    engine: str, served: tuple[ServedModel, ...], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(eligibility=Eligibility(ENGINES, needs_salt=True))
    worker = Worker(WorkerId("w:1"), "http://w:1", served, engine=engine)
    fleet.add(worker)
    with caplog.at_level(logging.INFO):
        log_unusable(RateLimitedLog(LOG), fleet, worker)
    assert [record.message for record in caplog.records] == lines


def test_impossible_figures_are_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = RateLimitedLog(LOG, clock=lambda: now[0])
    bad = {0: EngineMetrics(num_requests_running=-1), 1: EngineMetrics(block_size=1 << 40)}
    with caplog.at_level(logging.INFO):
        log_figures(log, "http://w:1", {0: EngineMetrics(num_requests_running=1)})
        for now[0] in range(61):
            log_figures(log, "http://w:1", bad)
    assert [record.message for record in caplog.records] == [
        "worker http://w:1: impossible metrics ignored (block_size, num_requests_running); "
        f"they count as not reported{more}"
        for more in ("", " (59 more in 60 s)")
    ]


@pytest.mark.parametrize(("size", "lines"), [(16, 0), (None, 0), (32, 1)])
def test_ranks_with_another_block_size_are_logged(
    size: int | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = {rank: EngineMetrics(block_size=size if rank == 2 else 16) for rank in range(3)}
    facts = Facts("http://w:1", "vllm", (ModelInfo("m"),), ranks)
    log_block_sizes(RateLimitedLog(LOG), workers_of(facts), facts)
    line = "worker http://w:1: 1 of its 3 ranks report another block size than 16, and are routed by load"
    assert [record.message for record in caplog.records] == [line][:lines]


@pytest.mark.parametrize(
    ("size", "is_followed", "line"),
    [
        (16, True, ""),
        (None, True, "INFO worker http://w:1: no block size in its metrics; its KV events will show it"),
        (
            None,
            False,
            "WARNING worker http://w:1: no block size in its metrics, and no KV events to show one: its "
            'cache is unknown, so it is routed by load ([workers."URL"] block_size sets the size)',
        ),
    ],
)
def test_a_worker_without_a_block_size_is_logged(
    size: int | None, is_followed: bool, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(WorkerId("w:1"), "http://w:1", (BASE,), block_size=size)
    with caplog.at_level(logging.INFO):
        log_sizeless(RateLimitedLog(LOG), [worker], [worker.id] if is_followed else [])
    assert [f"{record.levelname} {record.message}" for record in caplog.records] == [line] * bool(line)


def test_block_sizes_that_differ_are_logged_with_both_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_block_size(RateLimitedLog(LOG), WorkerId("w:1"), 16, 32)
        log_block_size(RateLimitedLog(LOG), WorkerId("w:2"), 16, None)
        log_block_size(RateLimitedLog(LOG), WorkerId("w:3"), 16, 5, before=5)
    assert [f"{record.levelname} {record.message}" for record in caplog.records] == [
        "WARNING worker w:1: its KV events have blocks of 16 tokens, its metrics report 32; the events' size "
        'is used ([workers."URL"] block_size overrides both)',
        "INFO worker w:2: its KV events show a block size of 16 tokens",
        "WARNING worker w:3: its KV events have blocks of 16 tokens now, 5 before",
    ]

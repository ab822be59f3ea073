"""Traffic for prefill and decode workers."""

import statistics

import pytest

from loadtest.workloads.pd_traffic import CHAT, CODE, REASONING, PdTraffic


@pytest.mark.parametrize("traffic", [CODE, CHAT, REASONING], ids=lambda traffic: traffic.name)
def test_rate_and_lengths_are_as_declared(traffic: PdTraffic) -> None:
    jobs = traffic.jobs(20.0, 200.0)
    assert len(jobs) == pytest.approx(4000, rel=0.15)
    assert [job.at for job in jobs] == sorted(job.at for job in jobs) and jobs[-1].at < 200.0
    assert statistics.mean(job.num_output for job in jobs) == pytest.approx(traffic.output, rel=0.1)
    first = [job.num_tokens for job in jobs if job.turn == 1]
    assert statistics.mean(first) == pytest.approx(traffic.first, rel=0.15)


def test_same_seed_is_the_same_traffic() -> None:
    one, same, other = (CHAT.jobs(5.0, 20.0, seed) for seed in (1, 1, 2))
    assert [job.tokens() for job in one] == [job.tokens() for job in same]
    assert [job.at for job in one] != [job.at for job in other]


def test_later_turn_begins_with_the_turn_before() -> None:
    sessions: dict[str | None, list[list[int]]] = {}
    for job in CHAT.jobs(5.0, 100.0):
        sessions.setdefault(job.session, []).append(list(job.tokens()))
    turns = [turns for turns in sessions.values() if len(turns) > 1]
    assert turns
    for one, later in (
        (before, after) for each in turns for before, after in zip(each, each[1:], strict=False)
    ):
        whole = len(one) // 64 * 64
        assert len(later) > len(one) and later[:whole] == one[:whole]

"""Traffic that users have: what is shared, and what comes when."""

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from gateway.replay.job import ReplayJob
from loadtest.policy_draws import KINDS, draw
from loadtest.policy_rows import mixed_rows
from loadtest.workloads import mixes
from tests.support.recordings import blocks_of, seen_jobs


def test_most_requests_share_the_hot_prompt_and_another_one_later() -> None:
    jobs = list(mixes.hot_prompt(1, rate=50, seconds=40, prefix=30_000, every_s=20.0))
    firsts = Counter(blocks_of(job)[0] for job in jobs)
    (_, early), (_, late) = firsts.most_common(2)
    assert 0.85 < (early + late) / len(jobs) < 0.95
    assert abs(early - late) < 0.2 * len(jobs)
    assert {len(set(blocks_of(job))) == len(blocks_of(job)) for job in jobs} == {True}


def test_questions_on_a_document_come_together() -> None:
    jobs = list(mixes.fan_out(1, rate=1.0, seconds=30, questions=8, within_s=0.1))
    times: dict[int, list[float]] = {}
    for job in jobs:
        times.setdefault(blocks_of(job)[0], []).append(job.at)
    assert {len(some) for some in times.values()} == {8}
    assert max(max(some) - min(some) for some in times.values()) <= 0.1


def test_each_turn_of_a_chat_goes_on_from_the_last() -> None:
    jobs = list(mixes.chats(1, starts=2.0, seconds=60, on_s=10.0))
    turns: dict[str, list[ReplayJob]] = {}
    for job in jobs:
        assert job.session is not None
        turns.setdefault(job.session, []).append(job)
    assert max(len(some) for some in turns.values()) > 5
    for some in turns.values():
        assert (some[0].at // 10) % 2 == 0
        for last, job in zip(some, some[1:], strict=False):
            whole = last.num_tokens // mixes.BLOCK
            assert blocks_of(job)[:whole] == blocks_of(last)[:whole]
            assert (job.turn, job.at > last.at) == (last.turn + 1, True)


def test_nothing_is_reused_of_unique_prompts_and_some_are_giants() -> None:
    jobs = list(mixes.unique(1, rate=30, seconds=30, giants=0.05))
    blocks = [block for job in jobs for block in blocks_of(job)]
    assert len(set(blocks)) == len(blocks)
    assert 0.02 < sum(job.num_tokens >= 60_000 for job in jobs) / len(jobs) < 0.1


@pytest.mark.parametrize("row", mixed_rows(), ids=lambda row: row.name)
def test_requests_come_in_order_and_repeat_by_seed(row: object) -> None:
    jobs: Callable[[int], Iterable[ReplayJob]] = row.jobs  # type: ignore[attr-defined]
    first = seen_jobs(jobs(1))
    assert first and first == sorted(first)
    assert seen_jobs(jobs(1)) == first != seen_jobs(jobs(2))


def test_draws_are_of_all_kinds_and_sizes() -> None:
    drawn = [draw(1, number) for number in range(40)]
    kinds = {row.jobs.args[0].__name__ for row in drawn}  # type: ignore[attr-defined]
    assert kinds == {play.__name__ for play, _ in KINDS.values()}
    assert {row.num_workers for row in drawn} == {4, 8, 16}
    assert all(len(list(row.jobs(1))) >= 50 for row in drawn)
